"""Artifacts: written, opened, damaged, truncated, from elsewhere."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import pickle
import platform
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers import fresh_process
from helpers.fingerprints import fingerprint
from helpers.memory_growth import keeps_growing
from helpers.relax_helpers import two_convolutions
from helpers.small_models import (
    WEIGHT,
    build,
    build_model,
    kernel_ir,
    random_input,
    scaled_model,
    scaled_reference,
)
from tvm import topi
from tvm.support import cc

import tvm_stretch as ts
from tvm_stretch.base.errors import ArtifactError, StretchError
from tvm_stretch.make.lowering.executor_graph import FORMAT
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.run.load import load
from tvm_stretch.run.model import Model
from tvm_stretch.run.seal import SEAL_BYTES, seal
from tvm_stretch.targets.cpu.cpu import CHECKED_CPU_FEATURES

X = random_input()


@pytest.fixture(scope="module")
def model() -> Model:
    return scaled_model()


@pytest.fixture(scope="module")
def artifact(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "model.so"
    model.export(path)
    return path


def test_round_trip(model: Model, artifact: Path) -> None:
    loaded = load(artifact)
    np.testing.assert_array_equal(loaded(X), model(X))
    assert loaded.graph == model.graph
    np.testing.assert_array_equal(loaded.create_instance()(x=X), model(X))


def test_loaded_model_can_be_exported_again(artifact: Path, tmp_path: Path) -> None:
    load(str(artifact)).export(tmp_path / "copy.so")
    np.testing.assert_allclose(load(tmp_path / "copy.so")(X), scaled_reference(X), 1e-5)
    with pytest.raises(ArtifactError, match="compile it again"):
        load(artifact).export(tmp_path / "again.so", fcompile=cc.cross_compiler("g++"))


def test_pickle_and_copy(model: Model, artifact: Path) -> None:
    """Through the artifact; what was loaded from it can be exported too."""
    for original in (model, load(artifact)):
        for again in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
            np.testing.assert_array_equal(again(X), model(X))
            np.testing.assert_array_equal(copy.copy(again)(X), model(X))


@pytest.mark.parametrize("later", ["another network", "nothing", "gone"])
def test_what_was_loaded_is_what_is_copied(artifact: Path, tmp_path: Path, later: str) -> None:
    """Whatever stands under that path by then."""
    path = tmp_path / "model.so"
    path.write_bytes(artifact.read_bytes())
    loaded = load(path)
    if later == "another network":
        squared_model().export(path)
        assert load(path)(X)[0, 0, 0, 0] == X[0, 0, 0, 0] ** 2
    elif later == "nothing":
        path.write_bytes(b"")
    else:
        path.unlink()
    loaded.export(tmp_path / "again.so")
    instance = loaded.create_instance()
    copies = (
        pickle.loads(pickle.dumps(loaded)),
        copy.deepcopy(loaded),
        load(tmp_path / "again.so"),
    )
    for again in (loaded, instance, *copies, pickle.loads(pickle.dumps(copies[0]))):
        np.testing.assert_allclose(again(X), scaled_reference(X), 1e-5)


def squared_model() -> Model:
    """Inputs and outputs as of `scaled_model`."""
    return build(
        lambda b, p: [b.emit_te(topi.multiply, p[0], p[0])], {"x": (tuple(X.shape), "float32")}
    )


def test_a_file_that_is_cut_off_later(artifact: Path, tmp_path: Path) -> None:
    """Neither code nor weights are of the file: a process ends with SIGBUS for less."""
    code = f"""
        import os, shutil
        from helpers.small_models import random_input, scaled_reference
        from tvm_stretch.run.load import load
        shutil.copy({str(artifact)!r}, path := {str(tmp_path / "model.so")!r})
        loaded, x = load(path), random_input()
        os.truncate(path, 100)
        assert abs(loaded(x) - scaled_reference(x)).max() < 1e-5
        assert abs(loaded.create_instance()(x) - scaled_reference(x)).max() < 1e-5
    """
    fresh_process.run(code)


def open_descriptors() -> set[str]:
    return {str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.exists()}


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    """Others have no end, or nobody who writes."""
    pipe = tmp_path / "pipe.so"
    os.mkfifo(pipe)
    before = open_descriptors()
    for path in (pipe, Path("/dev/zero"), Path("/dev/null"), tmp_path):
        refused(path, "expected a readable file for the artifact, got a ")
    endless = tmp_path / "endless.so"
    endless.touch()
    os.truncate(endless, 1 << 42)  # of a few bytes on the disk
    refused(endless, "64-bit ELF")
    assert open_descriptors() == before


@pytest.mark.parametrize("kind", ["socket", "pipe"])
@pytest.mark.parametrize("write", [Model.export, Model.export_data])
def test_artifacts_take_the_place_of_regular_files_alone(
    model: Model, tmp_path: Path, kind: str, write: Callable[[Model, Path], None]
) -> None:
    path = tmp_path / "model.so"
    with socket.socket(socket.AF_UNIX) as server:
        os.mkfifo(path) if kind == "pipe" else server.bind(str(path))
        before = path.stat()
        with pytest.raises(
            ArtifactError, match=rf"^expected a place to write .*, got a {kind} at "
        ):
            write(model, path)
    assert os.path.samestat(path.stat(), before)
    assert [*tmp_path.iterdir()] == [path]


def test_an_artifact_is_written_where_a_link_points(
    model: Model, artifact: Path, tmp_path: Path
) -> None:
    link, file = tmp_path / "link.so", tmp_path / "model.so"
    link.symlink_to(file)
    model.export(link)
    assert link.is_symlink() and file.read_bytes() == artifact.read_bytes()
    assert {*tmp_path.iterdir()} == {link, file}


@pytest.mark.parametrize("write", ["report", "timeline", "plan", "onnx"])
def test_what_people_read_takes_no_place_of_a_socket(
    model: Model, tmp_path: Path, write: str
) -> None:
    path = tmp_path / "file.html"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        with pytest.raises(
            ts.StretchError, match=r"^expected a place to write .*, got a socket at "
        ):
            if write == "report":
                model.report(path)
            elif write == "timeline":
                model.timeline().write(path)
            elif write == "plan":
                Plan(("cpu",), (PlannedRegion("r0", "cpu", ("x",)),)).write(path)
            else:
                ts.to_onnx(two_convolutions(), path)
        assert path.is_socket()


@pytest.mark.parametrize("kilobytes", [0, 20, 100])
def test_no_memory_to_look_at_it(artifact: Path, kilobytes: int) -> None:
    code = f"""
        import resource
        from pathlib import Path
        import tvm_stretch as ts
        def used():
            return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        ts.load({str(artifact)!r})
        resource.setrlimit(resource.RLIMIT_AS, (used() + ({kilobytes} << 10), -1))
        try:
            ts.load({str(artifact)!r})
        except ts.RunError as error:
            assert " free memory" in str(error), error
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        ts.load({str(artifact)!r})
    """
    fresh_process.run(code)


def test_a_fork_that_ends_leaves_the_bytes_to_its_parent(model: Model) -> None:
    again = pickle.loads(pickle.dumps(model))
    child = os.fork()
    if child == 0:
        del again
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(copy.deepcopy(again)(X), model(X))


def loaded_libraries() -> int:
    """How many files are mapped with the right to run them, deleted ones included."""
    return sum(" r-xp " in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_deleted_models_leave_nothing_behind(model: Model, tmp_path: Path) -> None:
    gc.collect()
    before = loaded_libraries()
    for number in range(3):
        model.export(tmp_path / f"{number}.so")
        loaded = load(tmp_path / f"{number}.so")
        loaded(X)
        assert loaded_libraries() == before + 1
        del loaded
    fresh = scaled_model()
    del fresh
    gc.collect()
    assert loaded_libraries() == before


@pytest.mark.full
def test_ten_thousand_loads(artifact: Path) -> None:

    def loads(count: int) -> None:
        for _ in range(count):
            load(artifact)(X)

    loads(1000)
    assert not keeps_growing(lambda: loads(10_000), 100 * 10_000)


def test_overwriting_does_not_disturb_a_loaded_model(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    model.export(path)
    loaded = load(path)
    model.export(path)
    np.testing.assert_allclose(loaded(X), scaled_reference(X), 1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["model.so"]


_STOCK = """
import sys
import numpy as np, tvm
module = tvm.runtime.load_module(sys.argv[1])
x = np.load(sys.argv[2])
module["set_input"]("x", tvm.runtime.tensor(x))
module["run"]()
np.save(sys.argv[3], module["get_output"](0).numpy())
assert not any(name.startswith("tvm_stretch.run.model") for name in sys.modules)
"""


def test_stock_tvm_opens_it(artifact: Path, tmp_path: Path) -> None:
    """After nothing but `import tvm`."""
    source, target = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(source, X)
    command = [sys.executable, "-W", "error", "-c", _STOCK, artifact, source, target]
    subprocess.run(command, check=True)
    np.testing.assert_allclose(np.load(target), scaled_reference(X), 1e-5)


def test_artifact_holds_the_original_weights_once(artifact: Path) -> None:
    assert artifact.read_bytes().count(WEIGHT.tobytes()) == 1


def test_weights_dominate_the_size(tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal((1024, 1024)).astype("float32")
    const = tvm.relax.const(data)
    mod = kernel_ir(lambda b, p: [b.emit_te(topi.add, p[0], const)], {"x": ((1, 1024), "float32")})
    build_model(mod, tvm.target.Target("llvm")).export(tmp_path / "model.so")
    assert (tmp_path / "model.so").stat().st_size <= 1.1 * data.nbytes


def refused(path: Path, said: str) -> None:
    with pytest.raises(ArtifactError, match=said) as caught:
        load(path)
    assert str(caught.value).startswith("expected ")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_file(artifact: Path, tmp_path: Path, share: float) -> None:
    data = artifact.read_bytes()
    path = tmp_path / "short.so"
    path.write_bytes(data[: int(len(data) * share)])
    refused(path, "expected at least|64-bit ELF|without the end")


def test_no_file_and_no_artifact(tmp_path: Path) -> None:
    refused(tmp_path / "missing.so", "readable file")
    text = tmp_path / "text.so"
    text.write_text("not a library, but longer than the header of one is. " * 5)
    refused(text, "64-bit ELF")


def test_library_that_is_no_artifact(tmp_path: Path) -> None:
    mod = kernel_ir(lambda b, p: [b.emit_te(topi.exp, p[0])], {"x": ((4,), "float32")})
    del mod["main"]
    mod = tvm.IRModule({v: f.with_attr("global_symbol", "k") for v, f in mod.functions.items()})
    path = tmp_path / "kernels.so"
    tvm.tirx.build(mod, "llvm").export_library(str(path))
    refused(path, "artifact of tvm_stretch")


def test_other_architecture(artifact: Path, tmp_path: Path) -> None:
    data = bytearray(artifact.read_bytes())
    struct.pack_into("<H", data, 18, 164)
    path = tmp_path / "other.so"
    path.write_bytes(data[:-SEAL_BYTES])
    seal(path)
    refused(path, "hexagon")


def test_damage_anywhere(artifact: Path, tmp_path: Path) -> None:
    """Code, tables, graph, weights or seal: nothing of it is mapped."""
    data, path = artifact.read_bytes(), tmp_path / "damaged.so"
    for start in range(0, len(data), 499):
        damaged = data[:start] + bytes(len(data[start : start + 256])) + data[start + 256 :]
        path.write_bytes(damaged)
        if damaged != data:
            refused(path, "damaged|without the end|64-bit ELF|at least|artifact for")


def test_program_headers_that_were_sealed_damaged(artifact: Path, tmp_path: Path) -> None:
    """The system's loader would end the process over every seventh of them."""
    code = f"""
        import numpy as np
        from pathlib import Path
        from helpers.small_models import random_input, scaled_reference
        from tvm_stretch.base.errors import ArtifactError
        from tvm_stretch.run.load import load
        from tvm_stretch.run.seal import SEAL_BYTES, seal
        data = Path({str(artifact)!r}).read_bytes()[:-SEAL_BYTES]
        path, x = Path({str(tmp_path)!r}, "m.so"), random_input()
        right = refused = 0
        for header in range(64, 64 + 56 * data[56], 56):
            for start, size in ((0, 4), (4, 4), *((8 * word, 8) for word in range(1, 7))):
                for number in (0, 0xFFFFFFFF):
                    changed = bytearray(data)
                    at = header + start
                    changed[at : at + size] = number.to_bytes(size, "little")
                    path.write_bytes(changed)
                    seal(path)
                    try:
                        np.testing.assert_allclose(load(path)(x), scaled_reference(x), 1e-5)
                        right += 1
                    except ArtifactError:
                        refused += 1
        print(right, refused)
    """
    right, refused_ = map(int, fresh_process.run(code).split())
    assert right > 50 and refused_ > 50


