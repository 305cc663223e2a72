"""Processors and their kernels, one file each; imported as `tvm_stretch.targets`.

The names that it exports are what a new processor needs.
"""

from tvm_stretch.base.exports import exported

__getattr__ = exported(
    __name__,
    {
        "Attributes": "registry",
        "OpRule": "processor",
        "Processor": "processor",
        "ProcessorKind": "registry",
        "Speed": "processor",
        "cpu_processor": "cpu",
        "local_device": "opencl_device",
        "make_processors": "processors",
        "register": "registry",
    },
)
