"""xgboost, which learns what a family's weighted phases miss: imported when it is needed.

Importing it takes a second, and those who never measure need not have it.
"""

from __future__ import annotations

from types import ModuleType

from tvm_stretch.errors import InstallError


def the_xgboost() -> ModuleType:
    """The module.

    Raises:
        InstallError: it is not installed.
    """
    try:
        import xgboost
    except ImportError as error:
        raise InstallError(
            f"expected xgboost for cost models, got none ({error}); pip install xgboost-cpu, or "
            "xgboost, which is the same module and can use a GPU"
        ) from error
    return xgboost
