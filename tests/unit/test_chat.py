"""`tvm-stretch chat`: tokens and texts, turns that keep the cache, ends, wrong inputs."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("gguf")
from helpers.gguf_files import WORDS, write_model

import tvm_stretch as ts
from tvm_stretch.api import chat
from tvm_stretch.api.chat import Conversation
from tvm_stretch.api.cli import main, talking
from tvm_stretch.api.tokenizer import Texts, Tokenizer
from tvm_stretch.read.gguf.language_model import Vocabulary

LETTERS = [chr(code) for code in range(33, 127)]
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"


def vocabulary(**changes: Any) -> Vocabulary:
    """Two control tokens, and the printable letters of ASCII, which fill the vocabulary."""
    own: dict[str, Any] = {
        "model": "gpt2",
        "splitter": "smollm",
        "tokens": ("<|begin|>", "<|end|>", *LETTERS),
        "kinds": (3, 3, *[1] * len(LETTERS)),
        "merges": ("no pair",),
        "scores": (),
        "chat_template": TEMPLATE,
        "begin": 0,
        "end": 1,
        "turn_end": None,
        "adds_begin": True,
        "adds_blank": False,
    }
    return Vocabulary(**{**own, **changes})


def test_texts_become_tokens_and_bytes() -> None:
    tokenizer = Tokenizer(vocabulary())
    tokens = tokenizer.encode("Hi!<|end|>", begins=True)
    assert tokens == [0, *(2 + LETTERS.index(letter) for letter in "Hi!"), 1]
    assert [tokenizer.bytes_of(token) for token in tokens] == [b"", b"H", b"i", b"!", b""]
    assert tokenizer.encode("<|begin|>Hi", begins=True).count(0) == 1
    assert tokenizer.ends == [1]
    two = Tokenizer(
        vocabulary(tokens=("<|begin|>", "<|end|>", "ab", *LETTERS[1:]), merges=("a b",))
    )
    assert two.encode("xab") == [two.encode("x")[0], 2]


def test_sentence_pieces_have_blanks_bytes_and_scores() -> None:
    words = ("<unk>", "</s>", "<0xF0>", "<0x9F>", "<0x98>", "<0x8A>", "▁", "a", "b", "ab", "▁ab")
    own = vocabulary(
        model="llama",
        tokens=words,
        kinds=(2, 3, 6, 6, 6, 6, 1, 1, 1, 1, 1),
        scores=(0, 0, 0, 0, 0, 0, -5, -6, -7, -2, -1),
        adds_blank=True,
        adds_begin=False,
    )
    tokenizer = Tokenizer(own)
    tokens = tokenizer.encode("ab ab😊")
    assert tokens == [10, 10, 2, 3, 4, 5]
    assert b"".join(map(tokenizer.bytes_of, tokens)).decode() == " ab ab😊"


@pytest.mark.parametrize("cut", range(1, 12))
def test_letters_and_stops_may_lie_on_several_tokens(cut: int) -> None:
    whole = "aé😊 STOP".encode()
    plain, stopping = Texts(), Texts(["nothing", " STOP", "P"])
    parts = [whole[place : place + cut] for place in range(0, len(whole), cut)]
    given = [plain.add(part) for part in parts]
    assert "".join(given) == "aé😊 STOP" and "\ufffd" not in "".join(given)
    shown = "".join(stopping.add(part) for part in parts)
    assert shown == stopping.text == "aé😊" and stopping.stopped
    half = Texts(["STOP"])
    assert half.add(b"a ST") + half.add(b"", last=True) == "a ST"
    assert Texts().add(b"\xf0\x9f", last=True) == "\ufffd"


def test_what_no_tokenizer_reads_is_refused() -> None:
    for changes in ({"model": "wordpiece"}, {"splitter": "other"}):
        with pytest.raises(ts.UnsupportedError, match="expected "):
            Tokenizer(vocabulary(**changes))
    for template in ("{% if %}", "{{ raise_exception('no') }}", "{{ messages[9].role[0] }}"):
        with pytest.raises(ts.ModelError, match="a chat template"):
            Tokenizer(vocabulary(chat_template=template)).prompt([])
    hostile = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ts.ModelError, match="a chat template"):
        Tokenizer(vocabulary(chat_template=hostile)).prompt([])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert len(vocabulary().tokens) == WORDS
    return write_model(tmp_path_factory.mktemp("chat") / "small.gguf", kind="F32", table="F32")


@pytest.fixture(scope="module")
def model(file: Path) -> ts.Model:
    language = ts.read_gguf(file, places=64)
    own = {"tokens": ts.Sample("logits", "n", temperature=0.0)}
    return ts.compile(language, ["llvm"], lengths={"n": [1, 4]}, states=own, cpu_threads=1)


def test_turns_read_only_what_is_new(model: ts.Model) -> None:
    tokenizer = Tokenizer(vocabulary())
    talk = Conversation(model, tokenizer, 64)
    first = "".join(talk.answer("Hi", 6))
    assert talk.read.tokens == len(tokenizer.encode("u:Hi;a:", begins=True))
    begun = talk.read.tokens
    second = "".join(talk.answer("Go", 5))
    whole = f"u:Hi;a:{first};u:Go;a:"
    assert talk.read.tokens - begun < len(tokenizer.encode(whole))
    assert [message["content"] for message in talk.messages] == ["Hi", first, "Go", second]
    model.reset()
    token = model.feed(tokenizer.encode(whole, begins=True)).next_tokens.item()
    rest = model.run_steps(4, stop=[1]).next_tokens.ravel().tolist()
    shown = b"".join(map(tokenizer.bytes_of, [token, *rest]))
    assert second == shown.decode()
    assert "a second" in talk.report() and "cpu for 1 token;" in talk.report()


def test_a_full_cache_ends_an_answer(model: ts.Model) -> None:
    talk = Conversation(model, Tokenizer(vocabulary(end=None)), 64)
    list(talk.answer("Hi", 1000))
    assert talk.ended == "the cache is full"
    with pytest.raises(ts.InputError, match="the room in the cache"):
        list(talk.answer("x" * 70, 5))


def test_who_reads_may_stop(model: ts.Model) -> None:
    talk = Conversation(model, Tokenizer(vocabulary(end=None)), 64)
    answer = talk.answer("Hi", 1000)
    shown = [next(answer), next(answer)]
    answer.close()
    assert talk.messages[-1] == {"role": "assistant", "content": "".join(shown)}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(talking, "read_vocabulary", lambda _: vocabulary())
    monkeypatch.setattr(chat, "LENGTHS", (1, 4))
    return tmp_path


def test_the_command(file: Path, command: Path, capsys: Any, monkeypatch: Any) -> None:
    usual = ["chat", str(file), "--places=48", "-n5", "--threads=1"]
    assert main([*usual, "-p", "Hi", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    answer = said["messages"][-1]["content"]
    assert said["written"]["tokens"] <= 5
    (kept,) = (command / "cache" / "language").iterdir()
    made = kept.stat().st_mtime_ns
    (command / "prompt.txt").write_text("Hi\n")
    assert main([*usual, f"--prompt-file={command / 'prompt.txt'}"]) == 0
    assert capsys.readouterr().out == f"{answer}\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi"))
    assert main([*usual, "--system", "Be brief", "--temperature=2", "--seed=4"]) == 0
    printed = capsys.readouterr()
    assert "tokens in" in printed.err and "cpu for 4 tokens" in printed.err
    assert kept.stat().st_mtime_ns == made  # compiled once


def test_wrong_calls_are_errors(file: Path, command: Path, capsys: Any) -> None:
    (command / "none.gguf").write_bytes(b"GGML" + bytes(100))
    (command / "latin").write_bytes(b"\xff\xfe")
    for arguments, message in (
        ([str(file), "-p", " "], "expected a prompt"),
        ([str(file), "-p", "a", "--prompt-file", "b"], "both"),
        ([str(file), "--prompt-file", str(command / "latin")], "UTF-8"),
        ([str(file), "--prompt-file", str(command / "no")], "for the prompt"),
        ([str(command / "no.gguf"), "-p", "a"], "expected a"),
        ([str(command / "none.gguf"), "-p", "a"], "expected"),
        ([str(file), "-p", "a", "--temperature=-1"], "for temperature"),
        ([str(file), "-p", "a", "--top-p=2"], "for top_p"),
    ):
        assert main(["chat", *arguments]) == 1, arguments
        assert message in capsys.readouterr().err, arguments


def test_a_missing_package_is_named(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ts.InputError, match=r"tvm-stretch\[chat\]"):
        Tokenizer(vocabulary())
    monkeypatch.setattr(chat, "_PACKAGE", "no_such_package")
    with pytest.raises(ts.InputError, match=r"expected a \.gguf file"):
        chat.find_file(None)


def test_rates_of_tokens(file: Path, command: Path, capsys: Any) -> None:
    assert main(["bench", str(file), "--tokens=6,4", "--threads=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompt_per_s"] > 0 and found["answer_per_s"] > 0
    assert found["first_token_ms"] == pytest.approx(6e3 / found["prompt_per_s"])
    assert np.isfinite(found["memory_most_mib"])
