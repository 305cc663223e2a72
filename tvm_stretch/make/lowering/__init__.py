"""From kernel-level Relax to the graph that the executor runs."""
