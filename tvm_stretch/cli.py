"""The command: what `compile`, `load` and the methods of a model do, from a shell.

    tvm-stretch compile resnet50.onnx --target llvm --target opencl -o resnet50.so
    tvm-stretch run resnet50.so --input x=picture.npy -o answer.npz
    tvm-stretch explain resnet50.so

Results go to the standard output, as JSON with ``--json``; progress and errors to the other one.
It ends with 0, with 1 after an error that says what was expected, with 2 if called wrongly.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tvm_stretch as ts
from tvm_stretch.build.precision import PRECISIONS
from tvm_stretch.errors import InputError, StretchError
from tvm_stretch.files import check_place, writing

NAME = "tvm-stretch"
_INTERRUPTED = 130  # as shells say it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: after the name of the program; by default those of this process.

    Returns:
        The exit code.
    """
    args = _parser().parse_args(arguments)
    if args.verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        if getattr(args, "output", None) is not None:
            check_place(Path(args.output), "--output")
        args.command(args)
        sys.stdout.flush()
    except StretchError as error:
        print(f"{NAME}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


# --- what is asked for ----------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME, description="Run a trained network on several processors at the same time."
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {ts.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (
        _add_compile,
        _add_run,
        _add_bench,
        _add_explain,
        _add_timeline,
        _add_report,
        _add_measure,
        _add_probe,
        _add_devices,
        _add_completion,
    ):
        add(commands)
    return parser


_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""What shells complete where a file is asked for, in the words of shtab."""


def _file(parser: argparse.ArgumentParser, *names: str, **options: Any) -> None:
    """An argument that is a file or a folder."""
    vars(parser.add_argument(*names, **options))["complete"] = _FILES


Commands = Any  # argparse's own type of a group of commands has no public name


def _add(
    commands: Commands, name: str, does: Callable[[argparse.Namespace], None], summary: str
) -> argparse.ArgumentParser:
    """A command, with the options that all have."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(command=does)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the log")
    return parser


def _add_targets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t",
        "--target",
        dest="targets",
        action="append",
        type=_target,
        metavar="TARGET",
        help="a processor: llvm, opencl, or a TVM target as JSON; once for each (default: llvm)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="cores for the CPU's kernels")


def _add_network(parser: argparse.ArgumentParser) -> None:
    """How to compile a network."""
    _add_targets(parser)
    _file(parser, "--plan", metavar="FILE", help="the plan to follow, instead of a search")
    parser.add_argument(
        "--shape",
        dest="shapes",
        action="append",
        type=_shape,
        default=[],
        metavar="INPUT=N,N,..",
        help="the shape of an input that the network leaves open",
    )
    parser.add_argument(
        "--max-share",
        dest="max_shares",
        action="append",
        type=_share,
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
        choices=PRECISIONS,
        default=PRECISIONS[0],
        help="what it computes in between its ends (float32)",
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    _file(parser, "model", help="an artifact (.so), or a network to compile first")
    _add_network(parser)


def _add_compile(commands: Commands) -> None:
    parser = _add(commands, "compile", _compile, "compile a network to an artifact")
    _file(parser, "network", help="an ONNX file, or a .pt2 of torch.export")
    _file(parser, "-o", "--output", required=True, metavar="FILE", help="the artifact")
    _file(parser, "--dump", metavar="FOLDER", help="write the IR after every phase there")
    _add_network(parser)


def _add_run(commands: Commands) -> None:
    parser = _add(commands, "run", _run, "run a model once")
    _add_model(parser)
    _file(
        parser,
        "-i",
        "--input",
        dest="inputs",
        action="append",
        type=_named_file,
        default=[],
        metavar="[NAME=]FILE",
        help="an array (.npy), or several under the inputs' names (.npz)",
    )
    _file(parser, "-o", "--output", metavar="FILE", help="write the outputs there (.npz)")


def _add_bench(commands: Commands) -> None:
    parser = _add(commands, "bench", _bench, "measure the latency of a model on random inputs")
    _add_model(parser)
    parser.add_argument("--repeat", type=_positive, default=20, metavar="N", help="runs (20)")
    parser.add_argument("--kernels", action="store_true", help="show the time of each kernel, too")


def _add_explain(commands: Commands) -> None:
    parser = _add(commands, "explain", _explain, "say which processor runs what, and why")
    _add_model(parser)


def _add_timeline(commands: Commands) -> None:
    parser = _add(commands, "timeline", _timeline, "trace a run on random inputs")
    _add_model(parser)
    _file(parser, "-o", "--output", metavar="FILE", help="write the trace, for Perfetto")


def _add_report(commands: Commands) -> None:
    parser = _add(commands, "report", _report, "write a page that shows network, plan and runs")
    _add_model(parser)
    _file(parser, "-o", "--output", required=True, metavar="FILE", help="the page (.html)")
    parser.add_argument("--peak", type=float, metavar="GFLOPS", help="what one core can do at best")


def _add_measure(commands: Commands) -> None:
    parser = _add(commands, "measure", _measure, "time kernels here, to learn a cost model")
    _add_targets(parser)
    parser.add_argument("--budget", type=float, default=480.0, metavar="S", help="seconds (480)")
    _file(parser, "--folder", metavar="FOLDER", help="where models go (the user's cache)")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")


def _add_probe(commands: Commands) -> None:
    parser = _add(commands, "probe", _probe, "try which operators of a network really run")
    parser.add_argument("target", type=_target, help="the processor")
    _file(parser, "network", help="an ONNX file, or a .pt2 of torch.export")
    _file(parser, "--cache", metavar="FILE", help="where verdicts go (the user's cache)")
    parser.add_argument("--threads", type=int, metavar="N", help="cores for the CPU's kernels")


def _add_devices(commands: Commands) -> None:
    _add(commands, "devices", _devices, "list the processors of this machine")


def _add_completion(commands: Commands) -> None:
    parser = _add(commands, "completion", _completion, "write what completes this in a shell")
    parser.add_argument("shell", choices=sorted(_FILES))


def _target(text: str) -> str | dict[str, Any]:
    if not text.startswith("{"):
        return text
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"expected a target as JSON, got {text[:80]!r}") from error


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    try:
        return name, tuple(int(size) for size in sizes.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected INPUT=1,3,224,224 or the like, got {text!r}"
        ) from error


def _share(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition("=")
    try:
        return name, float(share)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected opencl=0.7 or the like, got {text!r}"
        ) from error


def _named_file(text: str) -> tuple[str, Path]:
    name, _, path = text.rpartition("=")
    return name, Path(path)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


# --- what is done ---------------------------------------------------------------------------------


def _compiled(args: argparse.Namespace, network: str, **options: Any) -> ts.Model:
    return ts.compile(
        network,
        args.targets or ["llvm"],
        plan=args.plan,
        shapes=dict(args.shapes) or None,
        cpu_threads=args.threads,
        precision=args.precision,
        spare=args.spare,
        max_share=dict(args.max_shares) or None,
        share_parts=args.share_parts,
        **options,
    )


def _opened(args: argparse.Namespace) -> ts.Model:
    """The model that an artifact holds, or that a network becomes."""
    if Path(args.model).suffix == ".so":
        return ts.load(args.model)
    return _compiled(args, args.model)


def _compile(args: argparse.Namespace) -> None:
    model = _compiled(args, args.network, dump_dir=args.dump)
    model.export(args.output)
    described = {
        "artifact": args.output,
        "inputs": [vars(info) for info in model.inputs],
        "outputs": [vars(info) for info in model.outputs],
        "kernels": len(model.graph.nodes),
        "weights_bytes": model.graph.weights_bytes,
        "arena_bytes": model.graph.arena_bytes,
    }
    _show(args, described, f"{args.output}: {model}")


def _run(args: argparse.Namespace) -> None:
    arrays = [_arrays(name, path) for name, path in args.inputs]
    unnamed = [array for found in arrays for name, array in found if not name]
    named = {name: array for found in arrays for name, array in found if name}
    model = _opened(args)
    result = model(*unnamed, **named)
    values = result if isinstance(result, tuple) else (result,)
    outputs = {info.name: value for info, value in zip(model.outputs, values, strict=True)}
    if args.output is not None:
        with writing("the outputs", InputError), Path(args.output).open("wb") as file:
            np.savez(file, **outputs)
    lines = [
        f"{info}\n{np.array2string(values, threshold=20, precision=5)}"
        for info, values in zip(model.outputs, values, strict=True)
    ]
    _show(args, {name: value.tolist() for name, value in outputs.items()}, "\n".join(lines))


def _arrays(name: str, path: Path) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """What a file holds; the names in an archive are those of inputs."""
    try:
        found = np.load(path, allow_pickle=False)
        return [(name, found)] if isinstance(found, np.ndarray) else list(found.items())
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"expected an array that NumPy saved for --input, got {path}: {error}; "
            "write it with numpy.save or numpy.savez"
        ) from error


