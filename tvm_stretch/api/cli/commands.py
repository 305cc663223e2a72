"""What each command does: a function of its name, and where its model comes from."""

from __future__ import annotations

import argparse
import io
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import tvm_stretch as ts
from tvm_stretch.api.cli.arguments import ONLY_NETWORKS, parser
from tvm_stretch.api.cli.inputs import arrays_of, by_name
from tvm_stretch.base.errors import InputError, StretchError
from tvm_stretch.base.files import write_whole, writing
from tvm_stretch.base.words import counted
from tvm_stretch.run.autoload import find_file, load_native_library
from tvm_stretch.run.report_difference import compare_reports, read_report

# --- which model, which device --------------------------------------------------------------------


def _network(path: str) -> str:
    """The path of a network; importing TVM to find that there is none would take seconds."""
    if not Path(path).exists():
        raise InputError(
            f"expected a file with a network, got {path!r}, which is not there; check the path"
        )
    return path


def _device(name: str | None) -> Any:
    """What ``device=`` takes: a connected device for HOST:PORT/KEY, else a name or a profile."""
    if name is None or not _is_address(name):
        return name
    tracker, _, key = name.partition("/")
    return ts.connect(tracker, key)


def _is_address(name: str) -> bool:
    return ":" in name.partition("/")[0]


def _compiled(args: argparse.Namespace, network: str, device: Any, **options: Any) -> ts.Model:
    given = {"precision": args.precision} if args.precision else {}
    given |= {"effort": "low"} if args.fast else {}
    _network(network)
    return ts.compile(
        network,
        args.targets or (None if device is not None else ["llvm"]),
        device=device,
        plan=args.plan,
        scheduler=args.scheduler,
        shapes=by_name(args.shapes, "--shape") or None,
        lengths={
            name: ts.Length(sizes.start, sizes.stop) if isinstance(sizes, slice) else sizes
            for name, sizes in by_name(args.lengths, "--length").items()
        }
        or None,
        cpu_threads=args.threads,
        spare=args.spare,
        max_share=by_name(args.max_shares, "--max-share") or None,
        share_parts=args.share_parts,
        **given,
        **options,
    )


def _opened(args: argparse.Namespace) -> Any:
    """The model that an artifact holds, or that a network becomes; on its device, if connected."""
    is_artifact = Path(args.model).suffix == ".so"
    if is_artifact:
        _refuse_options_of_networks(args)
    device = _device(args.device)
    if not is_artifact:
        model = _compiled(args, args.model, device)
        return device.load(model) if isinstance(device, ts.Device) else model
    if device is None:
        return ts.load(args.model)
    if not isinstance(device, ts.Device):
        raise InputError(
            f"expected HOST:PORT/KEY for --device beside an artifact, got {device!r}; a profile "
            "cannot run it"
        )
    return device.load(args.model)


def _refuse_options_of_networks(args: argparse.Namespace) -> None:
    """An artifact was compiled with options of its own; these would change nothing."""
    given = [option for name, option in ONLY_NETWORKS.items() if getattr(args, name)]
    if given:
        raise InputError(
            f"expected none of the options of a compile for the artifact {args.model}, got "
            f"{', '.join(given)}; give the network instead, or compile it again with them"
        )


# --- commands -------------------------------------------------------------------------------------


def compile(args: argparse.Namespace) -> None:
    """Compile a network to an artifact."""
    model = _compiled(args, args.network, _device(args.device), dump_dir=args.dump)
    model.export(args.output)
    described = {
        "artifact": args.output,
        "inputs": [vars(info) for info in model.inputs],
        "outputs": [vars(info) for info in model.outputs],
        "kernels": len(model.graph.nodes),
        "weights_bytes": model.graph.weights_bytes,
        "arena_bytes": model.graph.arena_bytes,
        "reason": model.plan.reason,
    }
    why = f"\nplan: {model.plan.reason}" if model.plan.reason else ""
    _show(args, described, f"{args.output}: {model}{why}")


def run(args: argparse.Namespace) -> None:
    """Run a model once."""
    arrays = [arrays_of(name, path) for name, path in args.inputs]
    unnamed = [array for pairs in arrays for name, array in pairs if not name]
    named = by_name([pair for pairs in arrays for pair in pairs if pair[0]], "--input")
    model = _opened(args)
    result = model(*unnamed, **named)
    values = result if isinstance(result, tuple) else (result,)
    outputs = {info.name: value for info, value in zip(model.outputs, values, strict=True)}
    if args.output is not None:
        content = io.BytesIO()
        np.savez(content, **outputs)
        with writing("the outputs", InputError):
            write_whole(Path(args.output), content.getvalue())
    lines = [
        f"{info}\n{np.array2string(values, threshold=20, precision=5)}"
        for info, values in zip(model.outputs, values, strict=True)
    ]
    _show(args, {name: value.tolist() for name, value in outputs.items()}, "\n".join(lines))


