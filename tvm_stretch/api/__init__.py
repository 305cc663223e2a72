"""The public functions: compile, compare, tune, and the command."""
