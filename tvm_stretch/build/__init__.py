"""From a canonical module and a plan to a model."""
