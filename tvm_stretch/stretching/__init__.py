"""`ts.stretch()` (NN-Stretch): designs of branched networks that are predicted to be fast."""
