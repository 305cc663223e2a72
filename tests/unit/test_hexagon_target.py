"""What the Hexagon target takes, refuses, and needs of this machine."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.described_phone import DSP, described
from helpers.recurrent_networks import layer_of
from helpers.relax_helpers import module
from tvm import relax
from tvm.target import Target

import tvm_stretch as ts
from tvm_stretch.make.placement import choose_plan
from tvm_stretch.network.integer_kernels import integer_call, softmax_powers
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.network.operators import Operators
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.read import load_network
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.hexagon import hexagon
from tvm_stretch.targets.hexagon.chips import Chip
from tvm_stretch.targets.hexagon.code import dsp_code
from tvm_stretch.targets.hexagon.hexagon import VERSIONS, llvm_target
from tvm_stretch.targets.kernels.layers import IntegerConvShape
from tvm_stretch.targets.kernels.template import choose
from tvm_stretch.targets.processors import drop_absent, make_processors


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hexagon, "has_zig", lambda: True)
    monkeypatch.setattr(hexagon.shutil, "which", lambda name: f"/bin/{name}")


def processor(**said: Any) -> hexagon.Processor:
    return make_processors([{"kind": "hexagon", **said}], 1)[1][0]


def why_not(dtype: str, operator: Callable[..., relax.Expr], **said: Any) -> str | None:
    mod = module(lambda x: operator(x), (1, 4, 8, 8), dtype=dtype)
    call = mod["main"].body.blocks[0].bindings[0].value
    return processor(**said).why_not(call)


def test_integers_run_everywhere_and_floats_where_vectors_hold_them(present: None) -> None:
    relu = relax.op.nn.relu
    assert why_not("int8", relu) is None
    assert why_not("int32", relu) is None
    assert why_not("float32", relu) == (
        "relax.nn.relu: vectors of v66 hold no float32; v68's do, and integers run everywhere: "
        "make them of the network with ts.quantize"
    )
    assert why_not("float32", relu, mcpu="hexagonv68", device="phone") is None
    average = functools.partial(relax.op.nn.avg_pool2d, pool_size=(2, 2))
    assert "hold no float32" in (why_not("float32", average) or "")
    assert "no division" in (why_not("float32", average, mcpu="hexagonv68", device="phone") or "")
    assert "qemu-hexagon has no float32" in (why_not("float32", relu, mcpu="hexagonv68") or "")
    assert "hold no float64" in (why_not("float64", relu, mcpu="hexagonv75", device="phone") or "")
    assert "hold no int64" in (why_not("int64", relu) or "")


@pytest.mark.parametrize(("channels", "side"), [(64, 16), (96, 14), (512, 7), (1024, 7)])
def test_tiles_of_pixels_alone_round_while_others_are_added_up(
    present: None, channels: int, side: int
) -> None:
    """Also where all tiles wait for their weights alike: the first one has a single pixel."""
    machine = processor().machine
    shape = IntegerConvShape(1, channels, (side, side), channels, (1, 1))
    chosen = choose(shape, machine)
    assert chosen.pixels >= 4 and chosen.pixels * chosen.oc_blocks == 8
    assert channels // machine.lanes % chosen.oc_blocks == 0


def test_what_would_be_scalar_is_refused(present: None) -> None:
    assert "HVX has no division" in (why_not("int32", lambda x: relax.op.floor_divide(x, x)) or "")
    assert "HVX has no division" in (why_not("int32", lambda x: relax.op.divide(x, x)) or "")
    assert "hold no float32" in (why_not("float32", lambda x: relax.op.divide(x, x)) or "")
    assert "calls a function of the host" in (why_not("int32", relax.op.sort) or "")


def test_integer_operators_that_divide_floats_are_refused(present: None) -> None:
    bb, dtype = relax.BlockBuilder(), "uint8"
    x, sums = (relax.Var("x", relax.TensorType((1, 4, 8, 8), k)) for k in (dtype, "int32"))
    rounding = Rounding(dtype, 0, 0, 255)
    powers, factor = relax.const(softmax_powers(np.float32(0.1), 8)), relax.const(np.ones(4, "f"))
    softmax = integer_call(bb, Integer("softmax", rounding, factors=(256.0,)), x, powers)
    past = integer_call(bb, Integer("round", rounding, factors=(0.5, 3.0)), sums, x, factor)
    assert "its powers are floats" in (processor().why_not(softmax) or "")
    assert "share one factor" in (processor().why_not(past) or "")
    own = integer_call(bb, Integer("round", rounding), sums, factor)
    assert processor().why_not(own) is None


def test_recurrent_layers_are_refused(present: None) -> None:
    main = load_network(layer_of("RNN", 4).model()[0])["main"]
    call = next(o.call for o in Operators(main) if o.kind == "recurrent.rnn")
    floats = processor(mcpu="hexagonv68", device="phone")
    assert "its steps need each other" in (floats.why_not(call) or "")


def test_what_quantises_runs_everywhere(present: None) -> None:
    """One number at a time: it stands at the ends of a network."""
    two = relax.const(2.0, "float32")
    assert why_not("float32", lambda x: relax.op.divide(x, two)) is None
    assert why_not("float32", relax.op.round) is None
    assert why_not("uint8", lambda x: relax.op.astype(x, "float32")) is None
    assert "hold no float64" in (why_not("float64", relax.op.round) or "")


def test_what_is_scalar_is_said(present: None) -> None:
    """In the plan and its file: multiplying and rounding on v66; not moving numbers, not on v68."""
    two = relax.const(2.0, "float32")

    def quantised(x: relax.Expr) -> relax.Expr:
        x = relax.op.round(relax.op.divide(relax.op.permute_dims(x), two))
        return relax.op.nn.relu(relax.op.astype(x, "int32"))

    main = load_network(module(quantised, (4, 8)))["main"]
    for cpu, version in VERSIONS.items():
        dsp = processor(device="phone", mcpu=cpu)
        plan = choose_plan(main, ["cpu", "hexagon"], [dsp], None)
        said = (
            "hexagon, 3 operators (multiply, round, astype): float32 one number at a time, "
            f"vectors of {cpu[7:]} hold none; vectors of v68 do"
        )
        assert plan.remarks == (() if version.vector_float else (said,))
        assert (said in plan.explain()) is not version.vector_float
        assert ts.Plan.read(json.loads(plan.to_json())) == plan


def test_what_quantises_an_image_is_not_scalar(present: None) -> None:
    """By its bits, at one scale, to 8 bits; 16 are too many."""

    def remarks(scale: float, dtype: str) -> tuple[str, ...]:
        def ends(x: relax.Expr) -> relax.Expr:
            x = relax.op.quantize(x, relax.const(scale), relax.const(3, dtype), out_dtype=dtype)
            x = relax.op.nn.max_pool2d(x, (2, 2))
            return relax.op.dequantize(x, relax.const(scale), relax.const(3, dtype))

        main = load_network(module(ends, (1, 4, 8, 8)))["main"]
        return choose_plan(main, ["cpu", "hexagon"], [processor()], None).remarks

    for scale in (0.02, 0.25, 1.0):
        (said,) = remarks(scale, "uint8")
        assert said.startswith("hexagon, ") and "divide" not in said and "round" not in said
    (said,) = remarks(0.02, "int16")
    assert "divide" in said and "round" in said


def test_tensors_beyond_its_addresses(present: None) -> None:
    mod = module(relax.op.nn.relu, (1, 2**10, 2**12, 2**9), dtype="int8")
    reason = processor().why_not(mod["main"].body.blocks[0].bindings[0].value)
    assert reason is not None and "2.0 GiB; a DSP has addresses of 32 bits" in reason


@pytest.mark.parametrize("cpu", VERSIONS)
def test_llvm_knows_every_version(cpu: str) -> None:
    known = list(
        map(str, hexagon.tvm.target.codegen.llvm_get_cpu_archlist(llvm_target(VERSIONS[cpu])))
    )
    assert cpu in known


def test_tags_of_tvm_mean_a_version(present: None) -> None:
    target = make_processors([Target("qcom/hexagon-v68")], 1)[1][0].target
    assert target.attrs["mcpu"] == "hexagonv68"
    assert make_processors(["hexagon"], 1)[1][0].target.attrs["mcpu"] == "hexagonv66"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"mcpu": "hexagonv64"}, "expected one of hexagonv65, .* for mcpu .*, got 'hexagonv64'"),
        ({"cores": 4}, "expected kind, mcpu, .* in target hexagon, got 'cores'"),
        ({"deadline_ms": 0}, "expected a whole number from 1 to .* for deadline_ms .*, got 0"),
        ({"mcpu": ["hexagonv66"]}, r"for mcpu of target hexagon, got \['hexagonv66'\]; choose"),
        ({"device": ""}, "for device of target hexagon, got ''; leave it out"),
        ({"device": 5}, "for device of target hexagon, got 5; leave it out"),
        ({"deadline_ms": True}, "got True; leave it out for 30000"),
        ({"spin_us": "long"}, "expected a whole number from 0 to 10000 for spin_us .*, got 'long'"),
        ({"spin_us": 10_001}, "to 10000 for spin_us .*, got 10001; leave it out for 50"),
    ],
)
def test_wrong_targets(present: None, said: dict[str, Any], message: str) -> None:
    with pytest.raises(ts.TargetError, match=message):
        processor(**said)


@pytest.mark.parametrize("word", ["hexagon", {"kind": "hexagon"}])
def test_the_dsp_of_a_phone_is_asked_for_there(
    word: Any, monkeypatch: pytest.MonkeyPatch, present: None
) -> None:
    """Not here: this machine has an emulator, and that one's chip runs no programs of ours."""
    with pytest.raises(ts.TargetError, match=r'got: Hexagon v66 of SM8150.*"mcpu": "hexagonv66"'):
        processors_of(described(), ["llvm", word], None)
    none = described(dsp={**DSP, "node": "", "domains": "", "soc": 0, "chip": ""})
    with pytest.raises(ts.TargetError, match=r"Hexagon on pixel .*, got: none found.*<one of hexa"):
        processors_of(none, ["llvm", word], None)
    monkeypatch.setattr(hexagon.shutil, "which", lambda _name: None)  # what is here is no matter
    emulated = described(dsp={**DSP, "emulator": "/usr/bin/qemu-hexagon"})
    (_, dsp), _ = processors_of(emulated, ["llvm", word], None)
    assert (dsp.kind, dsp.hardware.device, dsp.hardware.packet_ns > 0) == ("dsp", "pixel", True)
    assert all(p.kind != "dsp" for p in processors_of(emulated, None, None)[0]), "asked for only"


