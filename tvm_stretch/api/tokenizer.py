r"""Text to tokens and back, by the vocabulary of a language model.

    "Hi 😊"  ->  [25452, 14567, 232]  ->  b"Hi", b" \\xf0\\x9f", b"\\x98\\x8a"  ->  "Hi 😊"

A token is a number of bytes, and a character may need several tokens: `Texts` gives out a character
once all of its bytes are there.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tvm_stretch.base.errors import InputError, ModelError, UnsupportedError
from tvm_stretch.read.gguf.language_model import Vocabulary

_CONTROL, _USERS, _BYTE = 3, 4, 6
"""Kinds of tokens in a `Vocabulary`."""
_BLANK = "\u2581"  # stands for a blank in vocabularies of SentencePiece
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITTERS = {"llama-bpe": _WORDS % "{1,3}", "qwen2": _WORDS % ""}
"""Where a text is split before pairs are merged, by the splitter's name."""


class Tokenizer:
    """Encodes and decodes texts as the model was trained to read them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare the merges of a vocabulary.

        Raises:
            InputError: the packages that it needs are not installed.
            UnsupportedError: it is of a kind that is not known.
        """
        try:
            import jinja2.sandbox
            import tokenizers
        except ImportError as error:
            raise InputError(
                f"expected the package {error.name} for a chat, got none; "
                "pip install 'tvm-stretch[chat]'"
            ) from error
        self.vocabulary = vocabulary
        self._tokenizer: Any = _made(vocabulary, tokenizers)
        self._templates: Any = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True
        )
        self._template_error: Any = jinja2.TemplateError
        self._bytes = {letter: byte for byte, letter in enumerate(_letters_of_bytes())}

    def encode(self, text: str, begins: bool = False) -> list[int]:
        """The tokens of a text, in which names of control tokens are these tokens."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        begin = self.vocabulary.begin
        if begins and self.vocabulary.adds_begin and begin is not None and tokens[:1] != [begin]:
            return [begin, *tokens]
        return tokens

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to a text; nothing for those that control it."""
        text, kind = self.vocabulary.tokens[token], self.vocabulary.kinds[token]
        if kind == _CONTROL:
            return b""
        if kind == _BYTE:
            return bytes([int(text[1:-1], 16)])  # <0x0A>
        if kind != _USERS and self.vocabulary.model == "gpt2":
            return bytes(self._bytes[letter] for letter in text if letter in self._bytes)
        return text.replace(_BLANK, " ").encode()

    @property
    def ends(self) -> list[int]:
        """The tokens that end an answer."""
        ends = {self.vocabulary.end, self.vocabulary.turn_end} - {None}
        return sorted(token for token in ends if token is not None)

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a conversation, after which the model answers."""
        if not self.vocabulary.chat_template:
            return "\n".join(message["content"] for message in messages)
        words = self.vocabulary.tokens

        def refuse(message: str) -> None:
            raise self._template_error(message)

        try:
            rendered: str = self._templates.from_string(self.vocabulary.chat_template).render(
                messages=messages,
                add_generation_prompt=True,
                bos_token="" if self.vocabulary.begin is None else words[self.vocabulary.begin],
                eos_token="" if self.vocabulary.end is None else words[self.vocabulary.end],
                raise_exception=refuse,
                strftime_now=time.strftime,
            )
        except (self._template_error, TypeError, ValueError, LookupError) as error:
            raise ModelError(
                f"expected a chat template that takes the messages, got {error}; use another file"
            ) from error
        return rendered


class Texts:
    r"""The text of tokens that come one by one, up to the first of some stops.

    >>> texts = Texts(["END"])
    >>> [texts.add(part) for part in (b"a \\xc3", b"\\xa9 E", b"N", b"D of it")]
    ['a ', 'é ', '', '']
    >>> texts.stopped, texts.text
    (True, 'a é ')
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Begin with an empty text."""
        self._stops = [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # may be the beginning of a stop
        self.text = ""
        self.stopped = False

    def add(self, part: bytes, last: bool = False) -> str:
        """The part of the text that these bytes complete."""
        self._held += self._decoder.decode(part, last)
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        self.stopped = self.stopped or bool(found)
        kept = 0 if last else max((_overlap(self._held, stop) for stop in self._stops), default=0)
        end = min(found) if found else len(self._held) - kept
        new, self._held = self._held[:end], "" if found else self._held[end:]
        self.text += new
        return new


def _overlap(text: str, stop: str) -> int:
    """How many letters at the end of the text begin the stop."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)


def _letters_of_bytes() -> list[str]:
    """The letter that stands for each byte in the vocabularies of byte pairs of GPT-2."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in seen]
    letters = {byte: chr(byte) for byte in seen}
    letters |= {byte: chr(256 + place) for place, byte in enumerate(other)}
    return [letters[byte] for byte in range(256)]


def _made(vocabulary: Vocabulary, tokenizers: Any) -> Any:
    """The tokenizer of the package."""
    before, words = tokenizers.pre_tokenizers, vocabulary.tokens
    ids = {word: place for place, word in enumerate(words)}
    if vocabulary.model == "gpt2":
        pairs = (pair.partition(" ") for pair in vocabulary.merges)
        known = [(one, other) for one, _, other in pairs if {one, other, one + other} <= ids.keys()]
        made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=known))
        made.pre_tokenizer = before.Sequence(_splitting(vocabulary.splitter, tokenizers))
    elif vocabulary.model == "llama":
        known = _merges_of_scores(vocabulary, ids)
        model = tokenizers.models.BPE(
            vocab=ids, merges=known, unk_token=words[0], fuse_unk=True, byte_fallback=True
        )
        made = tokenizers.Tokenizer(model)
        steps = [tokenizers.normalizers.Prepend(_BLANK)] if vocabulary.adds_blank else []
        steps.append(tokenizers.normalizers.Replace(" ", _BLANK))
        made.normalizer = tokenizers.normalizers.Sequence(steps)
    else:
        raise UnsupportedError(
            f"expected a vocabulary of gpt2 or llama, got {vocabulary.model!r:.40}; give tokens to "
            "Model.feed"
        )
    kinds = zip(words, vocabulary.kinds, strict=True)
    special = [word for word, kind in kinds if kind in (_CONTROL, _USERS)]
    made.add_special_tokens(
        [tokenizers.AddedToken(word, special=True, normalized=False) for word in special]
    )
    return made


def _splitting(name: str, tokenizers: Any) -> list[Any]:
    before = tokenizers.pre_tokenizers
    if name == "smollm":
        return [before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)]
    if name in _SPLITTERS:
        split = before.Split(tokenizers.Regex(_SPLITTERS[name]), "isolated")
        return [split, before.ByteLevel(add_prefix_space=False, use_regex=False)]
    if name in ("", "default", "gpt-2"):
        return [before.ByteLevel(add_prefix_space=False)]
    raise UnsupportedError(
        f"expected one of the splitters smollm, gpt-2, {', '.join(_SPLITTERS)} for the vocabulary, "
        f"got {name!r:.40}; give tokens to Model.feed"
    )


def _merges_of_scores(vocabulary: Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """SentencePiece merges the pair whose result has the greatest score: as a list of merges."""
    merges = []
    for word, score in zip(vocabulary.tokens, vocabulary.scores, strict=True):
        pairs = [(word[:n], word[n:]) for n in range(1, len(word))]
        known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        merges += [(-score, ids[one], ids[other], one, other) for one, other in known]
    return [(one, other) for _, _, _, one, other in sorted(merges)]
