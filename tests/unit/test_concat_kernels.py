"""Concatenations whose parts end within blocks: the loop nest against numpy, at every seam."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET, built, cpu_of, host_of
from helpers.relax_helpers import module
from tvm import relax, tirx

import tvm_stretch as ts
from tvm_stretch.network.attributes import ANNOTATION
from tvm_stretch.plan.cost.describe import describe
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.cpu.kernels.concat import ConcatConfig, ConcatFeatures, block_runs
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.opencl.code.opencl_code import compile_opencl
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine


def concat_of(widths, machine, batch=2, size=(3, 5)):
    """A kernel of relu(concat) in blocks, fused as in networks."""
    bb = relax.BlockBuilder()
    shapes = [blocks.blocked_shape((batch, width, *size), machine.lanes) for width in widths]
    parts = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with bb.function("main", parts):
        with bb.dataflow():
            whole = bb.emit(relax.op.nn.relu(blocks.concat(bb, machine, parts, widths)))
            out = bb.emit_output(whole)
        bb.emit_func_output(out)
    passes = relax.transform
    mod = tvm.transform.Sequential(
        [passes.LegalizeOps(), passes.AnnotateTIROpPattern(), passes.FuseOps(), passes.FuseTIR()]
    )(bb.get())
    [kernel] = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return kernel


@pytest.mark.variants(2)
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("widths", [(54, 54, 54), (6, 9, 5), (1, 2, 1, 3, 40), (16, 3, 64, 64)])
def test_every_channel_stands_in_its_place(widths, lanes):
    cpu = host_of(lanes)
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((2, width, 3, 5), dtype="float32") for width in widths]
    # what stands beyond a part's channels must not come in
    blocked = [blocks.block_array(part, lanes) for part in parts]
    for array, width in zip(blocked, widths, strict=True):
        array[:, -1, :, :, width % lanes or lanes :] = np.nan
    expected = blocks.block_array(np.maximum(np.concatenate(parts, 1), 0), lanes)
    kernel = schedule_kernel(concat_of(widths, cpu.machine), cpu.machine)
    assert "if_then_else" not in str(kernel)
    out = tvm.runtime.tensor(np.full(expected.shape, 7e7, "float32"))
    built(kernel, cpu.target)["kernel"](*map(tvm.runtime.tensor, blocked), out)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_blocks_between_the_seams_are_one_loop():
    runs = block_runs(ConcatConfig((54, 540, 1000), (1, 7, 7), 16))
    assert sum(run.count for run in runs) == -(-1594 // 16)
    assert len(runs) <= 7


def test_the_cost_model_sees_a_copy_without_conditions():
    machine = cpu_processor(cpu_of(8), 1).machine
    features = describe(concat_of((54, 54, 54), machine), machine)
    assert isinstance(features, ConcatFeatures)
    assert features.shuffled_vectors < features.out_vectors
    assert features.model_cycles == 4 * features.out_vectors


@pytest.mark.parametrize("other", [{"gpu": GpuMachine(4)}, {"dsp": True}, {"lanes": 32}])
def test_other_machines_fuse_concatenations_with_their_readers(other):
    machine = VectorMachine(8, 16, False, 2**19, 1)
    for each, marks in ((machine, 1), (replace(machine, **other), 0)):  # nor is one's the other's
        assert str(concat_of((6, 9, 5), each)).count(ANNOTATION) == marks


def test_opencl_c_writes_shuffles_of_several_vectors():
    machine = cpu_processor(cpu_of(4), 1).machine
    kernel = schedule_kernel(concat_of((6, 9, 5), machine), machine).with_attr(
        "global_symbol", "kernel"
    )
    code = compile_opencl({"kernel": kernel}, tvm.target.Target("opencl"), on_cpu=True)
    (source,) = json.loads(code)["sources"]
    assert "vstore4((float4)(" in source
    assert "vstore4(float4(" not in source


@pytest.mark.parametrize("axis", [1, 2])
def test_a_function_of_a_join_that_names_what_it_reads_twice(axis):
    """TVM gave up vectors for the choice of an operand, and failed over the names."""
    x = np.random.default_rng(0).standard_normal((2, 8, 16)).astype("float32")
    mod = module(lambda x: relax.op.nn.gelu(relax.op.concat([x, x], axis=axis)), x.shape)
    joined = np.concatenate([x, x], axis).astype("float64")
    expected = joined * (1 + np.vectorize(math.erf)(joined / math.sqrt(2))) / 2
    np.testing.assert_allclose(ts.compile(mod, [TARGET])(x), expected, rtol=1e-5, atol=1e-6)