def test_the_dsp_of_a_phone_is_called_by_fastrpc(present: None) -> None:
    """Also where there is an emulator beside it; floats from v68 on, because the chip has them."""
    called = {**DSP, "emulator": "/usr/bin/qemu-hexagon", "why_no_library": ""}
    (_, dsp), _ = processors_of(described(dsp=called), ["llvm", "hexagon"], None)
    assert (dsp.hardware.driver, dsp.hardware.packet_ns) == ("FastRPC", 0.0)
    assert str(dsp.target.attrs["mcpu"]) == "hexagonv66", "of SM8150"
    wanted = {"kind": "hexagon", "mcpu": "hexagonv68"}
    (_, dsp), _ = processors_of(described(dsp=called), ["llvm", wanted], None)
    x = relax.Var("x", relax.TensorType((1, 64), "float32"))
    call = relax.BlockBuilder().normalize(relax.op.nn.relu(x))
    assert dsp.operators.refuse(call) is None
    unknown = described(dsp={**called, "soc": 0, "chip": ""})
    (_, dsp), _ = processors_of(unknown, ["llvm", "hexagon"], None)
    assert str(dsp.target.attrs["mcpu"]) == "hexagonv66", "newer chips run it"


def test_what_says_more_than_its_kind_is_taken_at_its_word(present: None) -> None:
    chip = {"kind": "hexagon", "device": "its DSP", "mcpu": "hexagonv68"}
    (_, dsp), _ = processors_of(described(), ["llvm", chip], None)
    assert (dsp.kind, str(dsp.target.attrs["mcpu"])) == ("dsp", "hexagonv68")


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({}, "none found (no /dev/fastrpc-cdsp, no /dev/adsprpc-smd, no cdsp that was started)"),
        (  # Qualcomm's own drivers, Android
            {
                "dev/adsprpc-smd": "",
                "sys/bus/msm_subsys/devices/subsys0/name": "modem\n",
                "sys/bus/msm_subsys/devices/subsys1/name": "cdsp\n",
                "sys/devices/soc0/soc_id": "339\n",
                "sys/devices/soc0/machine": "SM8150\n",
            },
            "Hexagon v66 of SM8150, soc_id 339, /dev/adsprpc-smd",
        ),
        (  # Linux's drivers
            {
                "dev/fastrpc-adsp": "",
                "dev/fastrpc-cdsp": "",
                "sys/class/remoteproc/remoteproc0/name": "cdsp\n",
                "sys/devices/soc0/soc_id": "519\n",
            },
            "Hexagon v73 of SM8550, soc_id 519, /dev/fastrpc-cdsp",
        ),
        (  # a new chip
            {"dev/fastrpc-cdsp": "", "sys/devices/soc0/soc_id": "9999\n"},
            "Hexagon of unknown version of a chip that does not say which, soc_id 9999, "
            "/dev/fastrpc-cdsp",
        ),
        (  # started, but programs may not see its file
            {"sys/class/remoteproc/remoteproc3/name": "cdsp\n"},
            "Hexagon of unknown version of a chip that does not say which, no file to call it by",
        ),
        (  # the DSP for sound alone; somebody else's chip
            {"sys/class/remoteproc/remoteproc0/name": "adsp\n", "sys/devices/soc0/soc_id": "7\n"},
            "none found (no /dev/fastrpc-cdsp, no /dev/adsprpc-smd, no cdsp that was started)",
        ),
    ],
)
def test_what_a_system_shows_of_its_dsp(
    files: dict[str, str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/bin:/opt/bin")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    load_native_library()
    describe = tvm.get_global_func("tvm_stretch.describe_dsp")
    assert str(Chip(**json.loads(describe(str(tmp_path))))) == line
    emulator = tmp_path / "opt" / "bin" / "qemu-hexagon"
    emulator.parent.mkdir(parents=True)
    emulator.write_text("")
    assert str(Chip(**json.loads(describe(str(tmp_path))))) == line, "no program"
    emulator.chmod(0o755)
    found = str(Chip(**json.loads(describe(str(tmp_path)))))
    assert found == f"{line}; emulated by /opt/bin/qemu-hexagon"
    assert f"  dsp: {line}" in str(described(dsp=json.loads(describe(str(tmp_path)))))


def test_without_an_emulator_there_are_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hexagon, "has_zig", lambda: True)
    monkeypatch.setattr(hexagon.shutil, "which", lambda _name: None)
    with pytest.raises(ts.TargetError, match=r"expected qemu-hexagon .* install it \(Debian: qemu"):
        processor()
    left, why = drop_absent(["llvm", "hexagon"])
    assert left == ["llvm"] and "hexagon left out: expected qemu-hexagon" in why
    elsewhere = processor(device="snapdragon-855")
    assert not elsewhere.hardware.runs_here


def test_without_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hexagon, "has_zig", lambda: False)
    with pytest.raises(ts.TargetError, match=r"expected zig .*pip install ziglang"):
        processor(device="snapdragon-855")
    monkeypatch.setattr(dsp_code, "has_zig", lambda: False)
    dsp_code.hexagon_linker.cache_clear()
    with pytest.raises(ts.InstallError, match=r"pip install ziglang"):
        dsp_code.hexagon_linker()
    dsp_code.hexagon_linker.cache_clear()


def test_another_word_for_it() -> None:
    with pytest.raises(ts.TargetError, match="got 'dsp'; write 'hexagon'"):
        make_processors(["dsp"], 1)


def test_plans_are_for_what_runs(present: None) -> None:
    """The emulator's speed where it is emulated, whose kernels are measured by packets."""
    emulated, chip = processor(), processor(device="phone")
    assert emulated.speed.cycles_per_ns < chip.speed.cycles_per_ns / 100
    assert emulated.hardware.packet_ns == pytest.approx(1 / 1.2)
    assert chip.hardware.packet_ns == 0.0
