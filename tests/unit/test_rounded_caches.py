"""Attention that reads keys and values in int8, each row of them with a scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import built
from helpers.gguf_files import WORDS, write_model
from helpers.relax_helpers import assert_same_numerics, module, random_const
from tvm import relax, te

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.canonicalise import Canonicalise
from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.passes.keep_nan import KeepNan
from tvm_stretch.targets.cpu.kernels.attention import AttentionConfig
from tvm_stretch.targets.kernels.layers import AttentionShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose
from tvm_stretch.targets.opencl.opencl import local_device

op = relax.op
AVX2 = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)
NEON = VectorMachine(lanes=4, registers=32, broadcast_operand=True, l2_bytes=2**12, threads=1)
AVX512 = VectorMachine(16, 32, False, 2**20, threads=2)

SHAPES = {
    "many queries": AttentionShape((2, 37, 20), (2, 20, 43), (2, 43, 16)),
    "a mask": AttentionShape((3, 9, 8), (3, 8, 19), (3, 19, 16), (9, 19), 0.5),
    "keys of all heads": AttentionShape((4, 7, 8), (1, 8, 21), (1, 21, 16)),
    "one query": AttentionShape((3, 1, 20), (3, 43, 20), (3, 43, 16), None, 0.5, True),
    "few queries and a mask": AttentionShape(
        (2, 3, 16), (2, 200, 16), (2, 200, 32), (1, 200), 1.0, True
    ),
}


@pytest.mark.parametrize("machine", [AVX2, NEON, AVX512], ids=["avx2", "neon", "avx512"])
@pytest.mark.parametrize("name", SHAPES)
def test_same_as_numpy(name: str, machine: VectorMachine) -> None:
    """The mask hides the last keys, so pieces of few queries are left out."""
    shape, rng = replace(SHAPES[name], is_rounded=True), np.random.default_rng(0)
    q = rng.standard_normal(shape.q, "float32")
    k, v = (rng.integers(-127, 128, size).astype("int8") for size in (shape.k, shape.v))
    of_k, of_v = (rng.uniform(0.001, 0.02, shape.row_scales).astype("float32") for _ in "kv")
    masks = [rng.standard_normal(shape.mask, "float32")] if shape.mask else []
    for mask in masks:
        mask[:, -70:-1] = -1e30
    config = choose(shape, machine)
    assert isinstance(config, AttentionConfig) and config.operands == 5 + len(masks)
    arrays = [q, k, v, *masks, of_k, of_v]
    inputs = [te.placeholder(array.shape, array.dtype.name) for array in arrays]
    func = te.create_prim_func([*inputs, config.meaning(*inputs)])
    func = KeepNan()(ExpandMath()(tvm.IRModule({"f": func})))["f"]
    out = tvm.runtime.tensor(np.full(config.out_shape, 7e7, "float32"))
    built(schedule_kernel(func, machine))["kernel"](*map(tvm.runtime.tensor, arrays), out)
    keys = k.astype("float64") * (of_k if shape.in_place else of_k.swapaxes(-1, -2))
    scores = q.astype("float64") @ (keys.swapaxes(-1, -2) if shape.in_place else keys)
    scores = scores * shape.scale + sum(masks)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = powers / powers.sum(-1, keepdims=True) @ (v.astype("float64") * of_v)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=2e-5, atol=5e-6)


def cached(queries: int, groups: int, dtype: str = "int8") -> tvm.IRModule:
    """Six heads that may share keys and values, which are products of integers and scales."""

    def wide(rows: relax.Expr, scale: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        x = emit(op.multiply(emit(op.astype(rows, "float32")), scale))
        if groups == 6:
            return x
        x = emit(op.reshape(x, (1, groups, 1, 17, 12)))
        x = emit(op.broadcast_to(x, (1, groups, 6 // groups, 17, 12)))
        return emit(op.reshape(x, (1, 6, 17, 12)))

    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr, *scales: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        keys = emit(op.permute_dims(wide(k, scales[0]), [0, 1, 3, 2]))
        scores = op.add(op.matmul(q, keys), random_const(1, 1, queries, 17))
        return op.matmul(op.nn.softmax(scores), wide(v, scales[1]))

    cache, scale = (1, groups, 17, 12), (1, groups, 17, 1)
    types = ("float32", dtype, dtype, "float32", "float32")
    mod = module(body, (1, 6, queries, 12), cache, cache, scale, scale, dtype=types)
    return Canonicalise()(mod)


@pytest.mark.parametrize("queries", [1, 3, 19])
@pytest.mark.parametrize("groups", [2, 6])
def test_found_in_a_network(queries: int, groups: int) -> None:
    """Nothing makes floats of the whole cache."""
    mod = cached(queries, groups)
    blocked = BlockChannels({"cpu": AVX2})(mod)
    text = blocked.script()
    assert not any(name in text for name in ("R.astype", "broadcast_to", "softmax"))
    assert_same_numerics(mod, blocked)


def test_other_types_are_made_floats() -> None:
    mod = cached(3, 6, "int16")
    blocked = BlockChannels({"cpu": AVX2})(mod)
    assert "R.astype" in blocked.script()
    assert_same_numerics(mod, blocked)


@pytest.mark.parametrize("targets", [["llvm"], ["opencl"]], ids=str)
def test_a_language_model(targets: list[str], tmp_path: Path) -> None:
    """Rows of the first layer are rounded to the nearest step, and scores change little."""
    if targets == ["opencl"] and local_device() is None:
        pytest.skip("no OpenCL device")
    path = write_model(tmp_path / "small.gguf")
    tokens, scores, rows = np.random.default_rng(0).integers(2, WORDS, 40), [], []
    for kind in ("float32", "int8"):
        language = ts.read_gguf(path, places=160, caches=kind, keep=4, activations="float32")
        states = {**language.states, "tokens": ts.Greedy("logits", "n")}
        model = ts.compile(language, targets, lengths={"n": [1, 16]}, states=states, cpu_threads=1)
        scores.append(
            np.concatenate([model.feed(tokens[:33]).logits, model.feed(tokens[33:]).logits])
        )
        assert str(model.states["past.0.key"].dtype) == kind
        rows.append(model.states["past.0.value"])
    scale = model.states["past.0.value.scale"]
    assert (np.abs(rows[0] - rows[1] * scale) <= 0.501 * scale).all() and scale[0, 0, 39] > 0
    error = np.abs(scores[0] - scores[1]).max()
    assert 0 < error < 0.04 * np.abs(scores[0]).max()


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "small.gguf")
    with pytest.raises(InputError, match="expected float32 or int8 for caches, got 'int4'"):
        ts.read_gguf(path, caches="int4")