def test_library_without_its_end(artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "stripped.so"
    path.write_bytes(artifact.read_bytes()[:-SEAL_BYTES])
    refused(path, "without the end that this version")


def test_who_wrote_it_for_what(model: Model) -> None:
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "next"}
    graph = dataclasses.replace(model.graph, cpu_features=("avx1024",), target=target)
    said = r"processor with avx1024 for this artifact of tvm_stretch \S+ for x86_64-linux-gnu, next"
    with pytest.raises(ArtifactError, match=said):
        Model.from_parts(dataclasses.replace(model.parts, graph=graph))(X)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86's features")
def test_features_are_those_of_the_operating_system(model: Model) -> None:
    text = Path("/proc/cpuinfo").read_text()
    flags = next(line for line in text.splitlines() if line.startswith("flags")).split()
    names = {
        "ssse3",
        "popcnt",
        "movbe",
        "bmi2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "gfni",
        "xop",
        "fma4",
    }
    names |= {"tbm", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512ifma"}
    names |= {"avx512vbmi", "fma4", "sse4a"}
    others = {"bmi": "bmi1", "lzcnt": "abm", "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2"}
    others |= {"avxvnni": "avx_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16"}
    others |= {"avx512vnni": "avx512_vnni", "avx512vbmi2": "avx512_vbmi2"}
    others |= {"avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq"}
    for name, flag in {**{name: name for name in names}, **others}.items():
        graph = dataclasses.replace(model.graph, cpu_features=(name,))
        parts = dataclasses.replace(model.parts, graph=graph)
        executor = parts.create_executor(model.module.imports[0])
        if flag in flags:
            executor["load"]()
        else:
            with pytest.raises(ValueError, match=f"expected a processor with {name}"):
                executor["load"]()


def test_processor_without_the_features(model: Model) -> None:
    graph = dataclasses.replace(model.graph, cpu_features=("avx2", "neon"))
    with pytest.raises(ArtifactError, match=r"expected a processor with .*(neon|avx2)"):
        Model.from_parts(dataclasses.replace(model.parts, graph=graph))(X)


def test_features_have_the_same_names_here_and_there() -> None:
    root = Path(__file__).resolve().parents[2]
    source = (root / "tvm_stretch/run/native/cpu_features.cc").read_text(encoding="utf-8")
    assert set(re.findall(r'\{"([\w.-]+)", ', source)) == CHECKED_CPU_FEATURES


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"name":"x"', b'"name":"y"'), (WEIGHT.tobytes(), np.zeros_like(WEIGHT).tobytes())],
    ids=["graph", "weights"],
)
def test_damaged_bytes(artifact: Path, tmp_path: Path, old: bytes, new: bytes) -> None:
    data = artifact.read_bytes()
    assert data.count(old) == 1
    path = tmp_path / "damaged.so"
    path.write_bytes(data.replace(old, new)[:-SEAL_BYTES])
    seal(path)  # damaged before it was written: graph and weights have fingerprints of their own
    refused(path, "damaged")


