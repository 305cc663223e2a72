"""Relax as all rooms read it: operators, calls, expressions, the operator graph."""
