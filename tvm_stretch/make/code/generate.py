"""Generate code of kernels once: kernels in the cache are neither scheduled nor compiled.

    fused_conv2d16_add3(relu_4, lv8, ..)   ->   fused_conv2d_add_51cde0b2a9f3(t0, t1, ..)

A kernel's name identifies what it computes and for which machine. Candidates of one compilation,
and other networks, name their kernels and tensors differently; compilation does not depend on these
names, so the bytes of an artifact are the same with and without the cache. The cache's key covers
all files whose code generates kernels:

    make/code/*.py, targets/**/{kernels,code}/*.py, passes/schedule_kernels.py
      │ from tvm_stretch.network.rewriting import rewrite
      ▼
    network/rewriting.py, and what it imports in turn

Imports are found in the text: files need not be loaded, and imports inside functions count too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx.buffer import is_buffer_var

from tvm_stretch import passes
from tvm_stretch.base.errors import StretchError, UnsupportedError, last_line
from tvm_stretch.base.progress import count, say
from tvm_stretch.make.code.kernel_cache import digest, kernel_cache
from tvm_stretch.network.attributes import RECTANGLE
from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import changed_block, rewrite
from tvm_stretch.targets import kernels

# Kernels access no foreign memory and do not fault, whatever values their tensors have.
#
#     y[i] = x[t[i]]           ->   y[i] = x[min(max(t[i], 0), 4)]
#     y[i] = a[i] // d[i]      ->   y[i] = a[i] // select(d[i] == 0, 1, d[i])
#
# A network as data (`run/artifact.py`) brings constants and says which tensors kernels get. Nobody
# has checked them, so each kernel keeps its own places within their tensors, wherever a place
# depends on a value. An index that is in its range by itself, such as that of a table of 256 or
# one that the same kernel clamps (`passes/guard_operators.py`), stays as it is.
#
# Kernels that compute rectangles are left alone, because the executor writes their rectangles.
# Networks with such kernels cannot be data.


_MOST_STEPS = 1024
"""A loop whose count is made of floats ends after this number: a forged one would take years."""
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def with_safe_places(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with places inside its tensors; itself if nothing has to change."""
    if RECTANGLE in (func.attrs or {}) or not _has_integers(func):
        return func
    values = _Values(func)
    rules = [(TensorLoad, values.safe_load), (tirx.BufferStore, values.safe_store)]
    rules.append((tirx.For, values.safe_loop))
    body = rewrite(func.body, *rules, (_DIVISIONS, values.safe_division))
    return func.with_body(body) if values.changed else func


def _has_integers(func: tirx.PrimFunc) -> bool:
    """Whether a function reads integers or makes them of other values: most kernels do not."""
    return any(
        "int" in str(node.ty.dtype if isinstance(node, tirx.Cast) else node.source.dtype)
        for node in nodes_of(func.body, TensorLoad, tirx.Cast)
    )


def _is_made_of_floats(expr: Expr) -> bool:
    return any("float" in str(cast.value.ty.dtype) for cast in nodes_of(expr, tirx.Cast))


