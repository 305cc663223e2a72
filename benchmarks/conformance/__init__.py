"""Other people's tests through tvm_stretch: ``python -m benchmarks.conformance SUITE``.

    op_db       PyTorch's samples of its operators, each exported by torch.export
    module_db   PyTorch's samples of its modules, in eval and in training mode
    onnx        ONNX's node, simple and pytorch-* cases, and its light models
    architectures  every model type of transformers, tiny, with random weights

Each case becomes one line of JSON: suite, group (an operator or a module), case, target, verdict
and detail. The verdicts:

    right                   the numbers of the reference
    refused                 a StretchError, with the reason
    wrong                   other numbers, types or shapes, and how far
    raw                     an error that is no StretchError
    dead                    the process died, or took too long
    unsupported by export   torch itself does not run or export the case
"""
