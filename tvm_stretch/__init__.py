"""tvm_stretch: runs one trained CNN on several processors at the same time."""
