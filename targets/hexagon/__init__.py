"""Hexagon: kernels for HVX, the DSP's program (dsp), and the executor's side (native)."""
