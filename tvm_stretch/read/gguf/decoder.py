"""The network of a language model in a GGUF file, as ONNX: n tokens to the scores of the next one.

    tokens (1, n), position (1), caches (1, groups, places, head)
      x = rows of the table
      each layer: x += out(attention(rotary(q(norm x)), cache of rotary(k), v))
                  x += down(act(gate(norm x)) * up(norm x))
      scores of the last token (of few: of each), position + n, caches with n more places written

Families differ in what their files hold (biases, norms of queries and keys, norms after a part),
and in the few things that `FAMILIES` names. A tensor that nothing reads is an error, because the
answers would be wrong without it. Files of llama have rows of queries and keys in the order of
interleaved rotary positions; the rows are brought into the order of halves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read.gguf.block_types import BY_NAME, blocks_of, floats_of
from tvm_stretch.read.gguf.families import FAMILIES, Shape
from tvm_stretch.read.gguf.file import GgufFile, Tensor, refused
from tvm_stretch.read.gguf.rotary import add_positions, turns_of
from tvm_stretch.read.network_limits import MOST_TABLE_ELEMENTS, too_large
from tvm_stretch.read.onnx.block_weights import Blocks
from tvm_stretch.read.onnx.operators.microsoft_attention import KEEP, ROUNDS, SPARE

_MICROSOFT = "com.microsoft"
_WHOLE = TensorProto.INT64
SPARED = 64
"""The most tokens of a run, if caches slide."""
GUESSES = 8
"""The most tokens of a run that gives scores of each, by which guesses of the next are checked."""


class Decoder:
    """Makes the network of one file."""

    def __init__(
        self, file: GgufFile, places: int, keep: int | None = None, caches: str = "float32"
    ) -> None:
        self.rounds = caches == "int8"
        self.keep = keep  # the first tokens, which stay in a cache that slides
        self.file, self.kind = file, file.text("general.architecture")
        if self.kind not in FAMILIES:
            raise UnsupportedError(
                f"expected one of the families {', '.join(FAMILIES)} for the GGUF file, got "
                f"{self.kind!r:.60}; export the network to ONNX instead"
            )
        self.family = FAMILIES[self.kind]
        self.shape = self._shape(places)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.turned: set[str] = set()  # names of cosines and sines that are there
        self.read: set[str] = set()

    def _shape(self, places: int) -> Shape:
        count, own = self.file.count, self.kind
        width, heads = count(f"{own}.embedding_length"), count(f"{own}.attention.head_count")
        head = count(f"{own}.attention.key_length", max(width // heads, 1))
        groups = count(f"{own}.attention.head_count_kv", heads)
        turns = count(f"{own}.rope.dimension_count", head)
        fits = heads % groups == 0 and turns % 2 == 0 and head % 2 == 0 and turns <= head
        if not fits or count(f"{own}.attention.value_length", head) != head:
            raise refused(
                "heads that divide, of an even length, the same for keys and values",
                f"{heads} of {head} and {groups}, {turns} of which turn",
            )
        inner, layers = count(f"{own}.feed_forward_length"), count(f"{own}.block_count")
        words = self.tensor("token_embd.weight", None, width).shape[0]
        if error := too_large("places", (places, turns), MOST_TABLE_ELEMENTS):
            raise error
        return Shape(layers, width, inner, heads, groups, head, turns, words, places)

    # --- tensors ----------------------------------------------------------------------------------

    def tensor(self, name: str, *sizes: int | None) -> Tensor:
        """A tensor of the file, of these sizes."""
        found = self.file.tensors.get(name)
        if found is None:
            raise refused(f"a tensor {name!r}", "none")
        known = len(found.shape) == len(sizes)
        if not known or any(w not in (None, s) for w, s in zip(sizes, found.shape, strict=True)):
            raise refused(f"the shape {[*sizes]} of {name!r}", f"{[*found.shape]}")
        return found

    def has(self, name: str) -> bool:
        """Whether the file has a tensor."""
        return name in self.file.tensors

    def used(self, name: str, *sizes: int) -> Tensor:
        """A tensor that the network reads."""
        found = self.tensor(name, *sizes)
        self.read.add(name)
        return found

    def floats(self, name: str, *sizes: int) -> np.ndarray:
        """A tensor as finite floats."""
        found = self.used(name, *sizes)
        return finite(name, floats_of(found.kind, found.data).reshape(found.shape))

    def order(self, heads: int) -> np.ndarray | None:
        """The rows of queries or keys with halves of heads one after the other."""
        if not self.family.turned:
            return None
        own = np.arange(heads * self.shape.head).reshape(heads, self.shape.head)
        front, rest = own[:, : self.shape.turns], own[:, self.shape.turns :]
        return np.concatenate([front[:, 0::2], front[:, 1::2], rest], 1).ravel()

    # --- operators --------------------------------------------------------------------------------

    def constant(self, name: str, array: np.ndarray) -> str:
        """A constant, kept once for its name."""
        self.weights.setdefault(name, np.ascontiguousarray(array))
        return name

    def add(self, name: str, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """One operator, whose result is called as it is."""
        node = helper.make_node(kind, [*inputs], [name], name=name, domain=domain, **attributes)
        self.nodes.append(node)
        return name

    def norm(self, x: str, name: str, size: int) -> str:
        """The root mean square of the last axis becomes one."""
        scale = self.constant(f"{name}.weight", self.floats(f"{name}.weight", size))
        epsilon = self.file.number(f"{self.kind}.attention.layer_norm_rms_epsilon", low=0)
        return self.add(
            name, "SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=float(epsilon)
        )

    def product(
        self, x: str, name: str, inputs: int, outputs: int, order: np.ndarray | None = None
    ) -> str:
        """A dense layer, with its bias if it has one."""
        weight = self.used(f"{name}.weight", outputs, inputs)
        data = weight.data if order is None else np.asarray(weight.data)[order]
        biased = self.has(f"{name}.bias")
        y = self.dense(f"{name}.product" if biased else name, x, weight, data)
        if not biased:
            return y
        bias = self.floats(f"{name}.bias", outputs)
        bias = bias if order is None else bias[order]
        return self.add(name, "Add", y, self.constant(f"{name}.bias", bias))

    def dense(self, name: str, x: str, weight: Tensor, data: np.ndarray) -> str:
        """``x @ weight.T``: blocks stay blocks."""
        blocks = blocks_of(weight.kind, data)
        if blocks is None:
            array = finite(weight.name, floats_of(weight.kind, data)).T
            return self.add(name, "MatMul", x, self.constant(f"{weight.name}.turned", array))
        values, scale, zero = self.block_parts(weight.name, blocks)
        outputs, inputs = blocks.values.shape
        sizes = {"N": outputs, "K": inputs, "bits": blocks.bits, "block_size": blocks.size}
        own = (x, values, scale, zero)
        return self.add(name, "MatMulNBits", *own, domain=_MICROSOFT, **sizes)

    def block_parts(self, name: str, blocks: Blocks) -> tuple[str, str, str]:
        """The constants of weights in blocks, as `MatMulNBits` has them."""
        values = blocks.values
        if blocks.bits == 4:
            values = values[:, 0::2] | values[:, 1::2] << 4
        outputs, count = blocks.scale.shape
        return (
            self.constant(name, values.reshape(outputs, count, -1)),
            self.constant(f"{name}.scale", finite(name, blocks.scale)),
            self.constant(f"{name}.zero", finite(name, blocks.zero)),
        )

    def table(self) -> str:
        """The rows of the tokens; only those become floats."""
        own, name = self.shape, "token_embd"
        weight = self.used(f"{name}.weight", own.words, own.width)
        blocks = blocks_of(weight.kind, weight.data)
        if blocks is None:
            table = self.constant(weight.name, finite(name, floats_of(weight.kind, weight.data)))
            x = self.add(name, "Gather", table, "tokens")
        else:
            values, scale, zero = self.block_parts(weight.name, blocks)
            values = self.add(f"{name}.rows", "Reshape", values, self.sizes("table", own.words, -1))
            attributes = {"bits": blocks.bits, "block_size": blocks.size}
            given = (values, "tokens", scale, zero)
            x = self.add(name, "GatherBlockQuantized", *given, domain=_MICROSOFT, **attributes)
        x = self.add(f"{name}.flat", "Reshape", x, self.sizes("rows", -1, own.width))
        if self.family.scaled:
            root = self.constant("root", np.float32(math.sqrt(own.width)))
            x = self.add(f"{name}.scaled", "Mul", x, root)
        return x

    def sizes(self, name: str, *sizes: int) -> str:
        """A constant of integers."""
        return self.constant(f"sizes.{name}", np.array(sizes, "int64"))

    # --- the network ------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        """The whole network."""
        own = self.shape
        x = self.table()
        self.positions()
        for layer in range(own.layers):
            x = self.layer(x, layer)
        ends = [self.sizes(name, end) for name, end in (("end", 2**31), ("axis", 0))]
        x = self.norm(self.add("last", "Slice", x, self.seen(), *ends), "output_norm", own.width)
        self.scores(x)
        unread = sorted(self.file.tensors.keys() - self.read)
        if unread:
            raise UnsupportedError(
                f"expected no other tensors for a network of {self.kind}, got {unread[0]!r:.80} "
                f"and {len(unread) - 1} more; export the network to ONNX instead"
            )
        port, whole = helper.make_tensor_value_info, _WHOLE
        inputs = [port("tokens", whole, [1, "n"]), port("position", whole, [1])]
        outputs = [port("logits", TensorProto.FLOAT, [1, "seen", own.words])]
        outputs.append(port("next_position", whole, [1]))
        for layer, part in self.caches():
            shape = [1, own.groups, own.places, own.head]
            kinds = [("", TensorProto.INT8 if self.rounds else TensorProto.FLOAT, shape)]
            if self.rounds:
                kinds.append((".scale", TensorProto.FLOAT, [*shape[:3], 1]))
            for ports_of, when in ((inputs, "past"), (outputs, "present")):
                for of, kind, sizes in kinds:
                    ports_of.append(port(f"{when}.{layer}.{part}{of}", kind, sizes))
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, self.kind, inputs, outputs, weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def caches(self) -> Iterator[tuple[int, str]]:
        """Layers and what they cache."""
        return ((layer, part) for layer in range(self.shape.layers) for part in ("key", "value"))

    def seen(self) -> str:
        """Where the tokens begin that get scores: all of a few, so that guesses are checked."""
        few, others = self.sizes("few", GUESSES), self.sizes("others", GUESSES - 1)
        more = self.add("more", "Cast", self.add("many", "Greater", "n", few), to=_WHOLE)
        return self.add("seen", "Sub", self.add("left", "Mul", more, others), few)

    def positions(self) -> None:
        """How many places are used after the run, less one, and the position of the next run."""
        n = self.add("n", "Shape", "tokens", start=1, end=2)
        after = self.add("next_position", "Add", "position", n)
        used = self.add("used", "Sub", after, self.sizes("one", 1))
        self.add("used.int32", "Cast", used, to=TensorProto.INT32)
        if self.keep is not None:
            add_positions(self, n)

    def heads(self, x: str, name: str, heads: int) -> str:
        """Queries or keys, whose heads may be normalised."""
        own = self.shape
        if not self.has(f"{name}_norm.weight"):
            return x
        whole = self.add(f"{name}.heads", "Reshape", x, self.sizes("heads", 0, -1, own.head))
        normed = self.norm(whole, f"{name}_norm", own.head)
        return self.add(
            f"{name}.flat", "Reshape", normed, self.sizes(f"{heads}", 0, heads * own.head)
        )

    def layer(self, x: str, layer: int) -> str:
        """Attention and the feed-forward part."""
        own, block = self.shape, f"blk.{layer}"
        y = self.norm(x, f"{block}.attn_norm", own.width)
        parts = []
        for part, heads in (("q", own.heads), ("k", own.groups), ("v", own.groups)):
            order = None if part == "v" else self.order(heads)
            name = f"{block}.attn_{part}"
            wide = self.product(y, name, own.width, heads * own.head, order)
            wide = wide if part == "v" else self.heads(wide, name, heads)
            size = self.sizes(f"batch.{heads}", 1, -1, heads * own.head)
            parts.append(self.add(f"{name}.batch", "Reshape", wide, size))
        size = self.sizes("rows.heads", -1, own.heads * own.head)
        y = self.add(f"{block}.attention.rows", "Reshape", self.attention(layer, parts), size)
        y = self.product(y, f"{block}.attn_output", own.heads * own.head, own.width)
        x = self.after(x, y, f"{block}.post_attention_norm", f"{block}.attended")
        y = self.norm(x, f"{block}.ffn_norm", own.width)
        gate, up = (
            self.product(y, f"{block}.ffn_{part}", own.width, own.inner) for part in ("gate", "up")
        )
        y = self.add(f"{block}.gated", "Mul", self.activation(gate), up)
        y = self.product(y, f"{block}.ffn_down", own.inner, own.width)
        return self.after(x, y, f"{block}.post_ffw_norm", f"{block}.out")

    def after(self, x: str, y: str, norm: str, name: str) -> str:
        """The sum of what was there and a part, which may be normalised before."""
        if self.has(f"{norm}.weight"):
            y = self.norm(y, norm, self.shape.width)
        return self.add(name, "Add", x, y)

    def activation(self, x: str) -> str:
        """SiLU, or GELU by a hyperbolic tangent."""
        if self.family.gelu:
            return self.add(f"{x}.gelu", "FastGelu", x, domain=_MICROSOFT)
        return self.add(f"{x}.silu", "Mul", x, self.add(f"{x}.sigmoid", "Sigmoid", x))

    def attention(self, layer: int, parts: list[str]) -> str:
        """Writes the caches, and attends to the places that are used."""
        own, field = self.shape, f"{self.kind}.attention"
        total = self.constant("places", np.array([own.places], "int32"))
        depth = own.width / own.heads if own.layers == self.family.wide else own.head
        past = [f"past.{layer}.{part}" for part in ("key", "value")]
        attributes: dict[str, Any] = {
            "num_heads": own.heads,
            "kv_num_heads": own.groups,
            "do_rotary": 1,
            "softcap": float(self.file.number(f"{self.kind}.attn_logit_softcapping", 0.0, 0)),
            "scale": float(self.file.number(f"{field}.scale", depth**-0.5, 0)),
        }
        if self.family.window(layer):
            attributes["local_window_size"] = self.file.count(f"{field}.sliding_window")
        if self.keep is not None:
            attributes |= {KEEP: self.keep, SPARE: SPARED}
        name = f"blk.{layer}.attention"
        given = [*parts, *past, "used.int32", total, *turns_of(self, layer)]
        given += ["" if self.keep is None else "numbers.batch"]
        made = [name, *(f"present.{layer}.{part}" for part in ("key", "value"))]
        if self.rounds:
            attributes[ROUNDS] = 1
            given += ["", "", *(f"{one}.scale" for one in past)]
            made += [f"{one}.scale" for one in made[1:]]
        node = helper.make_node(
            "GroupQueryAttention", given, made, name=name, domain=_MICROSOFT, **attributes
        )
        self.nodes.append(node)
        return name

    def scores(self, x: str) -> None:
        """The product with the head, or with the table where the file has none."""
        own = self.shape
        name = "output.weight" if self.has("output.weight") else "token_embd.weight"
        weight = self.used(name, own.words, own.width)
        cap = self.file.number(f"{self.kind}.final_logit_softcapping", 0.0, 0)
        y = self.dense("head", x, weight, weight.data)
        if cap:
            limit = self.constant("cap", np.float32(cap))
            inside = self.add("head.inside", "Tanh", self.add("head.part", "Div", y, limit))
            y = self.add("head.limited", "Mul", inside, limit)
        self.add("logits", "Reshape", y, self.sizes("logits", 1, -1, own.words))

    def notes(self) -> list[str]:
        """Which types of weights are kept in another form."""
        kinds = sorted({self.file.tensors[name].kind for name in self.read})
        return [
            f"weights of {kind} are kept as {BY_NAME[kind].stored}, which is exact"
            for kind in kinds
            if BY_NAME[kind].stored
        ]


def finite(name: str, array: np.ndarray) -> np.ndarray:
    """An array without NaN and infinity."""
    if not np.isfinite(array).all():
        raise refused(f"finite numbers for {name!r}", "NaN or infinity")
    return array
