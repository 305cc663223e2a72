"""A phone on a cable that is not there: what ``adb`` prints and does, by a script.

    adb = ScriptedAdb(folder, monkeypatch)          # first in $PATH
    adb.say(state="unauthorized")                   # or properties, and what fails

The phone's storage is a folder, and its programs run on this machine (under qemu, if the script
names an emulator). Ports are those of this machine, so forwarding has nothing to do. The messages
are those of adb 34 and of Android's shell, as its public documentation and sources show them.

    python tests/helpers/scripted_adb.py loopback build/phone/aarch64      # the whole way, emulated
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PLACE = "/data/local/tmp/tvm_stretch"
PIXEL = {
    "ro.product.model": "Pixel 8",
    "ro.product.cpu.abilist": "arm64-v8a",
    "ro.build.version.sdk": "34",
}


class ScriptedAdb:
    """The owner's side: puts ``adb`` into a folder, and tells it what to say.

    Args:
        folder: for the program, its script and the phone's storage.
        properties: what getprop says.
        said: see `say`.
    """

    def __init__(self, folder: Path, properties: dict[str, str] = PIXEL, **said: Any) -> None:
        self.folder = folder
        self.storage = folder / "storage"
        self.storage.mkdir(parents=True)
        program = folder / "adb"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "{folder}" "$@"\n')
        program.chmod(0o755)
        self.said: dict[str, Any] = {"properties": properties}
        self.say(**said)

    def say(self, **said: Any) -> None:
        """Change the script.

        Args:
            said: ``devices`` (lines of serial and state), ``properties``, ``fail`` (a word of the
                command, and what it says when it fails), ``answer`` (a part of a shell's command,
                and what it prints), ``emulator`` (words before a program of the phone).
        """
        self.said |= said
        (self.folder / "script.json").write_text(json.dumps(self.said))

    def environment(self) -> dict[str, str]:
        """Variables of a process that finds this adb."""
        return {"PATH": f"{self.folder}:{os.environ['PATH']}"}

    def calls(self) -> list[list[str]]:
        """The words of all calls."""
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def main(folder: Path, words: list[str]) -> int:
    """One call of adb."""
    script = json.loads((folder / "script.json").read_text())
    with (folder / "calls").open("a") as log:
        log.write(json.dumps(words) + "\n")
    if words[0] == "devices":
        print("List of devices attached")
        for line in script.get("devices", ["39181FDJG000AB\tdevice"]):
            print(line)
        print()
        return 0
    assert words[0] == "-s"
    _, _, command, *rest = words
    for sign, said in script.get("fail", {}).items():
        if sign in " ".join(words[2:]):
            print(said, file=sys.stderr)
            return 1
    for sign, said in script.get("answer", {}).items():
        if sign in " ".join(words[2:]):
            print(said)
            return 0
    if command == "push":
        place = folder / "storage" / Path(rest[1]).relative_to(PLACE)
        shutil.copy(rest[0], place)
        print(f"{rest[0]}: 1 file pushed, 0 skipped. 31.4 MB/s in 0.1s")
        return 0
    if command in ("forward", "reverse"):
        return ports(folder, words[1], command, rest)
    assert command == "shell"
    return shell(folder, script, rest[0])


def ports(folder: Path, serial: str, command: str, rest: list[str]) -> int:
    """Keep a list of ports, as adb does."""
    path = folder / command
    kept = path.read_text().splitlines() if path.exists() else []
    if rest[0] == "--list":
        print("\n".join(kept))
    elif rest[0] == "--remove":
        left = [line for line in kept if line.split()[1] != rest[1]]
        if left == kept:
            print(f"adb: error: listener '{rest[1]}' not found", file=sys.stderr)
            return 1
        kept = left
    elif rest[0] == "--remove-all":
        kept = []
    else:
        kept.append(f"{serial} {rest[0]} {rest[1]}")
    path.write_text("".join(f"{line}\n" for line in kept))
    return 0


def shell(folder: Path, script: dict[str, Any], command: str) -> int:
    """The phone's shell: ours, with its folder, its properties and its programs."""
    emulator = script.get("emulator", "")
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    cases = "".join(f"{key}) echo '{value}';;\n" for key, value in script["properties"].items())
    (tools / "getprop").write_text(f"#!/bin/sh\ncase $1 in\n{cases}esac\n")
    heat = script.get("heat", 0)
    (tools / "dumpsys").write_text(f"#!/bin/sh\necho 'Thermal Status: {heat}'\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    command = command.replace(PLACE, str(folder / "storage"))
    command = command.replace("/vendor/", f"{folder}/vendor/")
    command = command.replace("nohup ./", f"nohup setsid {emulator} ./")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", command], env=environment, check=False).returncode


def loopback(files: str) -> int:
    """``tvm-stretch phone`` with files for aarch64, which qemu runs, and its end."""
    from tvm_stretch.api import cli

    with tempfile.TemporaryDirectory() as folder:
        run = "qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=."
        adb = ScriptedAdb(Path(folder, "phone"), emulator=run)
        os.environ.update(adb.environment())
        code = cli.main(["phone", "--folder", files, "--name", "loopback"])
        return cli.main(["phone", "--stop"]) or code


if __name__ == "__main__":
    if sys.argv[1] == "loopback":
        sys.exit(loopback(sys.argv[2]))
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
