"""Bring a network into the canonical form from which the rest of the compiler starts.

    conv2d, add(reshape(const)), batch_norm, clip(0, inf), dropout, divide(x, 6)
        ->   conv2d, add(const), relu, multiply(x, 1/6)

Only inference operators are left, constants are folded, equal computations are written the same
way, and every operator has a name of its own.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_stretch.passes.broadcast_late import BroadcastLate
from tvm_stretch.passes.channels_first import ChannelsFirst
from tvm_stretch.passes.decompose_quantisation import DecomposeQuantisation
from tvm_stretch.passes.expand_variance import ExpandVariance
from tvm_stretch.passes.fold_batch_norm import FoldBatchNorm
from tvm_stretch.passes.fold_constants import FoldConstants
from tvm_stretch.passes.form_integers import FormIntegers
from tvm_stretch.passes.frames_as_images import FramesAsImages
from tvm_stretch.passes.join_tables import JoinTables
from tvm_stretch.passes.mix_axes import MixAxes
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.passes.return_tuple import ReturnTuple
from tvm_stretch.passes.simplify_operators import SimplifyOperators
from tvm_stretch.passes.stacked_products import StackedProducts
from tvm_stretch.passes.store_small_types import StoreSmallTypes
from tvm_stretch.passes.template_layers import TemplateLayers
from tvm_stretch.passes.write_places import WritePlaces

PHASES = [
    ReturnTuple(),
    StoreSmallTypes(),
    relax.transform.CanonicalizeBindings(),
    SimplifyOperators(),
    WritePlaces(),
    ChannelsFirst(),
    FormIntegers(),  # before constants are folded
    JoinTables(),
    DecomposeQuantisation(),
    # Before the general decomposition, which makes four operators of each batch normalisation.
    FoldBatchNorm(),
    relax.transform.DecomposeOpsForInference(),
    FoldConstants(),
    FramesAsImages(),
    TemplateLayers(),
    relax.transform.CanonicalizeBindings(),
    ExpandVariance(),
    BroadcastLate(),
    StackedProducts(),
    SimplifyOperators(),
    MixAxes(),
    relax.transform.EliminateCommonSubexpr(),
    relax.transform.CanonicalizeBindings(),
    relax.transform.DeadCodeElimination(),
    NameOperators(),
]


TRAINABLE_PHASES = [
    relax.transform.CanonicalizeBindings(),
    DecomposeQuantisation(),
    SimplifyOperators(),
    FoldConstants(),
    relax.transform.CanonicalizeBindings(),
    SimplifyOperators(),
    relax.transform.CanonicalizeBindings(),
    relax.transform.DeadCodeElimination(),
    NameOperators(),
]
"""The same without folding into weights, so that batch normalisations can still be trained."""


@tvm.transform.module_pass(opt_level=0, name="Canonicalise")
class Canonicalise:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return tvm.transform.Sequential(PHASES, name="canonicalise")(mod)


@tvm.transform.module_pass(opt_level=0, name="CanonicaliseTrainable")
class CanonicaliseTrainable:
    """`Canonicalise` for a network that will be trained: batch normalisations stay."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return tvm.transform.Sequential(TRAINABLE_PHASES, name="canonicalise_trainable")(mod)
