"""Relax to Relax passes, one per file: each is a ``tvm.transform.Pass`` for any ``Sequential``.

Networks
Canonicalise            the form from which all others start: the phases down to NameOperators
ReturnTuple             results as a tuple of variables, not as a variable that holds a tuple
StoreSmallTypes         numbers of 2 to 8 bits lie in bytes, and their casts are arithmetic
SimplifyOperators       equal computations are written equally
WritePlaces             places of a cache are written where they lie
ChannelsFirst           feature maps of TensorFlow Lite with channels first
FormIntegers            integer operators, of what lies between dequantising and quantising
JoinTables              integer operators of one tensor become one table
DecomposeQuantisation   quantising and dequantising that is left, as arithmetic
FoldBatchNorm           batch normalisations and scales go into the layer before
FoldConstants           operators that depend on constants only are computed
FramesAsImages          layers of videos as layers of their frames
TemplateLayers          layers that kernel templates know
ExpandVariance          variances as means
BroadcastLate           operands stay small where operators broadcast them
StackedProducts         products of stacks of matrices without reshapes and repeated weights
MixAxes                 products along an axis that stays where it lies
NameOperators           every operator has a unique name
CanonicaliseTrainable   as Canonicalise, but batch normalisations stay
EmptyTensors            operators on tensors without elements are computed
KeepConditions          conditions are results, and list the operators that they decide
GuardOperators          indices and divisors are kept in range, and values to check are listed
SettleGuards            guarded values that became constant are checked and dropped
CarryStates             inputs hold what outputs had after the last run
UseHalf                 float16 inside a network

New networks, to be trained
DuplicateAndScale       NN-Stretch: segments become branches, each less deep and less wide
LowRank                 convolutions become two or three of low rank
PruneChannels           whole channels go, with everything that belongs to them

Branches and regions
SplitOutputs            each processor computes a share of a layer's output channels
BranchSegments          segments in bands of rows, or in shares of channels
TagOperators            a plan, recorded in the network
PartitionRegions        one function for each region of the tags
PartitionBySupport      one for each region that a processor supports, without a plan
WholeRegions            regions of engines as one kernel each

Regions to kernels
IntegersInHalf          integer operators in float16, for GPUs without fast integers
UseFixedPoint           rounding in integers, for vectors without floats
AverageBySums           averages of integers without floats
SplitExtremes           the greatest of a long row in two steps
BlockChannels           the layout NCHW[c], and kernel templates
JoinDepthwise           a depthwise convolution with the 1x1 convolution that reads it
KeepViews               operators to PrimFuncs, except views of memory
MarkPatterns            which kernels TVM fuses
MarkOperators           which operators a kernel computes, before kernels are fused
NameKernels             kernels are named after these operators
RoundBfloats            results in bfloat16 are rounded
KeepNan                 NaN passes through maximum and minimum
RoundProducts           products are rounded before sums
ExpandMath              exp, erf, sin and others as arithmetic
ScheduleKernels         loop nests for one CPU
ShareConstants          constants of several modules share memory

`merge_regions` is no pass, because it makes one module of several. An error that leaves a pass has
TVM's type; the functions beside the passes (`prune_channels` for `PruneChannels`) raise ours.
"""

import re

from tvm_stretch.base.exports import exported

_NAMES = (
    *("AverageBySums", "BlockChannels", "BranchSegments", "BroadcastLate", "Canonicalise"),
    *("CarryStates", "ChannelsFirst", "DecomposeQuantisation", "DuplicateAndScale", "EmptyTensors"),
    *("ExpandMath", "ExpandVariance", "FoldBatchNorm", "FoldConstants", "FormIntegers"),
    *("FramesAsImages", "GuardOperators", "IntegersInHalf", "JoinDepthwise", "JoinTables"),
    *("KeepConditions", "KeepNan", "KeepViews", "LowRank", "MarkPatterns", "MixAxes"),
    *("NameKernels", "NameOperators", "PartitionBySupport", "PartitionRegions", "PruneChannels"),
    *("ReturnTuple", "RoundBfloats", "RoundProducts", "ScheduleKernels", "ShareConstants"),
    *("SimplifyOperators", "SplitExtremes", "SplitOutputs", "StackedProducts", "StoreSmallTypes"),
    *("TemplateLayers", "UseFixedPoint", "UseHalf", "WholeRegions", "WritePlaces"),
)

PASSES = {name: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in _NAMES} | {
    **{"CanonicaliseTrainable": "canonicalise", "MarkOperators": "name_kernels"},
    **{"SettleGuards": "guard_operators", "TagOperators": "tag"},
}
"""The file of each pass; it is imported when the pass is first used."""

__getattr__ = exported(__name__, PASSES)
