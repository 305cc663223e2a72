"""Language models of llama.cpp: a GGUF file to a network, its states and its vocabulary."""
