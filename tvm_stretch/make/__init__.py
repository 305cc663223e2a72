"""Build a model from a canonical module and a plan."""