class _Values:
    """The variables of one function whose values come from tensors, and the ranges of others."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.changed = False
        self._analyzer = Analyzer()
        self._computed: set[Var] = set()
        self._ranges: dict[Var, Range] = {}
        rules: list[tuple[Any, Any]] = [
            (tirx.For, lambda loop: self._bind(loop.loop_var, loop.min, loop.extent)),
            (s_tir.SBlockRealize, self._enter),
            ((tirx.Let, tirx.Bind), lambda let: self._copy(let.var, let.value)),
        ]
        tvm_ffi.structural_walk(func.body, rules, order="pre")
        for var, bounds in self._ranges.items():
            self._analyzer.bind(var, bounds)

    def safe_load(self, load: TensorLoad) -> TensorLoad:
        """The load at indices that are in range."""
        indices = self._inside(load.source, load.indices)
        return load if indices is None else tirx.BufferLoad(load.source, indices)

    def safe_store(self, store: tirx.BufferStore) -> tirx.BufferStore:
        """The store at indices that are in range."""
        indices = self._inside(store.buffer, store.indices)
        return store if indices is None else tirx.BufferStore(store.buffer, store.value, indices)

    def safe_loop(self, loop: tirx.For) -> tirx.For:
        """The loop with an end, where a float says how often it runs: RoiAlign counts samples."""
        if not self._is_computed(loop.extent) or not _is_made_of_floats(loop.extent):
            return loop
        self.changed = True
        extent = tirx.min(loop.extent, tirx.const(_MOST_STEPS, str(loop.extent.ty.dtype)))
        rest = loop.kind, loop.body, loop.thread_binding, loop.annotations
        return tirx.For(loop.loop_var, loop.min, extent, *rest)

    def safe_division(self, division: Any) -> Any:
        """The division, which processors do not survive by zero, nor of the least number by -1."""
        dtype, divisor = str(division.ty.dtype), division.b
        if "int" not in dtype or not self._is_computed(divisor) or self._bounds(divisor)[0] > 0:
            return division
        self.changed = True
        bad = divisor == tirx.const(0, dtype)
        if not dtype.startswith("u"):  # as in guard_operators.py, for TVM's simplifier
            rest = division.a ^ tirx.const(np.iinfo(dtype.split("x")[0]).min, dtype)
            bad |= tirx.all(divisor == tirx.const(-1, dtype), rest == tirx.const(0, dtype))
        return type(division)(division.a, tirx.Select(bad, tirx.const(1, dtype), divisor))

    def _inside(self, buffer: tirx.Buffer, indices: Sequence[Expr]) -> list[Expr] | None:
        """Indices that are in range; None if the given ones are."""
        safe = [*map(self._clamped, indices, buffer.shape)]
        return None if all(map(lambda a, b: a.same_as(b), safe, indices)) else safe

    def _clamped(self, index: Expr, extent: Expr) -> Expr:
        if not self._is_computed(index):
            return index
        if isinstance(index, tirx.Ramp):
            reach = index.stride * (index.lanes - 1)
            base = self._clamped(index.base, extent - reach)
            return index if base.same_as(index.base) else tirx.Ramp(base, index.stride, index.lanes)
        low, high = self._bounds(index)
        if low >= 0 and high < self._bounds(extent)[0]:
            return index
        self.changed = True
        dtype = str(index.ty.dtype)
        last = tirx.const(0, dtype) + extent - 1
        return tirx.min(tirx.max(index, tirx.const(0, dtype)), last)

    def _bounds(self, expr: Expr) -> tuple[int, int]:
        bounds = self._analyzer.const_int_bound(expr)
        return bounds.min_value, bounds.max_value

    def _is_computed(self, expr: Any) -> bool:
        """Whether an expression depends on the values of a tensor."""
        if isinstance(expr, tirx.IntImm):
            return False
        read = [expr] if isinstance(expr, Var) else tirx.analysis.undefined_vars(expr, [])
        return any(var in self._computed or is_buffer_var(var) for var in read)

    def _copy(self, var: Var, value: Expr) -> None:
        if self._is_computed(value):
            self._computed.add(var)

    def _bind(self, var: Var, low: Expr, extent: Expr) -> None:
        if self._is_computed(low) or self._is_computed(extent):
            self._computed.add(var)
        else:
            self._ranges.setdefault(var, Range.from_min_extent(low, extent))

    def _enter(self, block: s_tir.SBlockRealize) -> None:
        for axis, value in zip(block.block.iter_vars, block.iter_values, strict=True):
            self._copy(axis.var, value)
            self._bind(axis.var, axis.dom.min, axis.dom.extent)


_NAME_DIGITS = 12
_LONGEST_STEM = 120
"""In letters: PoCL names folders after kernels, and ends the process if a name is too long."""


def named_kernel(
    name: str, function: tirx.PrimFunc, schedule: tvm.transform.Pass | None, hint: str = ""
) -> tirx.PrimFunc:
    """The kernel with a name derived from what it computes, in its attribute ``global_symbol``.

    ``hint``: anything else on which its code depends.
    """
    stem = "_".join(re.sub(r"\d+$", "", word) or word for word in name.split("_"))[:_LONGEST_STEM]
    same = _with_plain_names(function)
    identity = digest(_text(same), (_schedule_key(schedule) + hint).encode()).hex()[:_NAME_DIGITS]
    return same.with_attr("global_symbol", f"{stem}_{identity}")


def _with_plain_names(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function with tensors, variables and blocks numbered."""
    seen: dict[Var, Var] = {}
    blocks = itertools.count()

    def plain(node: Any) -> Any:
        if isinstance(node, Var):
            if node not in seen:  # making a Var costs more than finding one
                seen[node] = Var(f"{'t' if is_buffer_var(node) else 'i'}{len(seen)}", node.ty)
            return seen[node]
        if node.name_hint == "root":
            return node
        return changed_block(node, name_hint=f"block{next(blocks)}")

    params = [plain(param) for param in function.params]
    body = rewrite(function.body, ((Var, s_tir.SBlock), plain))
    return tirx.PrimFunc(params, body, function.ret_type, _kept(function))


