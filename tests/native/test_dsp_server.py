"""The DSP's side on this machine, under sanitizers: what it believes of programs and commands."""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.dsp_protocol import (
    ANSWER,
    BAD_COMMAND,
    BAD_NODE,
    BAD_PROGRAM,
    BAD_REGION,
    BAD_TENSOR,
    BLOCK,
    COMMAND,
    COPY,
    FAILED,
    INVOKE,
    MOST_ARGS,
    OK,
    PING,
    PROGRAM_OFFSET,
    SHUT_DOWN,
    WEIGHTS,
    Node,
    Program,
    Tensor,
    answer,
    command,
    fingerprint,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm_ffi import libinfo

from tvm_stretch.targets.hexagon.code.dsp_code import SOURCES

SIZES = (4096, 512)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g0", "-O1", "-w")
FOLDER = Path(__file__).resolve().parents[2] / "build" / "dsp"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@functools.cache
def built(name: str, *sources: str) -> Path:
    """A program of the DSP's sources and the kernels of dsp_cases.c, whose `main` it may lack."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    program = FOLDER / f"{name}-{os.getpid()}"
    parts = (*sources, "dispatch.c", "kernel_support.c", "linux.c")
    own = [str(SOURCES / source) for source in parts]
    includes = [f"-I{folder}" for folder in (SOURCES, *libinfo.include_paths())]
    kernels = ["-c", str(Path(__file__).parent / "dsp_cases.c"), "-o", f"{program}.o"]
    renamed = ["-Dmain=unused_main"] if sources else []
    for words in ([*renamed, *kernels], [*own, f"{program}.o", "-o", str(program)]):
        done = subprocess.run(
            ["cc", *SANITIZERS, *includes, *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def cases() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [built("cases")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        yield process
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()


def ask(cases: Any, image: bytes, region: int = 0) -> tuple[int, int, int, int]:
    """Status and detail of loading a program and of running one of its regions."""
    cases.stdin.write(struct.pack("<QQII", *SIZES, region, len(image)) + image)
    cases.stdin.flush()
    got = cases.stdout.read(16)
    assert len(got) == 16, cases.stderr.read().decode()
    return struct.unpack("<4I", got)


# --- programs -------------------------------------------------------------------------------------

GOOD = Program(
    tensors=(
        Tensor(BLOCK, 0, (4, 8), (8, 1)),
        Tensor(WEIGHTS, 8, (500,), (1,)),
        Tensor(BLOCK, 4064, (32,), (1,)),
    ),
    nodes=(Node(0, (0, 1), (2,)), Node(COPY, (0,), (2,)), Node(1, (0,), (2,))),
    regions=((0, 2), (2, 1), (3, 0)),
)

extents = st.one_of(st.integers(0, 9), st.sampled_from([-1, 2**31, 2**40, 2**62, 2**63 - 1]))
dims = st.lists(st.tuples(extents, extents), max_size=5)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    pairs = draw(dims)
    return Tensor(
        draw(st.sampled_from([BLOCK, BLOCK, BLOCK, WEIGHTS, 2])),
        draw(st.one_of(st.integers(0, 520).map(lambda n: 8 * n), st.sampled_from([3, 2**63]))),
        tuple(extent for extent, _ in pairs),
        tuple(stride for _, stride in pairs),
        draw(st.sampled_from([1, 8, 16, 32, 64, 0])),
        draw(st.sampled_from([1, 1, 1, 4, 0])),
    )


@settings(max_examples=max(60, settings().max_examples * 12))
@given(st.lists(tensors(), max_size=4), st.integers(0, 5))
def test_tensors_lie_in_their_memory(cases: Any, found: list[Tensor], shift: int) -> None:
    """As Python reckons it, with numbers of any size; the sanitizer watches the kernels."""
    nodes = [Node(0, (i,), ()) for i in range(len(found))]
    status, detail, ran, _ = ask(cases, Program(found, nodes, ((0, len(nodes)),)).pack())
    wrong = [i for i, tensor in enumerate(found) if not tensor.fits(SIZES)]
    if wrong:
        assert (status, detail) == (BAD_TENSOR, wrong[0])
        return
    odd = [i for i, tensor in enumerate(found) if tensor.offset % 8]
    if odd:
        assert (status, detail) == (BAD_NODE, odd[0])
    else:
        assert (status, ran) == (OK, OK)


@settings(max_examples=max(60, settings().max_examples * 12))
@given(st.data())
def test_damaged_programs_are_refused(cases: Any, data: st.DataObject) -> None:
    image = bytearray(GOOD.pack())
    tables = len(image) - 3 * 24
    kind = data.draw(st.sampled_from(["byte", "cut", "words"]))
    if kind == "cut":
        image = image[: data.draw(st.integers(0, len(image) - 1))]
    elif kind == "byte":
        image[data.draw(st.integers(0, tables - 1))] ^= data.draw(st.integers(1, 255))
    else:
        for _ in range(data.draw(st.integers(1, 6))):
            place = 4 * data.draw(st.integers(0, tables // 4 - 1))
            value = data.draw(st.sampled_from([0, 1, 2**20, 2**31, 2**32 - 1]))
            before = bytes(image[place : place + 4])
            struct.pack_into("<I", image, place, value)
            if before == bytes(image[place : place + 4]):
                return
    assert ask(cases, bytes(image))[0] == BAD_PROGRAM


@settings(max_examples=max(60, settings().max_examples * 12))
@given(st.data())
def test_wrong_programs_touch_nothing_else(cases: Any, data: st.DataObject) -> None:
    """Words of the tables are anything, and the check fits them: a host that went mad."""
    image = bytearray(GOOD.pack())
    header = struct.unpack_from("<IIQ4I", image)
    end = 32 + header[2]
    for _ in range(data.draw(st.integers(1, 8))):
        place = 4 * data.draw(st.integers(8, end // 4 - 1))
        value = data.draw(st.one_of(st.integers(0, 8), st.integers(0, 2**32 - 1)))
        struct.pack_into("<I", image, place, value)
    struct.pack_into("<I", image, 4, fingerprint(bytes(image[32:end])))
    status, _, ran, _ = ask(cases, bytes(image), data.draw(st.integers(0, 4)))
    assert status in (OK, BAD_TENSOR, BAD_NODE, BAD_REGION)
    assert ran in (OK, BAD_REGION, FAILED)


@pytest.mark.parametrize(
    "nodes",
    [
        (Node(2, (0,), (2,)),),  # no such kernel
        (Node(0, (3,), (2,)),),  # no such tensor
        (Node(0, (0,), (1,)),),  # writes weights
        (Node(COPY, (0, 0), (2,)),),
        (Node(COPY, (1,), (2,)),),  # not as long
        (Node(0, (0,) * (MOST_ARGS + 1), (2,)),),
    ],
)
def test_nodes(cases: Any, nodes: tuple[Node, ...]) -> None:
    assert ask(cases, Program(GOOD.tensors, nodes, ((0, 1),)).pack())[:2] == (BAD_NODE, 0)


def test_copies_begin_at_any_byte(cases: Any) -> None:
    odd = (Tensor(WEIGHTS, 1, (75,), (1,)), Tensor(BLOCK, 75, (75,), (1,)))
    copy, kernel = Node(COPY, (0,), (1,)), Node(0, (0,), (1,))
    assert ask(cases, Program(odd, (copy,), ((0, 1),)).pack()) == (OK, 0, OK, 0)
    assert ask(cases, Program(odd, (copy, kernel), ((0, 2),)).pack())[:2] == (BAD_NODE, 1)


def test_regions(cases: Any) -> None:
    image = GOOD.pack()
    assert ask(cases, image, 0) == (OK, 0, OK, 0)
    assert ask(cases, image, 1) == (OK, 0, FAILED, 2)
    assert ask(cases, image, 2) == (OK, 0, OK, 0)
    assert ask(cases, image, 3) == (OK, 0, BAD_REGION, 3)
    long = Program(GOOD.tensors, GOOD.nodes, ((2, 2),))
    assert ask(cases, long.pack())[:2] == (BAD_REGION, 0)


# --- commands -------------------------------------------------------------------------------------


class Server:
    """A server whose mailbox the test writes."""

    def __init__(self, program: bytes) -> None:
        sizes = (PROGRAM_OFFSET + len(program), *SIZES)
        files = [os.memfd_create("test") for _ in sizes]
        for file, size in zip(files, sizes, strict=True):
            os.ftruncate(file, size)
        os.pwrite(files[0], program, PROGRAM_OFFSET)
        self.memory = mmap.mmap(files[0], sizes[0])
        self.number = 0
        self.process = subprocess.Popen(
            [built("server", "server.c"), *map(str, files), "9000000"],  # nobody wakes it here
            pass_fds=files,
            stderr=subprocess.PIPE,
        )
        for file in files:
            os.close(file)

    def say(self, fields: bytes) -> tuple[int, int]:
        """Status and detail of the answer; `fields` are those of a command."""
        self.memory[COMMAND + 4 : COMMAND + len(fields)] = fields[4:]
        self.memory[COMMAND : COMMAND + 4] = fields[:4]
        number = struct.unpack_from("<I", fields)[0]
        give_up = time.monotonic() + 20
        while struct.unpack_from("<I", self.memory, ANSWER)[0] != number:
            assert self.process.poll() is None, self.process.communicate()[1].decode()
            assert time.monotonic() < give_up
            time.sleep(0.0001)
        return answer(self.memory)[1:]

    def command(self, operation: int, region: int = 0, traced: int = 0) -> tuple[int, int]:
        self.number += 1
        return self.say(command(self.number, operation, region, traced))

    def end(self) -> None:
        assert self.command(SHUT_DOWN) == (OK, 0)
        errors = self.process.communicate(timeout=20)[1]
        assert self.process.returncode == 0, errors.decode()


def test_commands() -> None:
    server = Server(GOOD.pack())
    assert server.command(PING) == (OK, 0)
    assert server.command(INVOKE, 0, traced=1) == (OK, 0)
    start, end, _ = struct.unpack_from("<3Q", server.memory, len(server.memory) - 3 * 24)
    assert 0 < start <= end
    assert server.command(INVOKE, 1) == (FAILED, 2)
    assert b"RuntimeError: xxx" in server.memory[:PROGRAM_OFFSET]
    assert server.command(INVOKE, 7) == (BAD_REGION, 7)
    assert server.command(9) == (BAD_COMMAND, 0)
    server.end()


def test_a_damaged_program_is_told_in_every_answer() -> None:
    program = bytearray(GOOD.pack())
    program[60] ^= 1
    server = Server(bytes(program))
    assert server.command(PING) == (BAD_PROGRAM, 0)
    assert server.command(INVOKE) == (BAD_PROGRAM, 0)
    server.end()


words = st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4)


@settings(max_examples=max(10, settings().max_examples // 3))
@given(st.lists(st.tuples(words, st.integers(0, 100)), min_size=1, max_size=40))
def test_garbage_in_the_mailbox(said: list[tuple[list[int], int]]) -> None:
    """The program may be written over too: it was copied."""
    server = Server(GOOD.pack())
    assert server.command(PING) == (OK, 0)
    server.memory[PROGRAM_OFFSET:] = b"\xa5" * (len(server.memory) - PROGRAM_OFFSET)
    for fields, step in said:
        server.number = (server.number + 1 + step) & 0xFFFFFFFF
        assert server.say(struct.pack("<5I", server.number, *fields)) == (BAD_COMMAND, 0)
        assert server.command(INVOKE, 0, traced=1) == (OK, 0)
    server.end()


@pytest.mark.parametrize("words", [(), ("3", "4", "x", "0"), ("90", "91", "92", "0")])
def test_wrong_arguments_end_it(words: tuple[str, ...]) -> None:
    assert subprocess.run([built("server", "server.c"), *words]).returncode in (64, 65)
