"""The properties of a processor that kernel templates need: vectors, registers and caches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_stretch.targets.opencl.kernels.machine import GpuMachine

KIB = 1024


@dataclass(frozen=True)
class VectorMachine:
    """The vector unit of one core, and the number of cores that share the work."""

    # numbers in a vector register, float32 or, with ``half``, float16; also the channels of a
    # block in the blocked layout
    lanes: int
    registers: int  # architectural vector registers
    # whether a multiply-add can take one lane of a register as operand (as NEON's ``fmla`` by
    # element). LLVM does not use AVX-512's ``{1to16}`` in these nests.
    broadcast_operand: bool
    l2_bytes: int  # private second-level cache of one core
    threads: int  # cores that a kernel may use
    # the GPU, for a processor that runs work-groups; None for cores that run loops
    gpu: GpuMachine | None = None
    multiply_adds: float = 2.0  # vector multiply-adds that start in a cycle
    loads: float = 2.0  # vector loads in a cycle
    latency: int = 4  # cycles from one multiply-add to the next of the same sum
    l1_bytes: int = 32 * KIB  # first-level data cache of one core
    in_order: bool = False  # whether multiply-adds wait for earlier loads that they do not need
    dot: str = ""  # the way in which products of 8-bit numbers are added; a key of `dots.DOTS`
    # whether convolutions of 8-bit numbers are computed in float32 (`integer_blocks.py`)
    float_integers: bool = False
    # whether it is a DSP: its vectors hold no floats, and byte stores are packed vectors
    # (`hvx_stores.py`)
    dsp: bool = False
    # whether layers are computed in float16, with twice the lanes (`passes/use_half.py`)
    half: bool = False
    # whether an instruction makes float32 of a vector of float16 (`weights.py`)
    widens_half: bool = False
    # whether layers are computed in bfloat16 (`bfloat.py`)
    bfloat: bool = False
    # whether weights are prefetched into the nearest cache, because prefetches into the second
    # one are often dropped, as seen in measurements
    asks_nearest: bool = False
    # whether dense layers of rows are slower in tiles that fill 32 registers, too (`cycles.py`)
    crowded_rows: bool = False

    @property
    def kind(self) -> str:
        """``gpu``, ``dsp`` or ``core``: which templates the machine has (`Template.machines`)."""
        if self.gpu is not None:
            return "gpu"
        return "dsp" if self.dsp else "core"

    def summing(self, dtype: str) -> VectorMachine:
        """The machine for sums of a type: a vector of float32 sums takes two registers."""
        if not self.half or dtype == "float16":
            return self
        return replace(self, registers=self.registers // 2, multiply_adds=self.multiply_adds / 2)

    @property
    def plain(self) -> VectorMachine:
        """The machine for float32 operators that need no blocks of channels."""
        return replace(self, lanes=self.lanes // 2, half=False) if self.half else self


@dataclass(frozen=True)
class Core:
    """Properties of a core beyond its instruction set, as its maker states them."""

    l1_bytes: int
    l2_bytes: int
    latency: int = 4
    multiply_adds: float = 2.0
    loads: float = 2.0
    in_order: bool = False
    asks_nearest: bool = False
    crowded_rows: bool = False


_SKYLAKE_SERVER = Core(32 * KIB, 1024 * KIB)
_ICELAKE_CLIENT = Core(48 * KIB, 512 * KIB)
_SAPPHIRE_RAPIDS = Core(48 * KIB, 2048 * KIB)
_ZEN = Core(32 * KIB, 1024 * KIB, asks_nearest=True, crowded_rows=True)
_A76 = Core(64 * KIB, 256 * KIB)
_N1 = Core(64 * KIB, 1024 * KIB)
_APPLE = Core(128 * KIB, 3072 * KIB, multiply_adds=4.0, loads=3.0)

CORES: dict[str, Core] = {
    "haswell": Core(32 * KIB, 256 * KIB, latency=5),
    "broadwell": Core(32 * KIB, 256 * KIB, latency=5),
    "skylake": Core(32 * KIB, 256 * KIB),
    "skylake-avx512": _SKYLAKE_SERVER,
    "cascadelake": _SKYLAKE_SERVER,
    "icelake-client": _ICELAKE_CLIENT,
    "rocketlake": _ICELAKE_CLIENT,
    "tigerlake": Core(48 * KIB, 1280 * KIB),
    "icelake-server": Core(48 * KIB, 1280 * KIB),
    "alderlake": Core(48 * KIB, 1280 * KIB),
    "sapphirerapids": _SAPPHIRE_RAPIDS,
    "emeraldrapids": _SAPPHIRE_RAPIDS,
    "graniterapids": _SAPPHIRE_RAPIDS,
    "znver1": Core(32 * KIB, 512 * KIB, latency=5, multiply_adds=1.0, asks_nearest=True),
    "znver2": Core(32 * KIB, 512 * KIB, latency=5, asks_nearest=True),
    "znver3": Core(32 * KIB, 512 * KIB, asks_nearest=True),
    # vectors of 512 bits pass through pipes of 256 bits in two halves
    "znver4": replace(_ZEN, multiply_adds=1.0, loads=1.0),
    "znver5": replace(_ZEN, l1_bytes=48 * KIB),
    "cortex-a53": Core(32 * KIB, 256 * KIB, latency=8, multiply_adds=1.0, loads=0.5, in_order=True),
    "cortex-a55": Core(32 * KIB, 128 * KIB, multiply_adds=1.0, loads=0.5, in_order=True),
    "cortex-a72": Core(32 * KIB, 512 * KIB, latency=7, loads=1.0),
    "cortex-a73": Core(32 * KIB, 512 * KIB, latency=7, loads=1.0),
    "cortex-a75": Core(64 * KIB, 256 * KIB),
    "cortex-a76": _A76,
    "cortex-a77": _A76,
    "cortex-a78": _A76,
    "cortex-x1": Core(64 * KIB, 1024 * KIB, multiply_adds=4.0, loads=3.0),
    "neoverse-n1": _N1,
    "neoverse-n2": _N1,
    "neoverse-v1": Core(64 * KIB, 1024 * KIB, multiply_adds=4.0, loads=3.0),
    "apple-m1": _APPLE,
    "apple-m2": _APPLE,
}
"""By LLVM's names; other cores are treated as common cores of their instruction set."""
