"""Language models of llama.cpp: what a GGUF file says, and what its network answers."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from helpers.gguf_files import GROUPS, HEAD, WORDS, write_model
from helpers.mutations import campaign, damaged_bytes, dice_of

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError
from tvm_stretch.read.gguf.block_types import BY_NAME, floats_of

gguf = pytest.importorskip("gguf")
TOKENS = [5, 17, 80, 3, 44, 9, 61]


GEMMA = {"query_pre_attn_scalar": HEAD, "sliding_window": 4, "head_dim": HEAD}
UNREAD = {"qwen3": {"head_dim": HEAD}, "gemma2": GEMMA, "gemma3": GEMMA}
"""What transformers does not read from a file."""


def reference(path: Path, family: str) -> np.ndarray:
    """The scores after each token, by transformers' own reading of the file."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    network = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        attn_implementation="eager",
        **UNREAD.get(family, {}),
    ).eval()
    with torch.no_grad():
        return np.asarray(network(torch.tensor([TOKENS])).logits[0])


def answers(language: ts.LanguageModel, *targets: str) -> list[np.ndarray]:
    """The scores after the first four tokens at once, and after each other one."""
    model = ts.compile(language, [*targets] or ["llvm"], lengths={"n": [1, 4]}, cpu_threads=1)
    parts = [TOKENS[:4], *([token] for token in TOKENS[4:])]
    found = [np.asarray(model(np.array([part])))[0, -1] for part in parts]
    assert model.states["position"].tolist() == [len(TOKENS)]
    return found


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_families_answer_as_in_transformers(family: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "small.gguf", family)
    expected = reference(path, family)[3:]
    language = ts.read_gguf(path, places=16, activations="float32")
    for found, wanted in zip(answers(language), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-4 * np.abs(wanted).max())


def test_the_vocabulary_is_that_of_the_file(tmp_path: Path) -> None:
    language = ts.read_gguf(write_model(tmp_path / "small.gguf"), places=8)
    vocabulary = language.vocabulary
    assert vocabulary.tokens[:2] == ("<0>", "<1>") and len(vocabulary.tokens) == WORDS
    assert vocabulary.kinds[:2] == (3, 1) and vocabulary.merges == ("< 1", "<1 >")
    assert (vocabulary.model, vocabulary.splitter) == ("gpt2", "smollm")
    assert (vocabulary.begin, vocabulary.end, vocabulary.turn_end) == (0, 1, None)
    assert vocabulary.chat_template == "{{ messages }}"
    caches = [one for one in language.network.graph.input if one.name.startswith("past.")]
    sizes = [dim.dim_value for dim in caches[0].type.tensor_type.shape.dim]
    assert len(caches) == 4 and sizes[:3] == [1, GROUPS, 8]


def test_a_full_cache_is_an_error(tmp_path: Path) -> None:
    language = ts.read_gguf(write_model(tmp_path / "small.gguf"), places=4)
    model = ts.compile(language, shapes={"tokens": (1, 3)}, cpu_threads=1)
    model(np.array([[1, 2, 3]]))
    with pytest.raises(ts.StretchError, match="expected"):
        model(np.array([[4, 5, 6]]))


