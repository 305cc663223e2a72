"""`ts.stretch()` (NN-Stretch): designs of branched networks that are predicted to be fast.

ts.stretch("net.onnx", rules=ts.stretching.Rules(alpha=0.2)).best.design    # a ts.stretching.Design
"""

from tvm_stretch.lab.stretching.accuracy import AccuracyTarget
from tvm_stretch.lab.stretching.design_rules import Rules
from tvm_stretch.lab.stretching.devices import judge_on
from tvm_stretch.plan.design import Design

__all__ = ["AccuracyTarget", "Design", "Rules", "judge_on"]
