"""Commands of language models: `chat`, and `bench --tokens`.

tvm-stretch chat small.gguf -p "Name the capital of France."
tvm-stretch chat -t llvm -t opencl     # line by line; Ctrl-C ends an answer, Ctrl-D the chat
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tvm_stretch.api.chat import Conversation, find_file, open_model
from tvm_stretch.api.tokenizer import Tokenizer
from tvm_stretch.base.errors import InputError, MeterError
from tvm_stretch.base.files import reason_of
from tvm_stretch.network.states import Sample
from tvm_stretch.read.gguf.language_model import read_vocabulary
from tvm_stretch.read.gguf.rotary import COARSE
from tvm_stretch.run.meters import find_meters, measure_energy
from tvm_stretch.run.model import Model

_TARGETS = ["llvm"]


def talk(args: argparse.Namespace) -> dict[str, Any]:
    """Answer questions of the arguments, of the input, or of a person at a terminal."""
    drawn = {name: getattr(args, name) for name in Sample("").sampling}
    Sample("", **drawn)  # refuses numbers before the work
    file = find_file(args.model)
    tokenizer = Tokenizer(read_vocabulary(file))
    is_dialogue = args.prompt is None and args.prompt_file is None and sys.stdin.isatty()
    questions = _lines() if is_dialogue else iter([_question(args)])
    targets = args.targets or _TARGETS
    language = {name: getattr(args, name) for name in ("places", "activations", "keep", "caches")}
    model = open_model(file, targets, args.threads, **language)
    model.set_sampling(**drawn)
    system = [{"role": "system", "content": args.system}] if args.system else []
    places = args.places if args.keep is None else COARSE**2  # all positions that there are
    conversation = Conversation(model, tokenizer, places, system)
    for question in questions:
        try:
            for part in conversation.answer(question, args.tokens, args.stop):
                _write(args, part)
        except KeyboardInterrupt:
            if not is_dialogue:
                raise
        except InputError as error:
            if not is_dialogue:
                raise
            print(error, file=sys.stderr)
        _write(args, "\n")
    if not args.json:
        print(conversation.report(), file=sys.stderr)
    return {
        "messages": conversation.messages,
        "ended": conversation.ended,
        "read": vars(conversation.read),
        "written": vars(conversation.written),
    }


def _write(args: argparse.Namespace, part: str) -> None:
    if not args.json:
        sys.stdout.write(part)
        sys.stdout.flush()


def _lines() -> Iterator[str]:
    """Lines of a person, until the input ends."""
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return
        if line:
            yield line


def _question(args: argparse.Namespace) -> str:
    """The one question of the arguments, or of the input."""
    given = [text for text in (args.prompt, args.prompt_file) if text is not None]
    if len(given) > 1:
        raise InputError("expected --prompt or --prompt-file, got both; leave one out")
    try:
        if args.prompt_file is not None:
            question = Path(args.prompt_file).read_text(encoding="utf-8")
        else:
            question = args.prompt if args.prompt is not None else sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        said = reason_of(error) if isinstance(error, OSError) else str(error)
        raise InputError(
            f"expected a text in UTF-8 for the prompt, got {said}; check the file"
        ) from error
    if not question.strip():
        raise InputError("expected a prompt, got an empty text; ask something")
    return question.strip()


def rates(args: argparse.Namespace) -> dict[str, float]:
    """Time to the first token of a prompt, rates of prompts and answers, and a token's energy."""
    prompt, answer = args.tokens
    file = find_file(args.model)
    targets = args.targets or _TARGETS
    language = {"places": prompt + answer, "activations": args.activations}
    model = open_model(file, targets, args.threads, **language)
    words = model.outputs[0].shape[-1]
    tokens = np.random.default_rng(0).integers(0, words, prompt)
    _one_answer(model, tokens, 1)  # what only the first run does is not measured
    measured = [_one_answer(model, tokens, answer) for _ in range(3)]
    first, rest = (min(times) for times in zip(*measured, strict=True))
    rate = answer / rest
    data = {"first_token_ms": first * 1e3, "prompt_per_s": prompt / first, "answer_per_s": rate}
    with contextlib.suppress(MeterError):  # a machine without meters, or whose meters stand still
        spent = measure_energy(
            lambda: _one_answer(model, tokens, answer), find_meters(), at_once=prompt + answer
        )
        data["token_mj"] = spent.millijoules
    return data


def _one_answer(model: Model, tokens: np.ndarray, count: int) -> tuple[float, float]:
    """Seconds until the first token, and of those after it."""
    model.reset()
    begin = time.perf_counter()
    model.feed(tokens)
    middle = time.perf_counter()
    for _ in range(count):
        model()
    return middle - begin, time.perf_counter() - middle
