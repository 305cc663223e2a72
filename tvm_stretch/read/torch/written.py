"""All operators of torch that we write in simpler ones, for `torch_operators.decomposed`."""

from tvm_stretch.read.torch import elements, linalg, special  # noqa: F401  they register
from tvm_stretch.read.torch.own import WRITTEN

__all__ = ["WRITTEN"]
