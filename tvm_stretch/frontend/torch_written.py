"""All operators of torch that we write in simpler ones, for `torch_operators.decomposed`."""

from tvm_stretch.frontend import torch_elements, torch_linalg, torch_special  # noqa: F401
from tvm_stretch.frontend.torch_own import WRITTEN

__all__ = ["WRITTEN"]
