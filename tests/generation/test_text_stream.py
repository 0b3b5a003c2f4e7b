"""Text that comes in pieces: whole characters, and nothing of a stop string."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.generation.text_stream import REPLACEMENT, TextStream

tokenizers = pytest.importorskip("tokenizers", reason="pip install tercet[generate]")

TEXTS = [
    "plain words, and more of them; nothing else happens here at all.",
    "Grüße aus Köln, ça va? Ελληνικά и кириллица",
    "漢字かな交じり文と한국어도",
    "🎉 emoji 👩\u200d👩\u200d👧 with joiners 🇩🇪, and e\u0301 combining",
    "\n\n  indented\n\ttabs  and   spaces   ",
]


def of_bytes():
    """A tokenizer with one token a byte, as byte-level BPE falls back to."""
    library = tokenizers
    made = library.Tokenizer(
        library.models.BPE(
            {c: i for i, c in enumerate(sorted(library.pre_tokenizers.ByteLevel.alphabet()))}, []
        )
    )
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    return made


def of_pieces():
    """A tokenizer as SentencePiece's: spaces are in the words, unknown characters are bytes."""
    library = tokenizers
    words = ["▁", "▁plain", "▁words", "e", "t", "a", "▁und", "▁aus"]
    vocabulary = {
        **{f"<0x{i:02X}>": i for i in range(256)},
        **{w: 256 + i for i, w in enumerate(words)},
    }
    made = library.Tokenizer(library.models.BPE(vocabulary, [], byte_fallback=True))
    made.pre_tokenizer = library.pre_tokenizers.Metaspace()
    made.decoder = library.decoders.Sequence(
        [
            library.decoders.Replace("▁", " "),
            library.decoders.ByteFallback(),
            library.decoders.Fuse(),
            library.decoders.Strip(" ", 1, 0),
        ]
    )
    return made


@pytest.mark.parametrize("make", [of_bytes, of_pieces])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_pieces_add_up_and_break_no_character(make, text: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text).ids
    stream = TextStream(tokenizer.decode)
    pieces = [stream.add(token) for token in ids]
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert "".join(pieces) + stream.end() == stream.text == tokenizer.decode(ids)
    assert len([piece for piece in pieces if piece]) > 5


def test_bytes_that_are_no_text_come_out_as_the_tokenizer_has_them() -> None:
    """As random weights write them."""
    tokenizer = of_bytes()
    rng = np.random.default_rng(0)
    for _ in range(30):
        ids = rng.integers(0, tokenizer.get_vocab_size(), 40).tolist()
        stream = TextStream(tokenizer.decode)
        for token in ids:
            stream.add(token)
        stream.end()
        whole = tokenizer.decode(ids)
        assert stream.text.replace(REPLACEMENT, "") == whole.replace(REPLACEMENT, "")


@pytest.mark.parametrize("make", [of_bytes, of_pieces])
def test_words_behind_bytes_that_are_no_text(make) -> None:
    tokenizer = make()
    wrong = [tokenizer.encode("é").ids[-1]] * 11
    words = tokenizer.encode("plain words and plain words").ids
    stream = TextStream(tokenizer.decode)
    for token in [*words, *wrong, *words]:
        stream.add(token)
    stream.end()
    assert stream.text.startswith(tokenizer.decode(words))
    assert stream.text.endswith("words and plain words")


@pytest.mark.parametrize("make", [of_bytes, of_pieces])
def test_a_text_that_follows_another_keeps_its_space(make) -> None:
    tokenizer = make()
    before, after = tokenizer.encode("plain words").ids, tokenizer.encode(" plain aus").ids
    stream = TextStream(tokenizer.decode, before=before)
    for token in after:
        stream.add(token)
    stream.end()
    assert stream.text == " plain aus"


@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["thr", "two"], "one "),
        ("one two three", ["four"], "one two three"),
        ("one two th", ["three"], "one two th"),
        ("aaab", ["aab"], "a"),
        ("one\n\ntwo", ["\n\n"], "one"),
        ("Käse", ["ä"], "K"),
        ("one", ["one"], ""),
    ],
)
def test_text_ends_in_front_of_a_stop_string(text: str, stops: list[str], wanted: str) -> None:
    tokenizer = of_bytes()
    stream = TextStream(tokenizer.decode, stops)
    pieces: list[str] = []
    for token in tokenizer.encode(text).ids:
        if not stream.is_stopped:
            pieces.append(stream.add(token))
            assert not any(stop in "".join(pieces) for stop in stops)
    pieces.append(stream.end())
    assert "".join(pieces) == stream.text == wanted
    assert stream.is_stopped == any(stop in text for stop in stops)
