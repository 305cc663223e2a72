"""Peers that see no AVX-512: what their libraries are told, and what is seen of their registers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import only_avx2
from benchmarks.peers import Row, main, why_no_time

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or "avx2" not in Path("/proc/cpuinfo").read_text(),
    reason="not an x86 machine",
)

# leaf 7 as a library reads it; a number whose bytes are those of CPUID, which must stay
LIBRARY = r"""
#include <cpuid.h>
unsigned decoy(void) { return 0xA20FA20F; }
unsigned features(unsigned part, int which) {
  unsigned r[4];
  __cpuid_count(7, part, r[0], r[1], r[2], r[3]);
  return r[which];
}
void wide(void) {
  for (int i = 0; i < 100000; ++i) __asm__ volatile("vaddps %zmm20, %zmm21, %zmm21");
}
void narrow(void) {
  for (int i = 0; i < 100000; ++i) __asm__ volatile("vaddps %%ymm1, %%ymm2, %%ymm2" ::: "xmm2");
}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a library, as it is installed."""
    monkeypatch.setenv("TVM_STRETCH_BENCH_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "site"
    (root / "peer").mkdir(parents=True)
    (root / "peer" / "peer.c").write_text(LIBRARY)
    built = root / "peer" / "peer.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", built, root / "peer" / "peer.c"]
    subprocess.run(command, check=True)
    return root


def ask(library: Path, expression: str) -> str:
    """What an expression about a library says in a process where CPUID is answered for it."""
    code = (
        f"import ctypes; from benchmarks import only_avx2; peer = ctypes.CDLL({str(library)!r});"
        f"print({expression})"
    )
    environment = only_avx2.variables() | {"PATH": "/usr/bin:/bin"}
    root = Path(only_avx2.__file__).parents[1]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FEATURES = "[peer.features(part, i) & 0xFFFFFFFF for part in (0, 1) for i in range(4)]"


def test_a_library_sees_everything_but_avx512(package):
    only_avx2.copy_masked(package, ["peer/peer.so", "peer/peer.c", "../bin/peer"], package / "copy")
    copy = package / "copy" / "peer"
    assert (copy / "peer.c").is_symlink() and not (copy / "peer.so").is_symlink()
    before = eval(ask(package / "peer" / "peer.so", FEATURES))
    told = eval(ask(copy / "peer.so", FEATURES))
    assert told[1] >> 5 & 1  # AVX2
    assert not told[1] & (1 << 16 | 1 << 17 | 1 << 30 | 1 << 31)  # AVX-512 F, DQ, BW, VL
    assert told[1] | before[1] == before[1] and told[0] == 0 and told[4:] == [0] * 4
    assert ask(copy / "peer.so", "peer.decoy() & 0xFFFFFFFF") == str(0xA20FA20F)


def test_a_library_that_never_asks_is_no_copy(package):
    source = package / "quiet.so"
    subprocess.run(["cc", "-shared", "-x", "c", "-o", source, "/dev/null"], check=True)
    assert only_avx2.mask(source, package / "copy.so") == 0
    assert not (package / "copy.so").exists()


def test_registers_of_avx512_are_seen(package):
    library = package / "peer" / "peer.so"
    share = "only_avx2.share_of_avx512(peer.{}, 0.1)"
    assert ask(library, share.format("narrow")) == "0.0"
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        assert float(ask(library, share.format("wide"))) > 0


def test_an_engine_that_uses_avx512_gets_no_time():
    answer = [np.ones(2)]
    wide, narrow = (
        SimpleNamespace(share_of_avx512=lambda share=share: share, outputs=lambda: answer)
        for share in (0.25, 0.0)
    )
    why = [why_no_time(Row("net", 1, "mnn"), one, answer, 1e-3, True) for one in (wide, narrow)]
    assert why == ["AVX-512 in use: in 25% of samples of registers", None]


def test_ours_need_a_core_without_avx512():
    with pytest.raises(SystemExit, match="expected --mcpu with --only-avx2"):
        main(["--only-avx2"])
