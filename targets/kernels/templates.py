"""The list of all kernel templates: importing a module registers the templates in it.

`template.py` explains templates. A new one is a file and a line here.
"""

from tvm_stretch.targets.cpu.kernels import attention as attention
from tvm_stretch.targets.cpu.kernels import bfloat as bfloat
from tvm_stretch.targets.cpu.kernels import concat as concat
from tvm_stretch.targets.cpu.kernels import conv as conv
from tvm_stretch.targets.cpu.kernels import integer_conv as integer_conv
from tvm_stretch.targets.cpu.kernels import integer_window as integer_window
from tvm_stretch.targets.cpu.kernels import integer_winograd as integer_winograd
from tvm_stretch.targets.cpu.kernels import matmul as matmul
from tvm_stretch.targets.cpu.kernels import matrix_conv as matrix_conv
from tvm_stretch.targets.cpu.kernels import norm as norm
from tvm_stretch.targets.cpu.kernels import softmax as softmax
from tvm_stretch.targets.cpu.kernels import window as window
from tvm_stretch.targets.cpu.kernels import winograd as winograd
from tvm_stretch.targets.hexagon.kernels import hvx_conv as hvx_conv
from tvm_stretch.targets.hexagon.kernels import hvx_window as hvx_window
from tvm_stretch.targets.opencl.kernels import conv as gpu_conv
from tvm_stretch.targets.opencl.kernels import dense as gpu_dense
from tvm_stretch.targets.opencl.kernels import item_conv as gpu_item_conv
from tvm_stretch.targets.opencl.kernels import matmul as gpu_matmul
from tvm_stretch.targets.opencl.kernels import mean as gpu_mean
from tvm_stretch.targets.opencl.kernels import norm as gpu_norm
from tvm_stretch.targets.opencl.kernels import pair as gpu_pair
from tvm_stretch.targets.opencl.kernels import softmax as gpu_softmax
from tvm_stretch.targets.opencl.kernels import window as gpu_window
from tvm_stretch.targets.opencl.kernels import winograd as gpu_winograd

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
