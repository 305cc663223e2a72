"""The program of a DSP: one ELF file."""
