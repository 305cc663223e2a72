"""Artifacts for Android run where the C library is musl, after `make phone-musl`.

Musl's loader is the C library, and takes `libm.so` and `libdl.so` for itself, so it loads
libraries that are linked against those of Android. That Android loads them is read from the
files by `tests/unit/test_android.py`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.android_elf import Library, assert_android_loads
from helpers.android_networks import NETWORKS, SAMPLE
from helpers.musl_phones import BUILT, served, server_of

import tvm_stretch as ts
from tvm_stretch.run.linking import symbols_of_android

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
FOREIGN = pytest.mark.full  # under an emulator
MACHINES = [platform.machine(), pytest.param(OTHER, marks=FOREIGN)]
LIBRARY = "libtvm_stretch_runtime.so"
FILES = (LIBRARY, "app/" + LIBRARY, "tvm_stretch_rpc", "tvm_stretch_bench")

# A build for musl calls these where one for Android calls others.
ON_ANDROID = {
    "__errno_location": "__errno",
    **dict.fromkeys(("__libc_start_main", "_init", "_fini"), "__libc_init"),
    "aligned_alloc": "posix_memalign",  # in libc++
    "bcmp": "memcmp",  # by LLVM
    "__tls_get_addr": "pthread_getspecific",  # x86-64; NDKs emulate TLS up to API 28
    "pthread_setaffinity_np": "sched_setaffinity",  # in TVM's threading_backend.cc
}


@pytest.fixture(scope="module", params=MACHINES)
def phone(request: pytest.FixtureRequest) -> Iterator[ts.Device]:
    with served(server_of(request.param)) as device:
        yield device


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.full]) for name in NETWORKS],
)
def test_an_artifact_for_android_answers_as_here(
    phone: ts.Device, name: str, tmp_path: Path
) -> None:
    network, machine = NETWORKS[name], phone.describe().triple.partition("-")[0]
    path = tmp_path / "net.so"
    network.compile({"kind": "llvm", "mtriple": f"{machine}-linux-android"}).export(path)
    assert_android_loads(path)
    here = network.compile({"kind": "llvm"})
    given = network.inputs(here)
    there, expected = phone.load(path)(**given), here(**given)
    for got, want in zip(np.atleast_1d(there), np.atleast_1d(expected), strict=True):
        if name.startswith("8 bits"):
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_errors_pass_between_c_plus_plus_libraries(phone: ts.Device) -> None:
    """An exception would end the session: the server and the library have a libc++ each."""
    for _ in range(2):
        with pytest.raises(ts.DeviceError, match="expected 64 digits"):
            phone.call("to find it", "tvm_stretch.store_path", "nothing")
        with pytest.raises(ts.DeviceError, match="has no function"):
            phone.call("to find it", "there.is.none")
    assert phone.session_number == 1
    assert phone.describe().triple.endswith("-linux-musl")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_phone_loads_the_programs(name: str, machine: str) -> None:
    """16 KB pages, no foreign C++ library, and no function that Android 8 lacks."""
    server_of(machine)
    folder = BUILT / f"{machine}-linux-musl"
    library = assert_android_loads(folder / name, (LIBRARY,))
    known = {symbol for names in symbols_of_android().values() for symbol in names}
    known.update(Library.read(folder / LIBRARY).defined)
    assert not {ON_ANDROID.get(one, one) for one in library.undefined} - known
