"""``tvm-stretch phone``, with a scripted adb: what the owner of a phone sees."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from helpers.rpc_processes import Tracker
from helpers.scripted_adb import PIXEL, ScriptedAdb

import tvm_stretch as ts
from tvm_stretch.api.cli import main
from tvm_stretch.api.phone import clean_up, prepare
from tvm_stretch.run.autoload import find_file

X86 = {**PIXEL, "ro.product.cpu.abilist": "x86_64"}


@pytest.fixture
def adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAdb]:
    """A phone of this machine's kind."""
    adb = ScriptedAdb(tmp_path / "phone", X86)
    monkeypatch.setenv("PATH", adb.environment()["PATH"])
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tvm_stretch.api.phone._SIZE", 7)  # an emulated DSP is slow
    yield adb
    adb.say(fail={}, answer={}, devices=["39181FDJG000AB\tdevice"])
    clean_up()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What a phone of this machine's kind needs."""
    folder = tmp_path / "files"
    folder.mkdir()
    places = [find_file("bin/tvm_stretch_rpc"), find_file("lib/libtvm_stretch_runtime.so")]
    places += [Path(tvm.__file__).parent / "lib/libtvm_runtime.so"]
    places += [Path(tvm_ffi.__file__).parent / "lib/libtvm_ffi.so"]
    for place in places:
        shutil.copy(place, folder)
    return folder


@pytest.fixture
def tracker() -> Iterator[str]:
    """The address of a tracker, which is there at once."""
    running = Tracker()
    yield running.address
    running.kill()


@pytest.fixture
def nowhere() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_from_the_cable_to_a_compiled_network(
    adb: ScriptedAdb, files: Path, nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command; a second one sends nothing; the name serves device= and ts.connect."""
    options = ["phone", "--folder", str(files), "--tracker", nowhere, "--json"]
    assert main(options) == 0
    ready = json.loads(capsys.readouterr().out)
    assert ready["name"] == "pixel-8" and len(ready["sent"]) == 4
    assert ready["tried"][0]["processor"] == "cpu"
    assert all(tried["seconds"] for tried in ready["tried"]), ready["tried"]
    assert main(options) == 0
    assert json.loads(capsys.readouterr().out)["sent"] == []
    with ts.connect(nowhere, "pixel-8") as phone:
        assert phone.describe().cores
    (files / "libtvm_ffi.so").write_bytes((files / "libtvm_ffi.so").read_bytes() + b" ")
    assert prepare(folder=files, tracker=nowhere).sent == ["libtvm_ffi.so"]
    assert main(["phone", "--stop"]) == 0
    assert "the tracker has ended" in capsys.readouterr().out
    assert not adb.storage.exists()
    assert not (adb.folder / "forward").read_text() + (adb.folder / "reverse").read_text()
    with pytest.raises(ts.DeviceError, match="start it with"):
        ts.connect(nowhere, "pixel-8", wait=1)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"devices": []}, "got none; plug it in and switch on USB debugging"),
        ({"devices": ["A\tdevice", "B\tdevice"]}, "got A, B; say which with --serial"),
        ({"devices": ["A\tunauthorized"]}, "got 'unauthorized'; unlock the phone"),
        ({"devices": ["A\toffline"]}, "got 'offline'; plug it in again"),
        (
            {"devices": ["A\tno permissions (user in plugdev group; are your udev rules wrong?)"]},
            "group plugdev., then plug it in again",
        ),
        ({"properties": {**PIXEL, "ro.product.cpu.abilist": "armeabi-v7a"}}, "phones of 32 bits"),
        ({"properties": {**X86, "ro.build.version.sdk": "24"}}, "Android 8"),
        (
            {"fail": {"push": "adb: error: failed to copy 'x': remote write failed: "
             "No space left on device"}},
            "free some memory of the phone",
        ),
        (
            {"answer": {"server.log'": ""}, "fail": {"nohup": "sh: ./x: can't execute: "
             "Permission denied"}},
            "getenforce",
        ),
        (
            {"answer": {"cat /data/local/tmp/tvm_stretch/server.log": "CANNOT LINK EXECUTABLE "
             '"./tvm_stretch_rpc": library "libtvm_ffi.so" not found', "kill -0": "no"}},
            "make phone-android",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_a_way_out(
    adb: ScriptedAdb, files: Path, tracker: str, said: dict[str, object], expected: str
) -> None:
    adb.say(**said)
    with pytest.raises(ts.DeviceError, match=expected):
        prepare(folder=files, tracker=tracker)
    adb.say(properties=X86)


def test_without_adb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PATH", "HOME", "ANDROID_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(ts.DeviceError, match="apt-get install adb"):
        prepare()


def test_a_folder_without_a_server(adb: ScriptedAdb, tmp_path: Path) -> None:
    with pytest.raises(ts.InputError, match="call make phone-android"):
        prepare(folder=tmp_path)


@pytest.mark.parametrize("where", ["here", "192.0.2.7:9"])
def test_a_tracker_that_is_none(adb: ScriptedAdb, files: Path, where: str) -> None:
    with pytest.raises(ts.StretchError, match="tracker"):
        prepare(folder=files, tracker=where)


def test_drivers_and_heat(adb: ScriptedAdb, files: Path, tracker: str) -> None:
    """Whether an app may load OpenCL, and whether times are those of a cool phone."""
    (adb.folder / "vendor/etc").mkdir(parents=True)
    listed = adb.folder / "vendor/etc/public.libraries.txt"
    listed.write_text("libcdsprpc.so\nlibOpenCL.so\n")
    adb.say(heat=3)
    ready = prepare(folder=files, tracker=tracker)
    assert "it lowers its clocks (thermal status 3)" in ready.advice[-1]
    about_opencl = "uses-native-library" if ready.description.opencl else "ships no driver"
    assert about_opencl in ready.advice[0]
    assert f'device="{ready.name}"' in str(ready)