def test_other_version(model: Model, artifact: Path, tmp_path: Path) -> None:
    """What a later version would write: a sound file, but of the next version."""
    old = model.graph.to_json().encode()
    now = FORMAT.version
    new = old.replace(f'"version":{now}'.encode(), f'"version":{now + 1}'.encode(), 1)
    assert new != old
    data = artifact.read_bytes()
    for before, after in ((fingerprint(old), fingerprint(new)),):
        packed = struct.pack("<Q", before)
        assert data.count(packed) == 1
        data = data.replace(packed, struct.pack("<Q", after))
    path = tmp_path / "later.so"
    path.write_bytes(data.replace(old, new)[:-SEAL_BYTES])
    seal(path)
    refused(path, f"expected version {now} .* got version {now + 1}")


def test_export_into_a_missing_folder(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="existing folder"):
        model.export(tmp_path / "no" / "model.so")


def test_failed_export_leaves_what_was_there(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_text("old")

    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("no linker")

    with pytest.raises(StretchError, match="no linker"):
        model.export(path, fcompile=fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.so"]


def test_cross_compiled_kernels_reach_the_linker(tmp_path: Path) -> None:
    arm = tvm.target.Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod"]}
    )
    mod = kernel_ir(lambda b, p: [b.emit_te(topi.exp, p[0])], {"x": ((4,), "float32")})
    model = build_model(mod, arm)
    assert model.graph.cpu_features == ("dotprod", "neon")
    machines = []

    def link(output: str, objects: list[str], **options: object) -> None:
        for path in map(Path, objects):
            if path.suffix == ".o":
                machines.append(struct.unpack_from("<H", path.read_bytes(), 18)[0])
        Path(output).write_bytes(b"linked")

    model.export(tmp_path / "arm.so", fcompile=link)
    assert machines == [183, 183], "kernels and graph, both for aarch64"
    assert (tmp_path / "arm.so").read_bytes().startswith(b"linked")


def test_other_compiler(model: Model, tmp_path: Path) -> None:
    model.export(tmp_path / "model.so", fcompile=cc.cross_compiler("gcc"))
    np.testing.assert_allclose(load(tmp_path / "model.so")(X), scaled_reference(X), 1e-5)
