"""The list of all kernel templates: importing a module registers the templates in it.

`template.py` explains templates. A new one is a file and a line here.
"""

from . import attention as attention
from . import bfloat as bfloat
from . import concat as concat
from . import conv as conv
from . import hvx_conv as hvx_conv
from . import hvx_window as hvx_window
from . import integer_conv as integer_conv
from . import integer_window as integer_window
from . import integer_winograd as integer_winograd
from . import matmul as matmul
from . import matrix_conv as matrix_conv
from . import norm as norm
from . import softmax as softmax
from . import window as window
from . import winograd as winograd
from .gpu import conv as gpu_conv
from .gpu import dense as gpu_dense
from .gpu import item_conv as gpu_item_conv
from .gpu import matmul as gpu_matmul
from .gpu import mean as gpu_mean
from .gpu import norm as gpu_norm
from .gpu import pair as gpu_pair
from .gpu import softmax as gpu_softmax
from .gpu import window as gpu_window
from .gpu import winograd as gpu_winograd

__all__ = [
    "gpu_conv",
    "gpu_dense",
    "gpu_item_conv",
    "gpu_matmul",
    "gpu_mean",
    "gpu_norm",
    "gpu_pair",
    "gpu_softmax",
    "gpu_window",
    "gpu_winograd",
]
