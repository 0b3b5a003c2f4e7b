"""How often the types of nodes that run one by one are inferred."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tercet
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.ops.text import StringNormalizer, TfIdfVectorizer

from .nodes import Array, model_of, node, texts


def counted(monkeypatch: pytest.MonkeyPatch, kind: type[Op]) -> list[Any]:
    """Return a list that grows with each inference of an operator."""
    calls, infer = list[Any](), kind.infer

    def call(op: Op, *types: Any) -> Any:
        calls.append(types)
        return infer(op, *types)

    monkeypatch.setattr(kind, "infer", call)
    return calls


@pytest.mark.parametrize(
    ("kind", "attributes", "other"),
    [
        (StringNormalizer, {"case_change_action": "UPPER"}, {}),
        (Reshape, {}, {"s": np.array([-1, 2])}),
    ],
)
def test_types_of_texts_are_inferred_once_per_shape(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Op],
    attributes: dict[str, Any],
    other: dict[str, Array],
) -> None:
    feeds = {"x": texts("a", "bc"), **other}
    model = model_of([node(kind.__name__, " ".join(feeds), "y", **attributes)], feeds, "y")
    with tercet.load(model, backend="numpy") as loaded:
        for _ in range(3):
            loaded.run(feeds)
        calls = counted(monkeypatch, kind)
        for word in ("d", "efg"):
            (y,) = loaded.run(feeds | {"x": texts(word, "x")}).values()
            assert [text.lower() for text in y.flat] == [word, "x"]
        assert not calls


def test_numbers_that_determine_the_shape_of_texts_are_read_in_each_run() -> None:
    feeds = {"x": texts("a", "b", "c", "d"), "s": np.array([4])}
    with tercet.load(model_of([node("Reshape", "x s", "y")], feeds, "y")) as loaded:
        for shape in ([4], [2, 2], [-1, 1], [4], [2, 2]):
            (y,) = loaded.run(feeds | {"s": np.array(shape)}).values()
            assert y.shape == feeds["x"].reshape(shape).shape


def test_texts_that_determine_a_shape_are_read_in_each_run() -> None:
    x = texts("a", "b", "c")
    model = model_of([node("StringNormalizer", "x", "y", stopwords=["b"])], {"x": x}, "y")
    with tercet.load(model) as loaded:
        for words in (["a", "b", "c"], ["a", "b", "b"], ["b", "b", "b"], ["a", "c", "c"]):
            (y,) = loaded.run({"x": texts(*words)}).values()
            assert y.tolist() == ([word for word in words if word != "b"] or [""])


def test_bytes_of_texts_with_another_shape_count_once() -> None:
    x = texts(*(letter * 100_000 for letter in "abcdefgh"))
    nodes = [node("StringNormalizer", "x", "u", case_change_action="UPPER")]
    for source, result in ("ua", "ab", "bc", "cy"):
        nodes.append(node("Flatten", source, result, axis=0))
    model = model_of(nodes, {"x": x}, "y")
    with tercet.load(model, backend="numpy", max_bytes=1_500_000) as loaded:
        (y,) = loaded.run({"x": x}).values()
    assert y.tolist() == [[text.upper() for text in x]]
    assert y.flags.owndata


class Numbers(tuple[int, ...]):
    """Numbers that say when somebody looks at all of them."""

    seen: list[str]

    def __iter__(self) -> Any:
        self.seen.append("")
        return super().__iter__()


def test_a_pool_of_n_grams_is_checked_once() -> None:
    indexes = Numbers((2, 0, 1))
    indexes.seen = []
    make: Callable[..., TfIdfVectorizer] = TfIdfVectorizer
    op = make(mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
              ngram_counts=(0,), ngram_indexes=indexes, pool_int64s=(1, 2, 3))  # fmt: skip
    x = TensorType(np.dtype(np.int64), (2, 5))
    assert op.infer(x).shape == (2, 3)
    assert indexes.seen
    indexes.seen.clear()
    assert op.infer(x.with_shape((7, None))).shape == (7, 3)
    assert not indexes.seen
