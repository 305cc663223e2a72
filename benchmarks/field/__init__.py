"""Field tests: single operators and networks by name, beside ONNX Runtime.

cases_floats.py, cases_others.py     tables of operators with shapes of real networks, as text
rows.py                              a line of a table -> an ONNX model and its inputs
compared.py                          answers first, then times by turns
networks.py                          networks of timm, transformers and diffusers
"""
