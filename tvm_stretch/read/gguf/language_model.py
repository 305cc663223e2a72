"""``read_gguf``: a language model from a file of llama.cpp.

model = ts.read_gguf("SmolLM2-135M-Instruct.Q4_1.gguf")
ts.compile(model, lengths={"n": [1, 16, 64]})
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import as_path
from tvm_stretch.base.named_arguments import is_one_of, named_arguments
from tvm_stretch.read.gguf.decoder import SPARED, Decoder
from tvm_stretch.read.gguf.file import GgufFile, read_file, refused

_CACHES = ("float32", "int8")
_LEVEL, _LEVELS = "accuracy_level", {"float32": 0, "int16": 2, "int8": 4}
"""How `MatMulNBits` says to what its inputs may be rounded."""
_ROUNDING = ("MatMulNBits", "GatherBlockQuantized")
"""Operators that share weights, which lie as the kernel of the product reads them."""


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer needs."""

    model: str  # ``gpt2`` for merged pairs of bytes, ``llama`` for SentencePiece
    splitter: str  # the name of the rule that splits a text before, such as ``smollm``
    tokens: tuple[str, ...]  # the text of each token
    # of each token: 1 is normal, 2 unknown, 3 control, 4 the user's, 5 unused, 6 a byte
    kinds: tuple[int, ...]
    merges: tuple[str, ...]  # pairs of tokens with a blank between, the first ones first
    scores: tuple[float, ...]  # of each token, for SentencePiece
    chat_template: str  # Jinja's text that makes a prompt of messages; empty if there is none
    begin: int | None  # the token before a text, if there is one
    end: int | None  # the token at which a model ends its answer
    turn_end: int | None  # the token at the end of a turn, if that is another one
    adds_begin: bool  # whether a text begins with ``begin``
    adds_blank: bool  # whether a blank is put before a text


@dataclass(frozen=True)
class LanguageModel:
    """A network that reads tokens and scores the next one, for `compile`.

    Its inputs are ``tokens``, int64 (1, n), whose length ``n`` is a dimension for ``lengths``, and
    the states; its output is ``logits``, (1, 1, words), of the last token, or (1, n, words) of
    each of at most 8.

    Attributes:
        network: the graph; weights in blocks stay as they are in the file.
        states: for ``states`` of `compile`: the caches, and ``position``, int64 (1), which is where
            the first of the tokens comes and counts by itself.
        vocabulary: what a tokenizer needs.
        family: the name of the architecture.
        places: the most tokens that the caches hold.
        name: the name of the model in the file.
        notes: which weights have another form than in the file.
        activations: to what the inputs of products are rounded, as given to `read_gguf`.

    Examples:
        >>> language = ts.read_gguf("small.gguf", places=32)
        >>> language.family, language.vocabulary.tokens[5], language.vocabulary.end
        ('llama', '<5>', 1)
    """

    network: onnx.ModelProto = field(repr=False)
    states: Mapping[str, str]
    vocabulary: Vocabulary = field(repr=False)
    family: str
    places: int
    name: str
    notes: tuple[str, ...] = ()
    activations: str | None = None

    def rounded(self, by_default: bool) -> str:
        """Say in the network how its products round; a text for people.

        Args:
            by_default: whether to round where nobody said.
        """
        kind = self.activations or ("int16" if by_default else "float32")
        for node in self.network.graph.node:
            if node.op_type in _ROUNDING:
                others = [one for one in node.attribute if one.name != _LEVEL]
                del node.attribute[:]
                node.attribute.extend([*others, onnx.helper.make_attribute(_LEVEL, _LEVELS[kind])])
        if kind == "float32":
            return "inputs of products with weights in blocks are not rounded"
        bits = kind.removeprefix("int")
        return f"inputs of products with weights in blocks are rounded to {bits} bits, by block"