def _kept(function: tirx.PrimFunc) -> tvm.ir.DictAttrs:
    """Attributes that describe the function itself, not its use."""
    dropped = ("processor", "op_pattern", "global_symbol")
    kept = {name: value for name, value in (function.attrs or {}).items() if name not in dropped}
    return tvm.ir.make_node("ir.DictAttrs", **kept)


def _text(function: tirx.PrimFunc) -> bytes:
    """A text that is equal for equal functions only."""
    text = function.script(show_meta=True)
    return f"{text}\n{tvm_ffi.structural_hash(function)}".encode()


def _schedule_key(schedule: tvm.transform.Pass | None) -> str:
    """Everything on which the schedule's result depends besides the kernel."""
    return "" if schedule is None else str(getattr(schedule, "cache_key", schedule.info.name))


def generate(
    kernels: Mapping[str, tirx.PrimFunc],  # by their names, as `named_kernel` returns them
    # gives kernels their loop nests; None if they have them. Its results are only cached if it has
    # an attribute `cache_key` with all that they depend on.
    schedule: tvm.transform.Pass | None,
    target: tvm.target.Target,  # of the code
    code_of: Callable[[tirx.PrimFunc], bytes],  # generates the code of a scheduled kernel
    options: str = "",  # anything else on which the code depends
) -> dict[str, bytes]:
    """The code of each kernel."""
    cache = kernel_cache() if schedule is None or hasattr(schedule, "cache_key") else None
    compiler = (
        f"{compiler_versions()} {_settings()} {code_of.__qualname__} {target} {options}".encode()
    )
    context = tvm.transform.PassContext.current()
    remembered: list[str] = []

    def code(name: str) -> bytes:
        key = digest(compiler, _schedule_key(schedule).encode(), _text(kernels[name]))
        cached = cache.find(key) if cache is not None else None
        if cached is not None:
            remembered.append(name)
            return cached
        with context, _naming(name):  # contexts are thread-local
            new = code_of(_scheduled(name, kernels[name], schedule, target))
        if cache is not None:
            cache.store(key, new)
        return new

    # TVM releases the GIL while it runs passes and LLVM.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        codes = _all_done({name: pool.submit(code, name) for name in kernels}, pool)
    if remembered:
        say(f"remembered {len(remembered)} of {len(kernels)} kernels of earlier compiles")
    return codes


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Add the name of the kernel to errors that TVM raises."""
    try:
        yield
    except (StretchError, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedError(
            f"expected kernels that TVM can compile, got {name} ({last_line(error)}); "
            "replace its operators, or convert their operands to another type"
        ) from error


def _all_done(coming: Mapping[str, Future[bytes]], pool: ThreadPoolExecutor) -> dict[str, bytes]:
    """The results of all futures; after a failure, pending ones are cancelled."""
    try:
        for number, future in enumerate(as_completed(coming.values()), 1):
            future.result()
            count("kernel", number, len(coming))
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    return {name: future.result() for name, future in coming.items()}


def _scheduled(
    name: str,
    function: tirx.PrimFunc,
    schedule: tvm.transform.Pass | None,
    target: tvm.target.Target,
) -> tirx.PrimFunc:
    if schedule is not None:
        with target:
            function = schedule(tvm.IRModule({name: function}))[name]
    return with_safe_places(function).with_attr("global_symbol", name)


def _settings() -> str:
    """The current options of TVM's passes."""
    context = tvm.transform.PassContext.current()
    return f"{context.opt_level} {dict(context.config)}"


