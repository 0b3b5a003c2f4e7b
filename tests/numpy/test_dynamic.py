"""Operators whose result has a shape that only the data tell, and strings, against onnxruntime.

Nothing is declared about any shape, and what decides on the result's is fed, not part of the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet

from .nodes import Array, assert_same, by_onnxruntime, check, model_of, node, texts

NUMBERS = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 7
WORDS = np.array([["b", "a", "ä"], ["a", "", "b"]], object)
BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
SCORES = np.array([[[0.9, 0.75, 0.6]]], np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: Any, kind: Any = np.int64) -> Array:
    return np.array(value, kind)


#: Operator, attributes, inputs, outputs.
CASES: list[tuple[str, dict[str, Any], list[Array], str]] = [
    ("NonZero", {}, [NUMBERS], "y"),
    ("NonZero", {}, [np.zeros((2, 0), np.float32)], "y"),
    ("Unique", {}, [NUMBERS], "y i j n"),
    ("Unique", {"axis": 1, "sorted": 0}, [NUMBERS[0, :, :2] // 4], "y i j n"),
    ("Compress", {}, [NUMBERS, np.array([True, False, True])], "y"),
    ("Compress", {"axis": 2}, [NUMBERS, np.array([False, True])], "y"),
    ("TopK", {"axis": 1}, [NUMBERS, ints(2)], "y i"),
    ("TopK", {"largest": 0}, [NUMBERS.astype(np.int64), ints(0)], "y i"),
    ("Range", {}, [scalar(1), scalar(10), scalar(4)], "y"),
    ("Range", {}, [scalar(1, np.float32), scalar(0, np.float32), scalar(-0.3, np.float32)], "y"),
    ("ConstantOfShape", {}, [ints(2, 0, 3)], "y"),
    ("Reshape", {}, [NUMBERS, ints(4, -1)], "y"),
    ("Reshape", {"allowzero": 1}, [NUMBERS[:0], ints(0, 5)], "y"),
    ("Expand", {}, [NUMBERS[:, :1], ints(3, 1)], "y"),
    ("Tile", {}, [NUMBERS, ints(2, 1, 3)], "y"),
    ("Slice", {}, [NUMBERS, ints(1, -1), ints(9, 0), ints(0, 2), ints(1, -2)], "y"),
    ("Pad", {}, [NUMBERS, ints(0, 1, 2, 1, 0, 0), scalar(5, np.float32)], "y"),
    ("Squeeze", {}, [NUMBERS[:1], ints(0)], "y"),
    ("Squeeze", {}, [NUMBERS[:1, :1]], "y"),
    ("Unsqueeze", {}, [NUMBERS, ints(0, -1)], "y"),
    ("Split", {"axis": 2}, [NUMBERS, ints(1, 3)], "y z"),
    ("OneHot", {}, [ints(1, -1, 0), scalar(3), np.array([0, 2], np.float32)], "y"),
    ("ReduceSum", {"keepdims": 0}, [NUMBERS, ints(0, 2)], "y"),
    ("CenterCropPad", {}, [NUMBERS, ints(4, 1, 4)], "y"),
    ("Resize", {"mode": "nearest"}, [NUMBERS, np.array([1, 2, 1.5], np.float32)], "y"),
    ("NonMaxSuppression", {}, [BOXES, SCORES, ints(3), np.array([0.5], np.float32)], "y"),
    ("Gather", {"axis": 1}, [NUMBERS, ints(2, 0, -1)], "y"),
    ("GatherND", {}, [NUMBERS, np.array([[0, 1], [1, -1]])], "y"),
    ("ScatterND", {}, [NUMBERS, np.array([[0, 1], [1, -1]]), NUMBERS[0, :2]], "y"),
    ("ScatterND", {"reduction": "min"}, [NUMBERS[:, :0], np.array([[1]]), NUMBERS[:1, :0]], "y"),
    ("Shape", {"start": 1}, [NUMBERS], "y"),
    ("Size", {}, [NUMBERS], "y"),
    ("EyeLike", {"k": -(1 << 63)}, [NUMBERS[0, :2]], "y"),
    ("Identity", {}, [WORDS], "y"),
    ("Equal", {}, [WORDS, WORDS[:1]], "y"),
    ("Where", {}, [np.array([True, False, True]), WORDS, texts("x")], "y"),
    ("Reshape", {}, [WORDS, ints(-1)], "y"),
    ("Squeeze", {}, [WORDS[:1], ints(0)], "y"),
    ("Unsqueeze", {}, [WORDS, ints(1)], "y"),
    ("Flatten", {"axis": 0}, [WORDS], "y"),
    ("Concat", {"axis": 0}, [WORDS, WORDS[:1]], "y"),
    ("Gather", {"axis": 1}, [WORDS, ints(2, 0)], "y"),
    ("GatherElements", {"axis": 1}, [WORDS, np.array([[0], [2]])], "y"),
    ("GatherND", {}, [WORDS, np.array([[0, 1], [1, 2]])], "y"),
    ("Slice", {}, [WORDS, ints(-1), ints(-9), ints(1), ints(-1)], "y"),
    ("Unique", {}, [WORDS], "y i j n"),
    ("Compress", {"axis": 1}, [WORDS, np.array([True, False, True])], "y"),
    ("Split", {"axis": 1}, [WORDS, ints(2, 1)], "y z"),
    ("Expand", {}, [WORDS[:1], ints(2, 3)], "y"),
    ("Tile", {}, [WORDS, ints(1, 2)], "y"),
    ("Transpose", {}, [WORDS], "y"),
    ("ScatterND", {}, [WORDS, np.array([[0, 1]]), texts("new")], "y"),
    ("ScatterElements", {"axis": 1}, [WORDS, np.array([[2]]), texts("new")[np.newaxis]], "y"),
    ("OneHot", {}, [ints(1, 0), scalar(2), texts("off", "on")], "y"),
    ("Shape", {}, [WORDS], "y"),
    ("Size", {}, [WORDS], "y"),
    ("ReverseSequence", {}, [WORDS, ints(1, 2, 2)], "y"),
]


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "outputs"),
    [pytest.param(*case, id=f"{case[0]}-{i}") for i, case in enumerate(CASES)],
)
def test_one(op: str, attributes: dict[str, Any], inputs: list[Array], outputs: str) -> None:
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    names = "x0 - x1" if op == "Resize" else " ".join(feeds)
    check([node(op, names, outputs, **attributes)], feeds, outputs)


@pytest.mark.parametrize(
    ("op", "inputs", "want"),
    [
        ("Pad", [WORDS, ints(0, 1, 0, 0)], [["", "b", "a", "ä"], ["", "a", "", "b"]]),
        ("CenterCropPad", [WORDS, ints(1, 5)], [["", "b", "a", "ä", ""]]),
        ("Trilu", [WORDS], [["b", "a", "ä"], ["", "", "b"]]),
    ],
)
def test_strings_are_filled_up_with_empty_ones(
    op: str, inputs: list[Array], want: list[list[str]]
) -> None:
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    with tercet.load(model_of([node(op, " ".join(feeds), "y")], feeds, "y")) as model:
        (found,) = model.run(feeds).values()
    assert found.tolist() == want


def test_sizes_that_change_from_run_to_run() -> None:
    """Elements above a threshold, sorted, then multiplied by a matrix: three unknown sizes."""
    nodes = [
        node("Greater", "x t", "mask"),
        node("Compress", "x mask", "kept"),
        node("Shape", "kept", "n"),
        node("TopK", "kept n", "sorted i"),
        node("Reshape", "sorted shape", "column"),
        node("MatMul", "column row", "product"),
        node("NonZero", "product", "y"),
    ]
    x = np.random.default_rng(3).standard_normal(40).astype(np.float32)
    row = np.array([[1, 0, -2]], np.float32)
    feeds = {"x": x, "t": scalar(0, np.float32), "shape": ints(-1, 1), "row": row}
    proto = model_of(nodes, feeds, "product y")
    with tercet.load(proto) as model:
        for limit in (0.0, 1.0, -9.0, 99.0, 0.5):
            now = feeds | {"t": scalar(limit, np.float32), "x": x[: 40 - int(abs(limit))]}
            if limit == 99:
                now["x"] = x
            for got, want in zip(model.run(now).values(), by_onnxruntime(proto, now), strict=True):
                assert_same(got, want)


@pytest.mark.parametrize(
    ("operator", "numbers"),
    [
        ("Slice", [0, 1]),
        ("Slice", [0, 2, 0, 1]),
        ("Tile", [2]),
        ("Split", [3]),
        ("ReduceSum", [0]),
        ("Unsqueeze", [0]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["optimised", "plain"])
def test_a_number_stands_for_a_list_of_one(
    operator: str, numbers: list[int], options: dict[str, Any]
) -> None:
    found = []
    for form in (np.array, ints):
        feeds = {f"n{k}": form(number) for k, number in enumerate(numbers)}
        nodes = [node(operator, " ".join(("x", *feeds)), "y")]
        feeds["x"] = np.arange(3, dtype=np.float32)
        with tercet.load(model_of(nodes, feeds, "y"), **options) as loaded:
            found.append(loaded.run(feeds))
    np.testing.assert_equal(*found)