def _bench(args: argparse.Namespace) -> None:
    model = _opened(args)
    result = model.benchmark(args.repeat)
    data: dict[str, Any] = {
        "median_ms": result.median * 1e3,
        "spread_ms": result.spread * 1e3,
        "samples_ms": [seconds * 1e3 for seconds in result.samples],
    }
    text = str(result)
    if args.kernels:
        profile = model.profile()
        data["kernels"] = [vars(kernel) for kernel in profile.kernels]
        text += f"\n\n{profile}"
    _show(args, data, text)


def _explain(args: argparse.Namespace) -> None:
    plan = _opened(args).plan
    _show(args, json.loads(plan.to_json()), plan.explain())


def _timeline(args: argparse.Namespace) -> None:
    model = _opened(args)
    timeline = model.timeline(args.output)
    data = {
        "duration_ns": timeline.duration,
        "overlap": timeline.overlap,
        "processors": [vars(usage) for usage in timeline.usage],
        "critical_path": [region.name for region in timeline.critical_path],
    }
    _show(args, data, str(timeline))


def _report(args: argparse.Namespace) -> None:
    _opened(args).report(args.output, args.peak)
    _show(args, {"report": args.output}, f"{args.output}: open it in a browser")


def _measure(args: argparse.Namespace) -> None:
    models = ts.measure(
        args.targets or ["llvm"],
        budget=args.budget,
        resume=not args.again,
        folder=args.folder,
        cpu_threads=args.threads,
    )
    learned = {name: sorted(model.families) for name, model in models.items()}
    lines = [f"{name}: learned {', '.join(families)}" for name, families in learned.items()]
    _show(args, learned, "\n".join(lines))


