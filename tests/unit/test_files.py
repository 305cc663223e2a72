"""Files that are complete or not there, and how those of another format are refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import stat
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tvm_stretch.base.errors import PlanError
from tvm_stretch.base.files import (
    TEMPORARY,
    cache_folder,
    make_folder,
    read_text,
    remove_abandoned,
    sealed,
    warn_not_trusted,
    why_not_trusted,
    write_whole,
    writing,
)
from tvm_stretch.base.formats import Format

FORMAT = Format("test.point", 3, "the point", PlanError, "draw it again")


@dataclass(frozen=True)
class Point:
    at: tuple[int, int]
    name: str = ""
    colour: str = ""


@dataclass(frozen=True)
class Points:
    points: tuple[Point, ...]
    weight: float | None = None
    unsaved: int = field(default=0, compare=False)


def test_what_was_interrupted_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "point.json"
    write_whole(path, "old")

    def killed(_file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_can_be_read_by_whom_the_user_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "point.json", "{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "point.json").stat().st_mode) == 0o644


def test_nothing_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "point")
    assert os.read(reader, 100) == b"point"
    os.close(reader)


def test_what_a_process_has_open_is_written_to(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as out:
        write_whole(Path(f"/proc/self/fd/{out.fileno()}"), "point")
        assert out.read() == "point"  # as `/dev/stdout`, when a shell sends it to a file
    assert [*tmp_path.iterdir()] == [tmp_path / "out"]


def test_nothing_takes_the_place_of_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        with pytest.raises(OSError, match="a socket"):
            write_whole(path, "point")
        assert path.is_socket()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_nothing_takes_the_place_of_a_disk(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    try:
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(240, 77))  # of no driver
    except OSError:
        pytest.skip("this container has no devices")
    with pytest.raises(OSError, match="a device"):
        write_whole(path, "point")
    assert path.is_block_device()


@pytest.mark.parametrize("before", ["old", None])
def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path, before: str | None) -> None:
    (tmp_path / "folder").mkdir()
    link, file = tmp_path / "link", tmp_path / "folder" / "file"
    link.symlink_to(file)
    if before is not None:
        file.write_text(before)
    write_whole(link, "point")
    assert link.is_symlink() and file.read_text() == "point"
    assert [*file.parent.iterdir()] == [file]
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        write_whole(tmp_path / "loop", "point")


def test_what_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "point"):
        with (
            pytest.raises(PlanError, match=r"^expected a place to write the point to, got .*check"),
            writing("the point", PlanError),
        ):
            write_whole(path, "{}")


def test_lists_become_tuples() -> None:
    data = FORMAT.parse('{"format": "test.point", "version": 3, "at": [1, 2]}', "the point")
    assert FORMAT.build(Point, data, "the point") == Point((1, 2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", r"JSON for the point in .*, got .*; correct the file, or draw it again$"),
        ("\xff\xfe", r"JSON for the point in .*, got "),
        ("[]", r"an object for the point in .*, got list; draw"),
        ("{}", r"\('test.point', 3\) for the format and version of .*, got \(None, None\); draw"),
        (
            '{"format": "test.point", "version": 2}',
            r".*, got \('test.point', 2\); .* with this version",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "point.json"
    path.write_text(text, encoding="latin1")
    with pytest.raises(PlanError, match=rf"^expected {says}"):
        FORMAT.read(path)


def test_sealed_files_are_refused_when_a_byte_has_changed(tmp_path: Path) -> None:
    kind = replace(FORMAT, is_sealed=True)
    path = tmp_path / "point.json"
    write_whole(path, sealed(json.dumps({**kind.head, "at": [1, 2]})))
    assert kind.read(path) == {"at": [1, 2]}
    for content in (path.read_text().replace("[1,", "[3,"), json.dumps({**kind.head, "at": []})):
        path.write_text(content)
        with pytest.raises(
            PlanError, match=r"^expected the content that was .*point.json, got .*;"
        ):
            kind.read(path)


def test_a_full_disk_is_an_error_of_ours() -> None:
    says = r"^expected a place to write the point to, got no space.*; check the path, or make"
    with (
        pytest.raises(PlanError, match=says),
        writing("the point", PlanError),
        Path("/dev/full").open("w") as file,
    ):
        file.write("1, 2")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match=r"^expected a readable file for the point, got .*none.json"
    ):
        FORMAT.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("item", "got"), [({}, "no at"), ({"size": 1, "at": []}, "'size' too"), (7, "7")]
)
def test_other_fields_are_refused(item: object, got: str) -> None:
    says = r"^expected the fields at and perhaps name and colour for points\[1\] of x, got "
    with pytest.raises(PlanError, match=f"{says}{got}; draw it again$"):
        FORMAT.build(Points, {"points": [{"at": [1, 2]}, item]}, "x")


# --- what is no file, and what others may write ---------------------------------------------------


@pytest.mark.parametrize("kind", ["/dev/zero", "pipe", "socket", "folder", "huge"])
def test_only_files_are_read(tmp_path: Path, kind: str) -> None:
    """A device without an end, a pipe that nobody writes to: an error at once."""
    path = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 2**40)
    elif kind == "socket":
        with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as sock:
            sock.bind(kind)
    with pytest.raises(PlanError, match=rf"^expected a readable file .*, got .* at {path}; check"):
        FORMAT.read(path)
    with pytest.raises(PlanError, match=r"^expected the point, got .*; check the path"):
        read_text(path, "the point", PlanError)


def test_no_name_of_a_temporary_file_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever guesses it lays a symbolic link there, and its target is overwritten."""
    victim, path = tmp_path / "victim", tmp_path / "point.json"
    victim.write_text("precious")
    (tmp_path / f".point.json.{os.getpid()}.{threading.get_ident()}{TEMPORARY}").symlink_to(victim)
    write_whole(path, "new")
    assert (path.read_text(), victim.read_text()) == ("new", "precious")

    monkeypatch.setattr(secrets, "token_hex", lambda _bytes: "guessed")
    (tmp_path / f".point.json.guessed{TEMPORARY}").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(path, "newer")
    assert (path.read_text(), victim.read_text()) == ("new", "precious")


