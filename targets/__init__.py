"""Processors: a folder for each, imported as `tvm_stretch.targets`; `kernels` has what they share.

The names that it exports are what a new processor needs.
"""

from tvm_stretch.base.exports import exported

__getattr__ = exported(
    __name__,
    {
        "Arithmetic": "processor",
        "Attributes": "registry",
        "Code": "processor",
        "Hardware": "processor",
        "Operators": "processor",
        "OpRule": "processor",
        "Processor": "processor",
        "ProcessorKind": "registry",
        "Speed": "processor",
        "cpu_processor": "cpu.cpu",
        "local_device": "opencl.opencl",
        "make_processors": "processors",
        "register": "registry",
    },
)
