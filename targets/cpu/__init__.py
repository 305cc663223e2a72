"""The CPU: its kernels, their machine code, and its little cores as a second processor."""
