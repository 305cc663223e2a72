"""Import xgboost, which learns the errors of a family's weighted phases, only when it is needed.

Importing it takes a second, and users who never measure need not install it.
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