def bench(args: argparse.Namespace) -> None:
    """Measure the latency of a model; the same figures as tvm_stretch_bench has."""
    data: dict[str, Any]
    if args.tokens is not None:
        from tvm_stretch.api.cli.talking import rates

        data = {**rates(args), "memory_most_mib": _memory("VmHWM")}
        _show(args, data, "\n".join(f"{name:16}{value:10.1f}" for name, value in data.items()))
        return
    begin = time.perf_counter()
    # imports come first: TVM takes far longer than a small artifact
    load_native_library(), ts.load
    started = time.perf_counter()
    model = _opened(args)
    loaded = time.perf_counter()
    first = model.timed_run()()
    result = model.benchmark(args.repeat)
    data = {"start_ms": (started - begin) * 1e3}
    data |= {"load_ms": (loaded - started) * 1e3} if Path(args.model).suffix == ".so" else {}
    data |= {
        "first_ms": first * 1e3,
        "median_ms": result.median * 1e3,
        **{f"p{part}_ms": result.percentile(part) * 1e3 for part in (25, 75, 90, 99)},
        "fastest_ms": min(result.samples) * 1e3,
    }
    lines = [f"{name.removesuffix('_ms'):8}{value:10.3f} ms" for name, value in data.items()]
    lines[0] += ", in which Python imports TVM; an app has none of it"
    if not isinstance(args.device, str):
        data["memory_mib"], data["memory_most_mib"] = map(_memory, ("VmRSS", "VmHWM"))
        lines.append(
            f"memory  {data['memory_mib']:10.1f} MiB, {data['memory_most_mib']:.1f} at most, with "
            "Python and TVM"
        )
    data["samples_ms"] = [seconds * 1e3 for seconds in result.samples]
    if args.kernels:
        profile = model.profile()
        data["kernels"] = [vars(kernel) for kernel in profile.kernels]
        lines.append(f"\n{profile.table()}")
    _show(args, data, "\n".join(lines))


def _memory(field: str) -> float:
    """MiB of this process, as Linux tells them."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


def explain(args: argparse.Namespace) -> None:
    """Say which processor runs what, and why."""
    plan = _opened(args).plan
    _show(args, json.loads(plan.to_json()), plan.explain())


def timeline(args: argparse.Namespace) -> None:
    """Trace a run."""
    model = _opened(args)
    timeline = model.timeline(args.output)
    data = {
        "duration_ns": timeline.duration,
        "overlap": timeline.overlap,
        "processors": [vars(usage) for usage in timeline.usage],
        "critical_path": [region.name for region in timeline.critical_path],
    }
    _show(args, data, str(timeline))


def report(args: argparse.Namespace) -> None:
    """Write the page."""
    _opened(args).report(args.output, args.peak)
    _show(args, {"report": args.output}, f"{args.output}: {_viewer(args.output)}")


def _viewer(path: str) -> str:
    viewers = {".json": "open it in Model Explorer", ".onnx": "open it in Netron"}
    return viewers.get(Path(path).suffix, "open it in a browser")


def diff(args: argparse.Namespace) -> None:
    """Say what changed between two reports."""
    before, after = (read_report(Path(path)) for path in (args.before, args.after))
    difference = compare_reports(before, after)
    _show(args, vars(difference), str(difference))


def plan(args: argparse.Namespace) -> None:
    """Predict the fastest plan."""
    network, device = _network(args.network), _device(args.device)
    shapes = by_name(args.shapes, "--shape") or None
    plan = ts.plan_for(
        network, args.targets, device=device, shapes=shapes, scheduler=args.scheduler
    )
    if args.output is not None:
        plan.write(args.output)
    _show(args, json.loads(plan.to_json()), plan.explain())


def stretch(args: argparse.Namespace) -> None:
    """List designs of NN-Stretch, the fastest first."""
    network, device = _network(args.network), _device(args.device)
    stretched = ts.stretch(network, args.targets, device=device, cpu_threads=args.threads)
    if args.output is not None:
        stretched.best.design.write(args.output)
    designs = [
        {"predicted_ns": c.ns, "pruned_by": c.rule, **c.design.to_data()}
        for c in stretched.candidates
    ]
    _show(args, designs, str(stretched))


def quantize(args: argparse.Namespace) -> None:
    """Quantise a network to 8 bits."""
    (_, images), *more = arrays_of("", Path(args.images))
    if more:
        raise InputError("expected one array (.npy) for --images, got several; stack them")
    path = _network(args.network)
    network = ts.quantize(path, images, activations=args.activations)
    with writing("the quantised network", InputError):
        write_whole(Path(args.output), network.SerializeToString())
    _show(args, {"network": args.output}, f"{args.output}: compile it as any other network")


def measure(args: argparse.Namespace) -> None:
    """Time kernels and learn a cost model."""
    device = _device(args.device)
    models = ts.tune.measure(
        args.targets or (None if device is not None else ["llvm"]),
        device=device,
        budget=args.budget,
        resume=not args.again,
        cache=args.cache,
        like=args.like,
        cpu_threads=args.threads,
    )
    learned = {name: sorted(model.families) for name, model in models.items()}
    lines = [f"{name}: learned {', '.join(families)}" for name, families in learned.items()]
    _show(args, learned, "\n".join(lines))


def probe(args: argparse.Namespace) -> None:
    """Try which operators really run."""
    network = _network(args.network)
    verdicts = ts.tune.probe(
        network,
        args.target,
        device=_device(args.device),
        cache=args.cache,
        cpu_threads=args.threads,
    )
    refused = verdicts.refused
    tried = counted(len(verdicts.reasons), "kind", " of operators tried")
    lines = [f"{tried}: {f'{len(refused)} refused' if refused else 'all run'}"]
    lines += [f"{key}: {reason}" for key, reason in refused.items()]
    _show(args, {"tried": sorted(verdicts.reasons), "refused": refused}, "\n".join(lines))


def calibrate(args: argparse.Namespace) -> None:
    """Make a phone's profile."""
    networks = by_name([(name, _network(path)) for name, path in args.networks], "--network")
    profile = ts.tune.calibrate(args.latencies, networks, name=args.name, like=args.like)
    profile.write(args.output)
    _show(args, {"profile": args.output}, f"{profile}\n{args.output}: --device {args.output}")


