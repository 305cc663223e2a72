"""Properties of networks that passes and searches ask for; nothing here rewrites a network."""

from tvm_stretch.base.exports import exported

__getattr__ = exported(__name__, {"detect_stages": "repeated_blocks"})
