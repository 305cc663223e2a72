"""Conventions of TVM that we lean on: a new version of TVM says here what it breaks.

Another file may use any public name of TVM. What is only a convention of its present version (a
registered function, an operator's name, an order of imports) is listed by the scans below or has a
test of its own.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import te
from tvm.runtime import _ffi_api

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("tvm_stretch", "passes", "targets")
OURS = ("tvm_stretch", "tvm.rpc.server.workpath")  # or a server registers it
GLOBALS = re.compile(r'(?:get_global_func|GetGlobal|GetGlobalRequired)\(\s*"([^"]+)"')
OPERATORS = re.compile(r'"((?:relax|tirx|prim)\.[a-z_.]*[a-z_])"')
SETTINGS = set(tvm.transform.PassContext.list_configs())  # of passes; they have such names, too
NO_OPERATORS = {"tirx.noalias", "relax.nn."}  # an attribute, and the beginning of names


def sources(pattern: str) -> Iterator[tuple[Path, str]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob(pattern)):
            yield path.relative_to(ROOT), path.read_text()


def matches(expression: re.Pattern[str], *patterns: str) -> set[str]:
    return {
        name
        for pattern in patterns
        for _, text in sources(pattern)
        for name in expression.findall(text)
    }


def test_every_name_that_is_imported_is_there() -> None:
    missing = []
    for path, text in sources("*.py"):
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tvm."):
                continue
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                if not hasattr(module, name) and not importlib.util.find_spec(f"{module}.{name}"):
                    missing.append(f"{path}: {node.module}.{name}")
    assert not missing


def test_every_registered_function_is_there() -> None:
    names = {name for name in matches(GLOBALS, "*.py", "*.cc") if not name.startswith(OURS)}
    assert names >= {"target.build.llvm", "runtime.config_threadpool"}  # the scan finds them
    missing = [name for name in names if tvm.get_global_func(name, allow_missing=True) is None]
    assert not missing


def test_every_operator_is_there() -> None:
    names = matches(OPERATORS, "*.py")
    assert names >= {"relax.call_tir", "prim.if_then_else"}
    missing = names - set(tvm.ir.Op.list_op_names()) - SETTINGS
    assert missing <= NO_OPERATORS


def test_weights_are_linked_by_the_packing_of_imports() -> None:
    assert callable(_ffi_api.ModulePackImportsToLLVM)


@pytest.mark.full  # another process imports TVM
def test_a_module_survives_json() -> None:
    """apache-tvm-ffi 0.1.15 ends the process here, so an older one is pinned."""
    script = """
import tvm
from helpers.relax_helpers import module
from tvm import relax
mod = relax.transform.LegalizeOps()(module(relax.op.nn.relu, (4, 8)))
tvm.ir.assert_structural_equal(tvm.ir.load_json(tvm.ir.save_json(mod)), mod)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"with apache-tvm-ffi {tvm_ffi.__version__}: {done.stderr[-500:]}"


def test_annotations_of_a_tensor_expression_become_those_of_its_block() -> None:
    """Templates carry their configuration through FuseTIR so."""
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] + 1.0, name="y", attrs={"tvm_stretch.test": "kept"})
    assert '"tvm_stretch.test": "kept"' in te.create_prim_func([x, y]).script()


def test_errors_that_leave_a_pass_keep_their_text_but_not_their_type() -> None:
    """So checks are functions (analysis/), not passes."""

    class OwnError(Exception):
        pass

    @tvm.transform.module_pass(opt_level=0)
    def failing(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        raise OwnError("expected a text")

    with pytest.raises(Exception, match="expected a text") as raised:
        failing(tvm.IRModule())
    assert not isinstance(raised.value, OwnError)