def compare(args: argparse.Namespace) -> None:
    """Measure each device's plan on all devices."""
    for name in args.device:
        if not _is_address(name):
            raise InputError(
                f"expected HOST:PORT/KEY for --device, got {name!r}; plans are measured, so each "
                "device has to be connected"
            )
    network, devices = _network(args.network), [_device(name) for name in args.device]
    table = ts.tune.compare_plans(network, devices, args.targets)
    if args.output is not None:
        table.plan.write(args.output)
    data = {"devices": table.devices, "seconds": dict(table.seconds), "best": table.best}
    _show(args, data, str(table))


def devices(args: argparse.Namespace) -> None:
    """List what the kinds of processors mean here."""
    from tvm_stretch.targets.processors import describe, processors_here

    data: dict[str, Any] = {}
    lines = []
    for kind, processor in processors_here():
        if isinstance(processor, StretchError):
            data[kind] = {"absent": str(processor)}
            lines.append(f"{kind:13}absent: {processor}")
            continue
        name = processor.hardware.driver or str(processor.target.attrs.get("mcpu", kind))
        data[kind] = {"name": name, "threads": processor.threads, "lanes": processor.machine.lanes}
        lines.append(f"{kind:13}{describe(processor)}")
    _show(args, data, "\n".join(lines))


def doctor(args: argparse.Namespace) -> None:
    """Look at this machine."""
    from tvm_stretch.api.doctor import examine

    findings = examine()
    _show(args, [vars(finding) for finding in findings], "\n".join(map(str, findings)))


def phone(args: argparse.Namespace) -> None:
    """Prepare a phone on the cable, or leave it as it was."""
    from tvm_stretch.api.phone import clean_up, prepare

    if args.stop:
        report = clean_up(args.serial)
        _show(args, {"stopped": report}, report)
        return
    ready = prepare(args.serial, args.folder, args.name, args.tracker)
    _show(args, asdict(ready), str(ready))


def chat(args: argparse.Namespace) -> None:
    """Talk with a language model; the answers are written as they are made."""
    from tvm_stretch.api.cli.talking import talk

    status = talk(args)
    if args.json:
        _show(args, status, "")


def where(args: argparse.Namespace) -> None:
    """The folder that CMake and pkg-config of apps need."""
    folder = str(find_file("include/tvm_stretch.h").parents[1])
    _show(args, {"folder": folder}, folder)


def completion(args: argparse.Namespace) -> None:
    """Write a shell's completion."""
    try:
        import shtab
    except ImportError as error:
        raise InputError(
            "expected the package shtab for completion, got none; "
            "pip install 'tvm-stretch[completion]'"
        ) from error
    script = shtab.complete(parser(), args.shell)
    _show(args, {"script": script}, script)


def _show(args: argparse.Namespace, data: object, text: str) -> None:
    """The result, for a machine or for a person."""
    print(json.dumps(data, indent=1) if args.json else text)