def _probe(args: argparse.Namespace) -> None:
    verdicts = ts.probe(args.target, args.network, cache=args.cache, cpu_threads=args.threads)
    refused = verdicts.refused
    lines = [f"{len(verdicts.reasons)} kinds of operators tried, {len(refused)} do not run"]
    lines += [f"{key}: {reason}" for key, reason in refused.items()]
    _show(args, {"tried": sorted(verdicts.reasons), "refused": refused}, "\n".join(lines))


def _devices(args: argparse.Namespace) -> None:
    """What the kinds of processors mean here."""
    from tvm_stretch.targets.processors import kinds, make_processors  # imports TVM: not for --help

    data: dict[str, Any] = {}
    lines = []
    for kind in kinds():
        try:
            (processor,) = make_processors(kind, None)[1]
        except StretchError as error:
            data[kind] = {"absent": str(error)}
            lines.append(f"{kind:13}absent: {error}")
            continue
        name = processor.driver or str(processor.target.attrs.get("mcpu", kind))
        threads, lanes = processor.threads, processor.machine.lanes
        data[kind] = {"name": name, "threads": threads, "lanes": lanes}
        lines.append(f"{kind:13}{name}, {threads} thread(s), {lanes} float lanes")
    _show(args, data, "\n".join(lines))


def _completion(args: argparse.Namespace) -> None:
    try:
        import shtab
    except ImportError as error:
        raise InputError(
            "expected the package shtab for completion, got none; "
            "pip install 'tvm-stretch[completion]'"
        ) from error
    script = shtab.complete(_parser(), args.shell)
    _show(args, {"script": script}, script)


def _show(args: argparse.Namespace, data: object, text: str) -> None:
    """The result, for a machine or for a person."""
    print(json.dumps(data, indent=1) if args.json else text)
