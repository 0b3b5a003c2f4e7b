"""Operators on strings against onnxruntime, and against Python where onnxruntime has none."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tercet
from tercet.backends.numpy.regex.matcher import compile_pattern
from tercet.backends.numpy.regex.parser import parse
from tercet.backends.numpy.regex.python_pattern import python_pattern

from .nodes import Array, check, model_of, node, run, texts

WORDS = texts("a,b,,c", "", "x", " , ", "ä,ö,中", "no delimiter here", "  two  words ")


def one(op: str, x: Array, outputs: str = "y", **attributes: Any) -> list[Array]:
    model = model_of([node(op, "x", outputs, **attributes)], {"x": x}, outputs)
    return run(model, {"x": x})


# ── joining, splitting, cleaning ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("a", "b"), [((3,), (3,)), ((2, 1), (3,)), ((), (2,)), ((0,), (1,))])
def test_concat(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = (np.full(shape, text, object) for shape, text in ((a, "ä-"), (b, "中")))
    check([node("StringConcat", "x z", "y")], {"x": x, "z": y})


@pytest.mark.parametrize("maxsplit", [None, 1, 2, 10])
@pytest.mark.parametrize("delimiter", [",", ", ", "no such"])
def test_split(delimiter: str, maxsplit: int | None) -> None:
    attributes: dict[str, Any] = {"delimiter": delimiter}
    if maxsplit is not None:
        attributes["maxsplit"] = maxsplit
    words = WORDS[WORDS != ""]  # of which onnxruntime makes no part, as of one with a delimiter
    check([node("StringSplit", "x", "y n", **attributes)], {"x": words.reshape(2, 3)}, "y n")


def test_split_at_white_space() -> None:
    parts, counts = one("StringSplit", texts(" a  b\tc ", "", "d"), "y n")
    assert parts.tolist() == [["a", "b", "c"], ["", "", ""], ["d", "", ""]]
    assert counts.tolist() == [3, 0, 1]
    parts, counts = one("StringSplit", texts(" a  b c "), "y n", delimiter="", maxsplit=1)
    assert parts.tolist() == [["a", "b c"]]


@pytest.mark.parametrize("maxsplit", [1, 2, 10])
@pytest.mark.parametrize("delimiter", [{}, {"delimiter": ""}])
def test_split_removes_spaces_behind_the_last_part(
    delimiter: dict[str, str], maxsplit: int
) -> None:
    x = texts(" a  b c  ", "a b ", "a ", "   ", "")
    check([node("StringSplit", "x", "y n", maxsplit=maxsplit, **delimiter)], {"x": x}, "y n")


def test_split_of_empty_texts() -> None:
    parts, counts = one("StringSplit", texts("", ","), "y n", delimiter=",")
    assert parts.tolist() == [["", ""], ["", ""]]
    assert counts.tolist() == [1, 2]


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("sensitive", [0, 1])
@pytest.mark.parametrize("stopwords", [["The", "a"], ["the", "fox", "a", "dog", "over"], []])
def test_normalizer(case: str, sensitive: int, stopwords: list[str]) -> None:
    x = texts("The", "fox", "a", "Over", "Dog")
    attributes: dict[str, Any] = {"case_change_action": case, "is_case_sensitive": sensitive}
    if stopwords:
        attributes["stopwords"] = stopwords
    check([node("StringNormalizer", "x", "y", locale="C", **attributes)], {"x": x})
    (row,) = one("StringNormalizer", x, **attributes)
    (matrix,) = one("StringNormalizer", x[np.newaxis], **attributes)
    assert matrix.tolist() == [row.tolist()]


def test_normalizer_knows_other_letters() -> None:
    attributes = {"case_change_action": "LOWER", "stopwords": ["über"]}
    (found,) = one("StringNormalizer", texts("ÜBER", "ÄÖ"), **attributes)
    assert found.tolist() == ["äö"]


def test_normalizer_changes_letters_whose_other_case_is_several() -> None:
    """As scikit-learn, whose vocabularies hold what Python makes of a text."""
    x = texts("straße", "ﬁn", "İ", "ΣΟΦΟΣ")
    (upper,) = one("StringNormalizer", x, case_change_action="UPPER")
    assert upper.tolist() == ["STRASSE", "FIN", "İ", "ΣΟΦΟΣ"]
    (lower,) = one("StringNormalizer", x, case_change_action="LOWER")
    assert lower.tolist() == ["straße", "ﬁn", "i\N{COMBINING DOT ABOVE}", "σοφος"]


# ── patterns ─────────────────────────────────────────────────────────────────────────────────────

#: What Python's `re` means by the same text, given ASCII classes and \Z for $.
PIECES = ("a", "b", "c", ".", "[ab]", "[^a]", "\\w", "\\s", "\\d", "\\b", "\\B", "^", "$")
EMPTY = ("\\b", "\\B", "^", "$")
REPEATS = ("*", "+", "?", "*?", "{2}", "{1,3}", "{0,2}", "{2,}")


def draw_pattern(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice(PIECES)
    inner = [draw_pattern(rng, depth - 1) for _ in range(2)]
    if kind < 0.6:
        return "".join(inner)
    if kind < 0.75:
        return f"(?:{inner[0]}|{inner[1]})"
    return f"({inner[0]}){rng.choice(REPEATS)}"


@pytest.mark.parametrize("seed", range(20))
def test_patterns_against_re(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        pattern = draw_pattern(rng, 3)
        other = re.compile(pattern.replace("$", "\\Z"), re.ASCII)
        for _ in range(8):
            text = "".join(rng.choices("abc \n1", k=rng.randint(1, 6)))
            want = other.fullmatch(text) is not None
            assert compile_pattern(pattern).matches(text) == want, (pattern, text)


def spans_of_re(pattern: str, text: str) -> list[tuple[int, int]]:
    """Return at each place the longest text that matches as a whole."""
    found, first = list[tuple[int, int]](), 0
    rests = [f"(?=(?s:.{{{rest}}})\\Z)" for rest in range(len(text) + 1)]
    ending = [re.compile(f"(?:{pattern}){rest}", re.ASCII) for rest in rests]
    while first <= len(text):
        lengths = range(len(text) - first, -1, -1)
        end = next((first + n for n in lengths if ending[-1 - first - n].match(text, first)), -1)
        found += [(first, end)] if end >= 0 else []
        first = max(end, first + 1)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_longest_matches_against_re(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        pattern = draw_pattern(rng, 3)
        if rng.random() < 0.7:  # one after the other
            pattern = "".join(
                piece + rng.choice(("", "*", "+", "?", "{2,3}")) if piece not in EMPTY else piece
                for piece in rng.choices(PIECES, k=4)
            )
        text = "".join(rng.choices("abc \n1", k=rng.randint(1, 8)))
        want = spans_of_re(pattern.replace("$", "\\Z"), text)
        assert list(compile_pattern(pattern).spans(text)) == want, (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    ["", "[a-z]+", r"\b\w\w+\b", r"\w(\w)*", r"(?i)[k-l]{3,}$", r"\d{1,3}\.\d*x?", "[ab]{2}a*",
     r"\S+", r"(?m)^\s*#+", "(?s).", r"\p{L}+", "a*a", "a?ab?"],
)  # fmt: skip
def test_patterns_that_re_matches_alike(pattern: str) -> None:
    assert python_pattern(parse(pattern)) is not None


@pytest.mark.parametrize(
    "pattern",
    ["a|ab", "(ab)*", r"\w+\d", "a*b*a", "[ab]{1,2}b", "(a+)+", r"\B", r"a*\ba*", "(a|)*",
     "[^\x00-\U0010ffff]", "a?b?c?d?e?f?g?h?i?j?k?l?m?n?o?p?q?r?s?t?u?"],
)  # fmt: skip
def test_patterns_that_re_may_match_otherwise_or_slowly(pattern: str) -> None:
    assert python_pattern(parse(pattern)) is None


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"www\.[\w.-]+\.\bcom\b", ["www.a-b.com"], ["www.com", "www.a.com "]),
        (r"(?i)straße|k", ["STRAßE", "K", "\u212a"], ["STRASSE"]),
        (r"(?i)[^k]", ["l"], ["k", "K", "\u212a"]),
        (r"(?i:ab)c", ["ABc"], ["ABC"]),
        (r"\pL+\PL", ["äß中1"], ["1ä"]),
        (r"\p{Lu}\p{^Lu}", ["Aa"], ["aA"]),
        (r"[[:alpha:][:^ascii:]-]+", ["a-b中"], ["1"]),
        (r"[^\D5]", ["4"], ["5", "x"]),
        (r"[]a-]+", ["]a-"], ["b"]),
        (r"\x41\x{4e2d}\101\07\*", ["A中A\a*"], []),
        (r"\Qa.b\E+", ["a.bbb"], ["axb"]),
        (r"a{,3}|a{x", ["a{,3}", "a{x"], ["aaa"]),
        (r"(?s).(?-s).", ["\nx"], ["\n\n"]),
        (r"(?m)a$\n^b", ["a\nb"], []),
        (r"a$\n", [], ["a\n", "a"]),
        (r"(?P<name>a)(?<other>b)", ["ab"], []),
        (r"(?U)a+?b*", ["aab"], []),
        (r"", [""], ["a"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    (found,) = one("RegexFullMatch", texts(*matching, *others), pattern=pattern)
    assert found.tolist() == [True] * len(matching) + [False] * len(others)


@pytest.mark.parametrize(
    "pattern",
    ["a**", "a++", "*", "a|*", "(", "a)", "[a", "[z-a]", "x{3,2}", "x{1001}", r"\1", r"\Z", r"\q",
     "(?=a)", "(?<=a)", "(?!a)", "(?P<>a)", r"\p{Greek}", "[[:letters:]]", "(" * 500 + ")" * 500,
     "((a{1000}){1000}){1000}", "((){1000}){1000}", "(" * 90 + "a" + "){9}" * 90],
)  # fmt: skip
def test_patterns_that_are_none_of_re2_are_refused(pattern: str) -> None:
    with pytest.raises(tercet.TercetError, match="pattern"):
        one("RegexFullMatch", texts("a"), pattern=pattern)


def test_no_pattern_is_slow() -> None:
    text = "a" * 5000
    assert not compile_pattern("(a+)+b").matches(text)
    assert compile_pattern("(a|a|aa)*").matches(text)


# ── n-grams ──────────────────────────────────────────────────────────────────────────────────────

POOL = {
    "ngram_counts": [0, 3, 7],
    "ngram_indexes": [0, 1, 2, 3, 4, 5],
    "pool_int64s": [2, 3, 5, 5, 4, 5, 6, 2, 3, 5],
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (2, 2), (2, 3)])
@pytest.mark.parametrize("skip", [0, 1, 5])
@pytest.mark.parametrize("kind", [np.int64, np.int32, object])
def test_tf_idf(mode: str, lengths: tuple[int, int], skip: int, kind: Any) -> None:
    pool: dict[str, Any] = dict(POOL, weights=[0.5, 2.0, 1.0, 3.0, 0.25, 1.5])
    x = np.random.default_rng(skip).integers(1, 7, (3, 12))
    if kind is object:
        pool["pool_strings"] = [str(item) for item in pool.pop("pool_int64s")]
    x = x.astype(str).astype(object) if kind is object else x.astype(kind)
    minimum, maximum = lengths
    attributes = dict(pool, mode=mode, max_skip_count=skip)
    attributes |= {"min_gram_length": minimum, "max_gram_length": maximum}
    check([node("TfIdfVectorizer", "x", "y", **attributes)], {"x": x})
    check([node("TfIdfVectorizer", "x", "y", **attributes)], {"x": x[0]})


@pytest.mark.parametrize("size", [20, 700])  # with and without a table of all transitions
def test_n_grams_of_a_pool(size: int) -> None:
    rng = np.random.default_rng(size)
    pairs = np.unique(rng.integers(0, size, (size, 2)), axis=0)
    pool = [*map(str, range(size)), *map(str, pairs.reshape(-1).tolist())]
    attributes: dict[str, Any] = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2}
    attributes |= {"max_skip_count": 1, "ngram_counts": [0, size], "pool_strings": pool}
    attributes["ngram_indexes"] = [*range(size + len(pairs))]
    drawn = np.concatenate(
        [pairs[rng.integers(0, len(pairs), 40)], rng.integers(0, size + 9, (9, 2))]
    )
    x = drawn.reshape(2, -1).astype(str).astype(object)
    check([node("TfIdfVectorizer", "x", "y", **attributes)], {"x": x})


def test_weights_belong_to_the_n_grams_of_the_pool() -> None:
    """The specification says so; onnxruntime weights by the place in the result."""
    (found,) = one(
        "TfIdfVectorizer", np.array([7, 9, 9]), mode="TFIDF", min_gram_length=1, max_gram_length=1,
        max_skip_count=0, ngram_counts=[0], ngram_indexes=[1, 0], pool_int64s=[7, 9],
        weights=[10.0, 0.5],
    )  # fmt: skip
    assert found.tolist() == [1.0, 10.0]


@pytest.mark.parametrize("far", [0, 1 << 40])
@pytest.mark.parametrize("indexes", [[2, 0, 1, 3], [1, 0, 1, 2]])
def test_integers_that_are_far_apart_are_in_no_n_gram(far: int, indexes: list[int]) -> None:
    """Two n-grams may have one output: onnxruntime overwrites it, and the sum is expected here."""
    limits = np.iinfo(np.int64)
    x = np.array([[-5, 7, limits.min, limits.max], [7 + far, -5, 7 + far, 8]])
    (found,) = one(
        "TfIdfVectorizer", x, mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0,
        ngram_counts=[0, 2], ngram_indexes=indexes, pool_int64s=[-5, 7 + far, -5, 7 + far, 7, 8],
    )  # fmt: skip
    counts = np.array([[1, 1 - bool(far), 1 - bool(far), 0], [1, 2, 1, 1 - bool(far)]])
    expected = np.zeros((2, max(indexes) + 1))
    np.add.at(expected.T, indexes, counts.T)
    np.testing.assert_array_equal(found, expected)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────


def test_cast_from_text() -> None:
    x = texts("9223372036854775807", "-3", "2.9", "1e3")
    (found,) = one("Cast", x, to=TensorProto.INT64)
    assert found.tolist() == [9223372036854775807, -3, 2, 1000]
    (found,) = one("Cast", texts("18446744073709551615"), to=TensorProto.UINT64)
    assert found.tolist() == [18446744073709551615]
    (found,) = one("Cast", texts("+INF", "-inf", "NaN", "1E8", "0.1"), to=TensorProto.DOUBLE)
    np.testing.assert_array_equal(found, [np.inf, -np.inf, np.nan, 1e8, 0.1])


def test_cast_to_text() -> None:
    (found,) = one("Cast", np.array([0.1, np.inf, -np.inf, np.nan], np.float32), to=8)
    assert found.tolist() == ["0.1", "INF", "-INF", "NaN"]
    (found,) = one("Cast", np.array([True, False]), to=8)
    assert found.tolist() == ["1", "0"]
