"""The commands and their options. Nothing here imports TVM or NumPy."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import Any

from tvm_stretch.cli import types

NAME = "tvm-stretch"
Commands = Any  # argparse's own type of a group of commands has no public name


class _Version(argparse.Action):
    """Looks the version up only if it is asked for: that reads the installed metadata."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.exit(message=f"{NAME} {version('tvm_stretch')}\n")


def parser() -> argparse.ArgumentParser:
    """All commands; ``command`` of the result names a function of `commands`."""
    top = argparse.ArgumentParser(
        prog=NAME, description="Run a trained network on several processors at the same time."
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(required=True, metavar="command")
    for add in (
        *(_add_compile, _add_run, _add_bench, _add_explain, _add_timeline, _add_report),
        *(_add_plan, _add_stretch, _add_quantize),
        *(_add_measure, _add_probe, _add_calibrate, _add_compare, _add_devices, _add_where),
        _add_completion,
    ):
        add(commands)
    return top


_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""What shells complete where a file is asked for, in the words of shtab."""


def _file(parser: argparse.ArgumentParser, *names: str, **options: Any) -> None:
    """An argument that is a file or a folder."""
    vars(parser.add_argument(*names, **options))["complete"] = _FILES


def _add(commands: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    """A command, with the options that all have."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(command=name)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the log")
    return parser


# --- options of several commands ------------------------------------------------------------------


def _add_targets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t",
        "--target",
        dest="targets",
        action="append",
        type=types.target,
        metavar="TARGET",
        help="a processor: llvm, opencl, hexagon, or a TVM target as JSON; once for each "
        "(default: llvm)",
    )


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, metavar="N", help="cores for the CPU's kernels")


def _add_device(parser: argparse.ArgumentParser, several: bool = False) -> None:
    parser.add_argument(
        "--device",
        action="append" if several else "store",
        required=several,
        metavar="HOST:PORT/KEY",
        help="a connected device: its RPC tracker and key",
    )


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="HOST:PORT/KEY of a connected device, a device measured before, "
        "or a profile: snapdragon-855, mine.toml",
    )


def _add_shapes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        dest="shapes",
        action="append",
        type=types.shape,
        default=[],
        metavar="INPUT=N,N,..",
        help="the shape of an input that the network leaves open",
    )


def _add_compiling(parser: argparse.ArgumentParser) -> None:
    """How to compile a network."""
    _add_targets(parser)
    _add_threads(parser)
    _add_profile(parser)
    _file(parser, "--plan", metavar="FILE", help="the plan to follow, instead of a search")
    _add_shapes(parser)
    parser.add_argument(
        "--max-share",
        dest="max_shares",
        action="append",
        type=types.share,
        default=[],
        metavar="PROCESSOR=SHARE",
        help="how much of the work a processor may do at most: opencl=0.7",
    )
    parser.add_argument(
        "--share-parts",
        type=int,
        metavar="N",
        help="shares are multiples of one of so many parts: 8 for whole eighths",
    )
    parser.add_argument("--spare", action="store_true", help="the CPU takes over if others fail")
    parser.add_argument(
        "--precision",
        metavar="TYPE",
        help="float32 (default), float16 or float16+float32, between the network's ends",
    )


ONLY_NETWORKS = {
    "targets": "--target",
    "threads": "--threads",
    "plan": "--plan",
    "shapes": "--shape",
    "max_shares": "--max-share",
    "share_parts": "--share-parts",
    "spare": "--spare",
    "precision": "--precision",
}
"""Options of `_add_compiling` that an artifact, which is compiled already, has no use for."""


def _add_model(parser: argparse.ArgumentParser) -> None:
    _file(parser, "model", help="an artifact (.so), or a network to compile first")
    _add_compiling(parser)


def _add_network(parser: argparse.ArgumentParser) -> None:
    _file(parser, "network", help="an ONNX file, or a .pt2 of torch.export")


def _add_output(parser: argparse.ArgumentParser, what: str, required: bool = False) -> None:
    _file(parser, "-o", "--output", required=required, metavar="FILE", help=what)


# --- commands -------------------------------------------------------------------------------------


def _add_compile(commands: Commands) -> None:
    parser = _add(commands, "compile", "compile a network to an artifact")
    _add_network(parser)
    _add_output(parser, "the artifact", required=True)
    _file(parser, "--dump", metavar="FOLDER", help="write the IR after every phase there")
    _add_compiling(parser)


