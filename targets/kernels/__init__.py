"""Kernel templates: each turns one fused PrimFunc into an explicit, register-tiled loop nest."""