@pytest.mark.parametrize("targets", [["llvm"], ["opencl"]])
def test_table_and_head_are_one_tensor(targets: list[str], tmp_path: Path) -> None:
    path = write_model(tmp_path / "small.gguf")
    model = ts.compile(ts.read_gguf(path, places=8), targets, lengths={"n": [1, 4]}, cpu_threads=1)
    bits = sum(tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
    assert model.graph.weights_bytes < 1.06 * bits  # positions, scales of the table


def test_a_table_of_four_bits(tmp_path: Path) -> None:
    """Only its rounding, an eighth of the greatest number of a block, tells it from floats."""
    exact, rounded = (
        answers(ts.read_gguf(write_model(tmp_path / "small.gguf", table=table), places=16))[-1]
        for table in ("F32", "Q4_0")
    )
    assert np.corrcoef(exact, rounded)[0, 1] > 0.9


def test_rounded_activations(tmp_path: Path) -> None:
    """A number of n bits is half a step off at most; 16 bits are the default of CPUs."""
    path = write_model(tmp_path / "small.gguf")
    exact = answers(ts.read_gguf(path, places=16, activations="float32"))
    for kind, error in (("int8", 0.1), ("int16", 0.001), (None, 0.001)):
        rounded = ts.read_gguf(path, places=16, activations=kind)
        for found, wanted in zip(answers(rounded), exact, strict=True):
            assert 0 < np.abs(found - wanted).max() < error * np.abs(wanted).max()
    model = ts.compile(path, lengths={"n": [1]}, cpu_threads=1)
    assert "rounded to 16 bits" in str(model.plan.explain())
    with pytest.raises(
        InputError, match="float32, int16, int8 or None for activations, got 'int4'"
    ):
        ts.read_gguf(path, activations="int4")


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K"])
def test_types_of_weights_are_exact(kind: str) -> None:
    own = gguf.GGMLQuantizationType[kind]
    rng = np.random.default_rng(1)
    if kind in ("Q4_K", "Q6_K"):  # random bytes, with scales that are numbers
        block = BY_NAME[kind].bytes
        data = rng.integers(0, 256, (5, 2, block), dtype="uint8")
        scales = slice(0, 4) if kind == "Q4_K" else slice(block - 2, block)
        numbers = rng.uniform(0.1, 1, (5, 2, 2)).astype("float16").view("uint8")
        data[..., scales] = numbers if kind == "Q4_K" else numbers[..., :2]
        data = data.reshape(5, -1)
    else:
        data = gguf.quants.quantize(rng.standard_normal((5, 512)).astype("float32"), own)
        data = np.ascontiguousarray(data).view("uint8").reshape(5, -1)
    wanted = gguf.quants.dequantize(data, own).reshape(5, 512)
    np.testing.assert_allclose(floats_of(kind, data), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        ("mamba", {}, "one of the families llama"),
        ("llama", {"block_count": 3}, "a tensor 'blk.2.attn_norm.weight'"),
        ("llama", {"block_count": 1}, "no other tensors"),
        ("llama", {"feed_forward_length": 256}, "the shape"),
        ("llama", {"attention.head_count": 7}, "heads that divide"),
        ("llama", {"attention.head_count_kv": 0}, "of at least 1"),
        ("llama", {"rope.freq_base": float("nan")}, "of at least 1"),
    ],
)
def test_other_networks_are_refused(
    family: str, fields: dict[str, float], said: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "small.gguf", family, **fields)
    with pytest.raises(ts.StretchError, match=said):
        ts.read_gguf(path)


def damaged_head(dice: random.Random, content: bytes) -> bytes:
    """The counts, lengths and offsets of a file with such damage, or an extreme number there."""
    head = content.index(b"blk.1.ffn_norm.weight") + 64
    if dice.random() < 0.5:
        return damaged_bytes(dice, content[:head]) + content[head:]
    number = dice.choice([0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1, 10**6])
    place = dice.randrange(head)
    return content[:place] + number.to_bytes(8, "little") + content[place + 8 :]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tmp_path_factory.mktemp("honest") / "small.gguf").read_bytes()


@campaign(2000)
def test_damaged_files_are_refused_or_read(honest: bytes, piece: int, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    for dice in dice_of(piece):
        path.write_bytes(dice.choice([damaged_head, damaged_head, damaged_bytes])(dice, honest))
        try:
            language = ts.read_gguf(path, places=8)
        except ts.StretchError as error:
            assert str(error).startswith("expected ") and "; " in str(error), error
            assert len(str(error)) < 500
        else:
            assert len(language.vocabulary.tokens) in (0, WORDS)


@pytest.mark.parametrize(("tensors", "fields"), [(10**6, 0), (2**63, 0), (0, 10**6), (0, 2**40)])
def test_a_file_of_counts_alone_is_refused(tensors: int, fields: int, tmp_path: Path) -> None:
    path = tmp_path / "counts.gguf"
    head = b"GGUF" + np.array([3], "<u4").tobytes()
    numbers = np.array([tensors, fields], "<u8").tobytes()
    path.write_bytes(head + numbers + bytes(30 * 10**6 if tensors == 10**6 else 100))
    with pytest.raises(ts.ModelError, match="expected at most"):
        ts.read_gguf(path)