def _add_run(commands: Commands) -> None:
    parser = _add(commands, "run", "run a model once")
    _add_model(parser)
    _file(
        parser,
        "-i",
        "--input",
        dest="inputs",
        action="append",
        type=types.named_file,
        default=[],
        metavar="[NAME=]FILE",
        help="an array (.npy), or several under the inputs' names (.npz)",
    )
    _add_output(parser, "write the outputs there (.npz)")


def _add_bench(commands: Commands) -> None:
    parser = _add(commands, "bench", "measure the latency of a model on random inputs")
    _add_model(parser)
    parser.add_argument("--repeat", type=types.positive, default=20, metavar="N", help="runs (20)")
    parser.add_argument("--kernels", action="store_true", help="show the time of each kernel, too")


def _add_explain(commands: Commands) -> None:
    _add_model(_add(commands, "explain", "say which processor runs what, and why"))


def _add_timeline(commands: Commands) -> None:
    parser = _add(commands, "timeline", "trace a run on random inputs")
    _add_model(parser)
    _add_output(parser, "write the trace, for Perfetto")


def _add_report(commands: Commands) -> None:
    parser = _add(commands, "report", "write a page that shows network, plan and runs")
    _add_model(parser)
    _add_output(parser, "the page (.html)", required=True)
    parser.add_argument("--peak", type=float, metavar="GFLOPS", help="what one core can do at best")


def _add_plan(commands: Commands) -> None:
    parser = _add(commands, "plan", "predict the fastest plan, without building anything")
    _add_network(parser)
    _add_targets(parser)
    _add_profile(parser)
    _add_shapes(parser)
    _add_output(parser, "write the plan there (.json)")


def _add_stretch(commands: Commands) -> None:
    parser = _add(commands, "stretch", "list architectures with parallel branches, to be trained")
    _add_network(parser)
    _add_targets(parser)
    _add_threads(parser)
    _add_profile(parser)
    _add_output(parser, "write the best design there (.json)")


def _add_quantize(commands: Commands) -> None:
    parser = _add(commands, "quantize", "make a network of 8-bit integers of a float network")
    _add_network(parser)
    _file(
        parser,
        "--images",
        required=True,
        metavar="FILE",
        help="typical inputs, one after the other along the first axis (.npy)",
    )
    _add_output(parser, "the quantised network (.onnx)", required=True)
    parser.add_argument("--activations", default="uint8", choices=("uint8", "int8"))


def _add_measure(commands: Commands) -> None:
    parser = _add(commands, "measure", "time kernels, to learn a cost model")
    _add_targets(parser)
    _add_threads(parser)
    _add_device(parser)
    parser.add_argument("--budget", type=float, default=480.0, metavar="S", help="seconds (480)")
    _file(parser, "--cache", metavar="FOLDER", help="where models go (the user's cache)")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")


def _add_probe(commands: Commands) -> None:
    parser = _add(commands, "probe", "try which operators of a network really run")
    _add_network(parser)
    parser.add_argument(
        "-t", "--target", required=True, type=types.target, metavar="TARGET", help="the processor"
    )
    _add_threads(parser)
    _add_device(parser)
    _file(parser, "--cache", metavar="FILE", help="where verdicts go (the user's cache)")


def _add_calibrate(commands: Commands) -> None:
    parser = _add(commands, "calibrate", "make a profile of a phone from measured latencies")
    _file(parser, "latencies", help="a table: model,processor,latency_ms (.csv)")
    parser.add_argument(
        "--network",
        dest="networks",
        action="append",
        type=types.named_network,
        required=True,
        metavar="MODEL=FILE",
        help="a network of the table; once for each",
    )
    parser.add_argument("--name", required=True, help="what the phone is called")
    parser.add_argument(
        "--like", default="snapdragon-855", metavar="PROFILE", help="a phone that resembles it"
    )
    _add_output(parser, "the profile (.toml)", required=True)


def _add_compare(commands: Commands) -> None:
    parser = _add(commands, "compare", "measure each device's plan on all connected devices")
    _add_network(parser)
    _add_targets(parser)
    _add_device(parser, several=True)
    _add_output(parser, "write the plan that is best for all there (.json)")


def _add_devices(commands: Commands) -> None:
    _add(commands, "devices", "list the processors of this machine")


def _add_where(commands: Commands) -> None:
    _add(commands, "where", "the folder with headers and libraries for apps in C and C++")


def _add_completion(commands: Commands) -> None:
    parser = _add(commands, "completion", "write what completes this in a shell")
    parser.add_argument("shell", choices=sorted(_FILES))
