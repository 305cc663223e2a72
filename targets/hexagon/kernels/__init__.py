"""Templates of Hexagon's vectors (HVX)."""
