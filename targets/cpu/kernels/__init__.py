"""Templates of the CPU, for AVX2, AVX-512 and NEON."""
