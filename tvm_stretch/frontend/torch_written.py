"""All operators of torch that we write in simpler ones, for `torch_operators.decomposed`."""

from tvm_stretch.frontend import torch_elements, torch_linalg  # noqa: F401  register their functions
from tvm_stretch.frontend.torch_own import WRITTEN

__all__ = ["WRITTEN"]