def test_pipes_and_links_among_temporary_files_are_no_hindrance(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tmp")
    (tmp_path / "kept").write_text("precious")
    (tmp_path / "link.tmp").symlink_to(tmp_path / "kept")
    for path in tmp_path.glob("*.tmp"):
        remove_abandoned(path)
    assert (tmp_path / "kept").read_text() == "precious"
    assert not (tmp_path / "pipe.tmp").exists()


def test_folders_that_others_may_write_are_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "cache" / "kernels"
    make_folder(folder)
    assert why_not_trusted(folder) is None
    assert why_not_trusted(folder / "not" / "there") is None
    for place in (folder, folder.parent, folder.parent.parent):
        for mode in (0o777, 0o775, 0o757):
            place.chmod(mode)
            assert f"others may write to {place} (mode {mode:o})" == why_not_trusted(folder)
        place.chmod(0o755)
    (tmp_path / "link").symlink_to(folder.parent)
    folder.parent.chmod(0o777)
    assert why_not_trusted(tmp_path / "link" / "kernels") is not None
    folder.parent.chmod(0o1777)  # as /tmp: what is ours there stays ours
    assert why_not_trusted(folder) is None
    assert why_not_trusted(folder.parent) is not None, "anybody may add files"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert why_not_trusted(tmp_path / "loop" / "kernels") is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_folders_of_others_are_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    assert why_not_trusted(folder / "kernels") == f"{folder} belongs to user 65534"


def test_folders_are_made_for_us_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert why_not_trusted(tmp_path / "a" / "b") is None


def test_it_is_said_once_that_a_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warn_not_trusted.cache_clear()
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    assert cache_folder("kernels") == tmp_path / "kernels"
    tmp_path.chmod(0o777)
    assert [cache_folder("kernels"), cache_folder("plans")] == [None, None]
    (record,) = caplog.records
    assert re.match(r"expected a cache folder .*, got none: .*; nothing is kept", record.message)
    assert f"{tmp_path} (mode 777)" in record.message and "chmod go-w" in record.message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"points": {}}, r"a list for points of x, got \{\}"),
        ({"points": [{"at": [1]}]}, r"a list of 2 for at of points\[0\] of x, got \[1\]"),
        ({"points": [{"at": [1, True]}]}, r"a whole number for at\[1\] of points\[0\] of x, got T"),
        ({"points": [], "weight": float("inf")}, r"a number for weight of x, got inf"),
        ({"points": [], "unsaved": 1}, r"the fields points and perhaps weight for x, got"),
    ],
)
def test_values_have_the_types_of_their_fields(data: object, says: str) -> None:
    with pytest.raises(PlanError, match=f"^expected {says}.*; draw it again$"):
        FORMAT.build(Points, data, "x")
    found = FORMAT.build(Points, {"points": [{"at": [1, 2]}], "weight": 3}, "x")
    assert found == Points((Point((1, 2)),), 3)
