"""PyTorch: an exported program becomes Relax, by TVM's importer and our converters."""
