"""Android's ``adb``: which phone is connected, and what it answers.

    adb = connected(None)                     # the only one, or that of $ANDROID_SERIAL
    adb.shell("to say its name", "getprop ro.product.model")

What goes wrong on the way to a phone ends in one `DeviceError` that says what its owner can do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_stretch.base.errors import DeviceError
from tvm_stretch.base.progress import say
from tvm_stretch.phone.link import failed

FOLDER = "/data/local/tmp/tvm_stretch"
"""Where everything lies on a phone: only there may a program run that no app brought."""

_PATIENCE = 120.0  # seconds of one command; a push over USB 2 takes half of that

_WAYS_OUT = {
    "unauthorized": "unlock the phone and accept the question about this computer's key",
    "no permissions": "let your user open it (Debian: apt-get install "
    "android-sdk-platform-tools-common, and the group plugdev), then plug it in again",
    "offline": "plug it in again, or restart adb: adb kill-server",
    "recovery": "start it as usual: adb reboot",
    "no space left": "free some memory of the phone: adb shell df -h /data",
    "read-only file system": "restart the phone; its storage was mounted read-only after an error",
    "permission denied": "look at `adb shell getenforce` and `adb logcat | grep denied`: SELinux "
    "or who manages the phone forbids programs of adb; use another phone, or an app (docs/apps.md)",
    "cannot link executable": "make the folder anew: make phone-android",
    "address already in use": "end what listens on that port, or restart the phone",
}
"""What helps, by what adb, Android's linker or our server say, in lower case."""


@dataclass(frozen=True)
class Adb:
    """A connected phone."""

    program: str  # the path of adb
    serial: str  # the phone's serial number

    def shell(self, what: str, command: str, check: bool = True) -> str:
        """What a command of the phone's shell prints; empty if it fails and ``check`` is False."""
        return self.call(what, ["shell", command], check)

    def call(self, what: str, words: Sequence[str], check: bool = True) -> str:
        """What adb prints.

        Args:
            what: the purpose, for messages: "to run a program".
            words: the command and its arguments.
            check: whether it has to succeed.

        Raises:
            DeviceError: it fails, or takes too long.
        """
        code, output = _run([self.program, "-s", self.serial, *words])
        if code and check:
            raise self.refused(what, output)
        return "" if code else output

    def refused(self, what: str, output: str) -> DeviceError:
        """The error for what the phone said, with what helps."""
        lines = [line for line in output.strip().splitlines() if line.strip()] or ["nothing"]
        signs = [
            (line, way) for line in lines for sign, way in _WAYS_OUT.items() if sign in line.lower()
        ]
        line, way_out = (*signs, (lines[-1], "look at adb logcat, and try again"))[0]
        return failed(self.serial, what, repr(line.strip()[:200]), way_out)

    def push(self, folder: Path) -> list[str]:
        """Bring the files of a folder that the phone does not have with the same content.

        Returns:
            The names of those that were sent.
        """
        self.shell("to keep files", f"mkdir -p {FOLDER}")
        listed = self.shell("to list files", f"cd {FOLDER}; sha256sum *; true")
        there = {tuple(line.split()) for line in listed.splitlines()}
        sent = []
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            if (hashlib.sha256(path.read_bytes()).hexdigest(), path.name) in there:
                continue
            say(f"sending {path.name}")
            self.call("to take a file", ["push", str(path), f"{FOLDER}/{path.name}"])
            sent.append(path.name)
        self.shell("to run a program", f"cd {FOLDER} && chmod 755 *")
        return sent


def connected(serial: str | None) -> Adb:
    """The phone with a serial number; by default that of ``$ANDROID_SERIAL``, or the only one.

    Raises:
        DeviceError: there is no adb, no such phone, or it does not let us in.
    """
    program = find_adb()
    code, output = _run([program, "devices"])
    if code:
        raise failed("adb", "to list phones", repr(output.strip()[-200:]), "adb kill-server")
    pairs = (line.split(None, 1) for line in output.splitlines()[1:] if "* daemon" not in line)
    states = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    wanted = serial or os.environ.get("ANDROID_SERIAL")
    if wanted is None and len(states) == 1:
        (wanted,) = states
    if wanted not in states:
        raise failed(
            "a phone" if wanted is None else wanted,
            "to be connected",
            f"{', '.join(sorted(states)) or 'none'}",
            "say which with --serial or $ANDROID_SERIAL"
            if states
            else "plug it in and switch on USB debugging (Settings, System, Developer options)",
        )
    adb = Adb(program, wanted)
    if states[wanted].strip() != "device":
        raise adb.refused("to let adb in", states[wanted])
    return adb


def find_adb() -> str:
    """The path of adb: in ``$PATH``, or in Android's SDK."""
    homes = [os.environ.get("ANDROID_HOME", ""), str(Path.home() / "Android/Sdk")]
    places = [os.environ.get("PATH", ""), *(f"{home}/platform-tools" for home in homes if home)]
    path = shutil.which("adb", path=os.pathsep.join(places))
    if path is None:
        raise DeviceError(
            "expected adb in $PATH or $ANDROID_HOME/platform-tools, got none; install Android's "
            "platform tools (Debian: apt-get install adb)"
        )
    return path


def _run(command: Sequence[str]) -> tuple[int, str]:
    """The exit status, and what was printed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {_PATIENCE:g} s"
    except OSError as error:
        return 1, str(error)
    return done.returncode, done.stdout.decode(errors="replace")
