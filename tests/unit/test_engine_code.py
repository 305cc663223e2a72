"""What the compiler asks an engine's program, and which answers it keeps."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import tvm_stretch as ts
from tvm_stretch.targets.engines.code import engine_code
from tvm_stretch.targets.engines.code.engine_code import Engine, compiled, why_refused


def scripted(folder: Path, check: str, contexts: str = "") -> Engine:
    """An engine whose program is a shell script that does this when it is asked."""
    program = folder / "program"
    cases = f'describe) echo "runtime 1";; check) {check};; contexts) {contexts or "exit 3"};;'
    program.write_text(f'#!/bin/sh\necho "$1" >> {folder}/asked\ncase "$1" in\n{cases}\nesac\n')
    program.chmod(0o755)
    (folder / "asked").unlink(missing_ok=True)
    engine_code.describe.cache_clear()
    return Engine("Scripted", "a device", program=str(program), library="some.so", contexts=True)


def asked(folder: Path, word: str) -> int:
    """How often the program of the last engine was asked this."""
    return (folder / "asked").read_text().split().count(word)


TAKES = "echo verdict takes"


def model(size: int = 1) -> bytes:
    """A model that does nothing."""
    ports = "i0", "o0"
    one = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (size,)) for name in ports]
    node = helper.make_node("Identity", ["i0"], ["o0"])
    return helper.make_model(helper.make_graph([node], "g", one[:1], one[1:])).SerializeToString()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has an empty cache."""
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("check", "reason"), [(TAKES, ""), ("echo verdict no such operator", "no such operator")]
)
def test_verdicts_are_kept(check: str, reason: str, tmp_path: Path) -> None:
    engine = scripted(tmp_path, check)
    assert [why_refused(engine, [model()]) for _ in range(3)] == [[reason]] * 3
    assert asked(tmp_path, "check") == 1


def test_models_are_asked_about_together(tmp_path: Path) -> None:
    """Each once, though it is there twice; those whose verdict is known are not asked about."""
    engine = scripted(tmp_path, "echo verdict no; echo; echo half a line of a library; " + TAKES)
    assert why_refused(engine, [model(2), model(3), model(2)]) == ["no", "", "no"]
    assert asked(tmp_path, "check") == 1
    engine = scripted(tmp_path, "echo verdict not this one either")
    assert why_refused(engine, [model(3), model(2), model(4)]) == ["", "no", "not this one either"]


def test_models_behind_one_that_ends_the_provider_are_asked_about_again(tmp_path: Path) -> None:
    """The first time it takes one model and dies at the next; the second time it takes one."""
    again = f"test -e {tmp_path}/died || {{ touch {tmp_path}/died; {TAKES}; kill -9 $$; }}; "
    engine = scripted(tmp_path, again + TAKES)
    died = "it was killed by signal 9: "
    assert why_refused(engine, [model(2), model(3), model(4)]) == ["", died, ""]
    assert asked(tmp_path, "check") == 2
    assert why_refused(engine, [model(2), model(3), model(4)]) == ["", "", ""]
    assert asked(tmp_path, "check") == 3, "about the one that ended it"


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ("exec sleep 60", "no answer within 0 s"),
        ("kill -9 $$", "it was killed by signal 9"),
        ('echo "no such device" >&2; exit 3', "no such device"),
        ("exit 0", "it gave no answer"),
    ],
)
def test_no_answer_is_no_verdict(
    check: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripted(tmp_path, check)
    with monkeypatch.context() as impatient:
        if "sleep" in check:
            engine_code.describe(engine)
            impatient.setattr(engine_code, "_LONGEST_S", 0.3)
        assert reason in why_refused(engine, [model()])[0]
    assert why_refused(scripted(tmp_path, TAKES), [model()]) == [""], "it was asked again"


def test_a_compiler_that_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ts.UnsupportedError, match="that it refuses: it wrote no context; place"):
        compiled(scripted(tmp_path, "exit 0", "exit 0"), model())


def test_contexts_are_kept_for_one_version(tmp_path: Path) -> None:
    """Another version of the provider compiles again."""
    written = helper.make_model(onnx.load_model_from_string(model()).graph).SerializeToString()
    (tmp_path / "made").write_bytes(written)
    engine = scripted(tmp_path, "exit 0", f'cp {tmp_path}/made "$3"0.onnx')
    assert compiled(engine, model()) == compiled(engine, model()) == written
    assert asked(tmp_path, "contexts") == 1
    Path(engine.program).write_text(Path(engine.program).read_text().replace("time 1", "time 2"))
    engine_code.describe.cache_clear()
    compiled(engine, model())
    assert asked(tmp_path, "contexts") == 2
