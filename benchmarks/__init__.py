"""Comparisons against peers; each asserts the answer before it reports a time."""
