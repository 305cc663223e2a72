"""``python -m tvm_stretch``: the command."""

import sys

from tvm_stretch.cli import main

if __name__ == "__main__":
    sys.exit(main())
