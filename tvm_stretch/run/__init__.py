"""The executor: a C++ library, and the Python handle on it."""
