"""``python -m tvm_stretch`` runs the command line."""

import sys

from tvm_stretch.api.cli import main

if __name__ == "__main__":
    sys.exit(main())
