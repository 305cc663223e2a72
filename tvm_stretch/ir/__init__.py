"""Relax as every room reads it: operators, calls, expressions, the operator graph."""
