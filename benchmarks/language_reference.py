"""Compares greedy tokens of a language model with those of the same weights in PyTorch.

    python -m benchmarks.language_reference [--count 64] [--prompts 20] [--activations A] [m.gguf]

Transformers reads the same `.gguf` file and judges each token that we chose, with our tokens before
it. The rule: a token has to be the reference's best one, unless the reference's two best scores
differ by at most `ROUNDING`, which is more than sums in another order change them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tvm_stretch as ts
from benchmarks.commands import options
from tvm_stretch.api.chat import find_file, open_model
from tvm_stretch.api.tokenizer import Tokenizer
from tvm_stretch.read.gguf.language_model import read_vocabulary

ROUNDING = 1e-2
PROMPTS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue.",
    "List five animals that can fly.",
    "Translate 'good morning' into Spanish.",
    "What is 12 times 12?",
    "Tell me a story about a dragon.",
    "How do I boil an egg?",
    "Name three rivers in Africa.",
    "What does a compiler do?",
    "Give me advice for a job interview.",
    "Summarise the water cycle in two sentences.",
    "Who wrote Hamlet?",
    "Write a Python function that adds two numbers.",
    "What are the primary colours?",
    "Describe winter to someone who never saw snow.",
    "Why do cats purr?",
    "Continue: once upon a time",
    "What is the difference between a lake and a pond?",
    "Say something kind. 😊",
)


def compare(
    model: ts.Model, tokenizer: Tokenizer, file: Path, prompts: int, count: int
) -> tuple[int, int, int]:
    """How many tokens were compared, were close calls, and were others than the rule says."""
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    compared = close = wrong = 0
    for question in PROMPTS[:prompts]:
        tokens = tokenizer.encode(
            tokenizer.prompt([{"role": "user", "content": question}]), begins=True
        )
        model.reset()
        first = model.feed(tokens).next_tokens.item()
        rest = model.run_steps(count - 1, stop=tokenizer.ends).next_tokens.ravel().tolist()
        chosen = [first] if first in tokenizer.ends else [first, *rest]
        with torch.no_grad():
            scores = reference(torch.tensor([[*tokens, *chosen[:-1]]])).logits[0].numpy()
        for row, token in zip(scores[len(tokens) - 1 :], chosen, strict=True):
            second, best = np.sort(row)[-2:]
            is_close = best - second <= ROUNDING
            compared, close = compared + 1, close + is_close
            wrong += not is_close and token != int(row.argmax())
        print(f"{question}: {len(chosen)} tokens, {wrong} wrong so far", flush=True)
    return compared, close, wrong


def main() -> None:
    """Print the comparison, and fail if a token is wrong."""
    args = options(
        *(__doc__, None, ("file?", str), ("--count", 64), ("--prompts", len(PROMPTS))),
        ("--activations", str),
        activations=("float32", "int16", "int8"),
    )
    file = find_file(args.file)
    model = open_model(file, ["llvm"], None, places=1024, activations=args.activations)
    model.set_sampling(temperature=0.0)
    tokenizer = Tokenizer(read_vocabulary(file))
    compared, close, wrong = compare(model, tokenizer, file, args.prompts, args.count)
    print(f"{compared} tokens compared, {close} close calls, {wrong} wrong")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
