"""Operators emitted again, for passes: in channel blocks, in parts, scaled."""
