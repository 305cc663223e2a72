"""Which tests a change can break."""

from __future__ import annotations

from changed import TESTS, affected, files_for, used


def test_modules_above_are_affected_and_others_are_not() -> None:
    of_lab = affected({"tvm_stretch.lab.training.loop"})
    of_base = affected({"tvm_stretch.base.errors"})
    assert of_lab < of_base and len(of_lab) < len(of_base) / 4
    assert "tvm_stretch.make.pipeline" in of_base - of_lab


def test_a_test_uses_what_its_helpers_and_the_package_name() -> None:
    assert "tvm_stretch.run.group" in used(TESTS / "unit" / "test_leases.py")  # as ts.Group
    assert "tvm_stretch.targets.opencl.opencl" in used(TESTS / "unit" / "test_gpu_rules.py")


def test_what_is_no_product_code_may_break_all() -> None:
    assert len(files_for(["CMakeLists.txt"])) == len([*TESTS.rglob("test_*.py")])
    assert files_for(["docs/install.md"]) == []
    assert files_for(["tests/unit/test_changed.py"]) == ["tests/unit/test_changed.py"]