@named_arguments
def read_gguf(
    path: str | os.PathLike[str],
    *,
    places: int = 1024,
    activations: str | None = None,
    keep: int | None = None,
    caches: str = "float32",
) -> LanguageModel:
    """Read a language model of llama.cpp, without quantising it again.

    Args:
        path: a file of the families llama, qwen2, qwen3, gemma, gemma2 or gemma3, whose weights are
            F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K or Q6_K.
        places: the most tokens that a conversation may have: the size of the caches.
        activations: ``"int16"`` rounds inputs of products with weights in blocks to 16 bits with
            a scale for each block and multiplies integers, ``"int8"`` to 8 bits, as llama.cpp does;
            ``"float32"`` does not round. By default CPUs that multiply integers fast take
            ``"int16"``, whose greedy tokens were those of floats; those of ``"int8"`` differ.
        keep: lets a full cache slide: its first ``keep`` tokens stay, which models need (4 are
            enough), and new ones replace the oldest others. A token then sees the last
            ``places - keep - 64`` ones, and those kept; runs have at most 64. None: a full cache is
            an error.
        caches: ``"int8"`` keeps keys and values in 8 bits with a scale for each row of a head: a
            little more than a quarter of the memory. docs/language.md has the error.

    Raises:
        ModelError: the file is damaged, or is none.
        UnsupportedError: it is of another family, or has other weights.
        InputError: there are no places, or another type of activations.

    Examples:
        >>> language = ts.read_gguf("small.gguf", places=32)
        >>> model = ts.compile(language, lengths={"n": [1, 4]})
        >>> model(np.array([[17, 5, 80, 3]])).shape
        (1, 4, 96)
    """
    if not _is_integer(places) or not 2 <= places <= 2**20:
        raise InputError(
            f"expected 2 to {2**20} for places, got {places!r:.40}; a cache holds a place for each "
            "token"
        )
    if activations is not None and not is_one_of(activations, _LEVELS):
        raise InputError(
            f"expected {', '.join(_LEVELS)} or None for activations, got {activations!r:.40}; "
            "leave it out"
        )
    most = places - 2 * SPARED
    if keep is not None and (not _is_integer(keep) or not 0 <= keep < most):
        raise InputError(
            f"expected 0 to {most - 1} tokens for keep, of {places} places, got {keep!r:.40}; 4 "
            "are usual, and a cache that slides needs more than 128 places"
        )
    if not is_one_of(caches, _CACHES):
        raise InputError(
            f"expected {' or '.join(_CACHES)} for caches, got {caches!r:.40}; leave it out"
        )
    place = as_path(path, "the language model")
    file = read_file(place)
    decoder = Decoder(file, places, keep, caches)
    network = decoder.model()
    return LanguageModel(
        network=network,
        states={"past.*": "present.*", "position": "next_position"},
        vocabulary=_vocabulary(file, decoder.shape.words),
        family=decoder.kind,
        places=places,
        name=file.text("general.name", place.stem),
        notes=tuple(decoder.notes()),
        activations=activations,
    )


def _is_integer(value: object) -> bool:
    """Whether it is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """What a tokenizer needs of a file, without its network.

    Raises:
        ModelError: the file is damaged, or is none.
    """
    file = read_file(as_path(path, "the language model"))
    return _vocabulary(file, len(file.array("tokenizer.ggml.tokens", str)))


def _vocabulary(file: GgufFile, words: int) -> Vocabulary:
    own = "tokenizer.ggml"
    tokens, kinds = file.array(f"{own}.tokens", str), file.array(f"{own}.token_type", int)
    scores = file.array(f"{own}.scores", float)
    for name, values in (("tokens", tokens), ("token_type", kinds), ("scores", scores)):
        if values and len(values) != words:
            raise refused(f"{words} values of the field '{own}.{name}'", f"{len(values)}")

    def token(name: str) -> int | None:
        key = f"{own}.{name}_token_id"
        if key not in file.fields:
            return None
        number = file.count(key, low=0)
        if number >= words:
            raise refused(f"a token below {words} for the field {key!r}", f"{number}")
        return number

    return Vocabulary(
        model=file.text(f"{own}.model", ""),
        splitter=file.text(f"{own}.pre", ""),
        tokens=tokens,
        kinds=kinds,
        merges=file.array(f"{own}.merges", str),
        scores=scores,
        chat_template=file.text("tokenizer.chat_template", ""),
        begin=token("bos"),
        end=token("eos"),
        turn_end=token("eot"),
        adds_begin=bool(file.fields.get(f"{own}.add_bos_token", False)),
        adds_blank=bool(file.fields.get(f"{own}.add_space_prefix", False)),
    )
