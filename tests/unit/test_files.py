"""Files that are complete or not there, and how those of another format are refused."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tvm_stretch.errors import PlanError
from tvm_stretch.files import Format, sealed, write_whole, writing

FORMAT = Format("test.point", 3, "the point", PlanError, "draw it again")


@dataclass(frozen=True)
class Point:
    at: tuple[int, int]
    name: str = ""
    colour: str = ""


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
    says = r"^expected a place to write the point to, got .*No space.*; check the path, or make"
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
    ("item", "got"), [({}, r"\[\]"), ({"at": [], "size": 1}, r"\['at', 'size'\]"), (7, "7")]
)
def test_other_fields_are_refused(item: object, got: str) -> None:
    says = r"^expected the fields at and perhaps name and colour for points\[1\] of x, got "
    with pytest.raises(PlanError, match=f"{says}{got}; draw it again$"):
        FORMAT.build_all(Point, [{"at": [1, 2]}, item], "points", "x")
