"""The settings of `tests/conftest.py`, for a run of its own: `make test-benchmarks`."""

from tests.conftest import *  # noqa: F403