@functools.cache
def compiler_versions() -> str:
    """Versions of everything that generates code."""
    return versions(source_files())


def versions(files: Mapping[str, bytes], *more: str) -> str:
    """Versions of the packages, ours and TVM's and `more`, and of these of our modules."""
    packages = ("tvm-stretch", "apache-tvm", "apache-tvm-ffi", *more)
    sources = (part for file in files.items() for part in (file[0].encode(), file[1]))
    return " ".join([*map(importlib.metadata.version, packages), digest(*sources).hex()])


_PACKAGE = "tvm_stretch"
_IMPORT = re.compile(
    rb"^[ \t]*from (tvm_stretch(?:\.\w+)*) import[ \t]*(\([^)]*\)|[^\n]*)", re.MULTILINE
)
_FOLDERS = {
    f"{_PACKAGE}.passes": passes.__path__[0],
    f"{_PACKAGE}.targets": str(Path(kernels.__path__[0]).parent),
    _PACKAGE: str(Path(__file__).parents[2]),
}
"""Folders of the packages; in a checkout not all of them lie in that of ours."""


def source_files(*modules: str) -> dict[str, bytes]:
    """The content of what these modules import, by default of those that generate code.

    It is by the name of the module, in an order that is always the same. The package itself is
    left out: it only names what its modules have.
    """
    sources: dict[str, bytes] = {}
    waiting = [*(modules or _generators())]
    while waiting:
        module = waiting.pop()
        content = None if module in sources or module == _PACKAGE else _content(module)
        if content is not None:
            sources[module] = content
            waiting += _imports(content)
    return dict(sorted(sources.items()))


def _generators() -> Iterator[str]:
    """The modules that generate code, without those that they import."""
    yield f"{_PACKAGE}.passes.schedule_kernels"
    for package, folders in (("make", {"code"}), ("targets", {"code", "kernels"})):
        folder = Path(_path(f"{_PACKAGE}.{package}"))
        for path in folder.rglob("[!_]*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if folders & {*parts}:
                yield ".".join((_PACKAGE, package, *parts))


def _imports(content: bytes) -> Iterator[str]:
    """All names that may be modules."""
    for package, names in _IMPORT.findall(content):
        yield package.decode()
        yield from (f"{package.decode()}.{name}" for name in re.findall(r"\w+", names.decode()))


def _content(module: str) -> bytes | None:
    """The file of a module or package; None if it is neither."""
    for path in (f"{_path(module)}.py", f"{_path(module)}/__init__.py"):
        with contextlib.suppress(OSError):
            return Path(path).read_bytes()
    return None


def _path(module: str) -> str:
    """The path of a module without its suffix."""
    package = next(name for name in _FOLDERS if f"{module}.".startswith(f"{name}."))
    return _FOLDERS[package] + module.removeprefix(package).replace(".", "/")


compiler_versions()  # now, because files may change while this process runs the loaded code
