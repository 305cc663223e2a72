"""The command: what `compile`, `load` and the methods of a model do, from a shell.

    tvm-stretch compile resnet50.onnx --target llvm --target opencl -o resnet50.so
    tvm-stretch run resnet50.so --input x=picture.npy -o answer.npz
    tvm-stretch explain resnet50.so

Results go to the standard output, as JSON with ``--json``; progress and errors go to the standard
error. It ends with 0, with 1 after an error that says what was expected, with 2 if called wrongly.

`arguments.py` describes the commands without importing TVM, which takes seconds: ``--help`` and
completion need nothing else. `commands.py` carries them out.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tvm_stretch.api.cli.arguments import NAME, parser
from tvm_stretch.base.errors import StretchError
from tvm_stretch.base.files import check_place

__all__ = ["main"]

_INTERRUPTED = 130  # what shells report after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: after the name of the program; by default those of this process.

    Returns:
        The exit code.
    """
    args = parser().parse_args(arguments)
    if args.verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        if getattr(args, "output", None) is not None:
            check_place(Path(args.output), "--output")
        from tvm_stretch.api.cli import commands  # imports NumPy; TVM follows where it is needed

        getattr(commands, args.command)(args)
        sys.stdout.flush()
    except StretchError as error:
        print(f"{NAME}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0
