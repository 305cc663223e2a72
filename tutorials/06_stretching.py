"""Stretching: a sequential network becomes branches, one for each processor, to be trained anew.

Run it: `python tutorials/06_stretching.py`.  It needs no device: the second processor is that of
`tvm_stretch.run.testing`, which runs the CPU's kernels on a thread of its own.
"""

from __future__ import annotations

import json

import numpy as np
import tvm
import zoo

import tvm_stretch as ts
from tvm_stretch.network.properties import detect_stages
from tvm_stretch.run.testing import fake_processor
from tvm_stretch.targets import cpu_processor


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


section("1. Why another network")
# compile() never changes what a network computes: it may only share the work of layers, and then
# processors meet after every few of them.  NN-Stretch changes the network: between two meeting
# points every processor gets a branch of its own, with fewer blocks, or narrower ones, so that all
# branches together compute about as much as before.  Such a network has to be trained.
onnx_model = zoo.build("resnet18", size=64, classes=10)
cpu = cpu_processor(tvm.target.Target("llvm"), threads=1)
targets = [cpu, fake_processor("second")]

section("2. The search")
# Ends of stages are meeting points.  The rules of the paper prune the rest (`ts.stretching.Rules`).
st = ts.stretch(onnx_model, targets, rules=ts.stretching.Rules(capacity=0.9))
for stage in detect_stages(st.mod):
    print(f"{len(stage.blocks)} blocks of shape {stage.shape[1:]}: {stage.blocks[0].layers}")
print(st)
assert st.best.kept and st.best.ns < min(st.alone_ns.values())

section("3. A design is a file")
# For each segment and branch: who runs it, how many of the blocks, how many channels.
print(json.dumps(st.best.design.to_data()["segments"][0], indent=1))
data = st.best.design.to_data()
for branch in data["segments"][0]["branches"]:
    branch["width"] //= 2
print(st.judge(data))
assert not st.judge(data).kept
data["segments"][0]["branches"][0]["depth"] = 7
try:
    st.judge(data)
except ts.PlanError as error:
    print("refused:", error)
else:
    raise AssertionError("a stage of two blocks has none of depth 7")

section("4. The network of a design")
# Ordinary Relax.  Batch normalisations are still there, so that it can be trained; its weights are
# rows and columns of the given ones, a start that is better than random numbers.
module = st.module()
again = [line.strip() for line in module.script().splitlines() if "conv_1_b" in line]
print("\n".join(line[:96] for line in again[:4]))

section("5. Compiled, with branches on their processors")
# compile() finds the branches in the module.  It builds that plan beside one processor alone, as
# always, and keeps the faster plan. The weights are untrained: only the latency means something.
model = ts.compile(module, targets, cpu_threads=1)
print(model.plan.explain())
x = np.random.default_rng(0).standard_normal((1, 3, 64, 64), dtype="float32")
reference = ts.compile(module, cpu, cpu_threads=1)
expected, y = reference(x), model(x)
assert np.abs(y - expected).max() < 1e-3 * np.abs(expected).max()
print("the same numbers as on one processor")
