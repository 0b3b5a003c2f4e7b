"""Sequences and optionals against onnxruntime, and against the specification where it is wider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tercet

from .nodes import Array, assert_same, by_onnxruntime, check, model_of, node, run, texts

A, B, C = (np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * i for i in range(3))
CONSTRUCT = node("SequenceConstruct", "a b c", "s")
FEEDS = {"a": A, "b": B, "c": C}


def at(position: int) -> dict[str, Array]:
    return {"i": np.array(position)}


@pytest.mark.parametrize("position", range(-3, 4))
def test_insert(position: int) -> None:
    nodes = [CONSTRUCT, node("SequenceInsert", "s x i", "y")]
    check(nodes, FEEDS | {"x": A[:1]} | at(position))


@pytest.mark.parametrize("position", range(-3, 3))
def test_at_and_erase(position: int) -> None:
    feeds = FEEDS | at(position)
    check([CONSTRUCT, node("SequenceAt", "s i", "y")], feeds)
    check([CONSTRUCT, node("SequenceErase", "s i", "y")], feeds)


def test_without_a_position() -> None:
    check([CONSTRUCT, node("SequenceInsert", "s a", "t"), node("SequenceErase", "t", "y")], FEEDS)


@pytest.mark.parametrize(
    ("op", "position"),
    [("SequenceInsert", 4), ("SequenceInsert", -4), ("SequenceErase", 3), ("SequenceAt", -4)],
)
def test_positions_outside_are_refused(op: str, position: int) -> None:
    inputs = "s a i" if op == "SequenceInsert" else "s i"
    feeds = FEEDS | at(position)
    model = model_of([CONSTRUCT, node(op, inputs, "y")], feeds, "y")
    with pytest.raises(tercet.TercetError, match=f"position {position} of a sequence of 3"):
        run(model, feeds)


def test_empty_and_length() -> None:
    empty = node("SequenceEmpty", "", "s", dtype=TensorProto.FLOAT)
    insert = node("SequenceInsert", "s a", "t")
    lengths = [node("SequenceLength", "s", "n"), node("SequenceLength", "t", "m")]
    check([empty, insert, *lengths], {"a": A}, "n m")
    assert_same(run(model_of([empty], {}, "s"), {}), [[]])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("new_axis", [0, 1])
def test_concat(axis: int, new_axis: int) -> None:
    check(
        [CONSTRUCT, node("ConcatFromSequence", "s", "y", axis=axis, new_axis=new_axis)],
        FEEDS,
    )


def test_concat_of_different_sizes() -> None:
    nodes = [node("SequenceConstruct", "a b", "s"), node("ConcatFromSequence", "s", "y", axis=0)]
    check(nodes, {"a": A, "b": B[:1]})


@pytest.mark.parametrize("new_axis", [0, 1])
def test_tensors_that_do_not_fit_are_refused(new_axis: int) -> None:
    """The sequence is an input, so that only a run knows the shapes in it."""
    whole = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    last = node("ConcatFromSequence", "s", "y", axis=0, new_axis=new_axis)
    graph = helper.make_graph([last], "g", [whole], [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with tercet.load(model) as loaded:
        with pytest.raises(tercet.ModelError, match=r"ConcatFromSequence.*: 3 against 2"):
            loaded.run({"s": [A, A[:, :2]]})
        with pytest.raises(tercet.DeviceError, match=r"ConcatFromSequence.*: the list is empty"):
            loaded.run({"s": []})


def test_an_axis_that_none_has_is_refused() -> None:
    """Also where a tensor without elements would not fit along an axis of the others."""
    whole = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    last = node("ConcatFromSequence", "s", "y", axis=-3)
    graph = helper.make_graph([last], "g", [whole], [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with (
        tercet.load(model) as loaded,
        pytest.raises(tercet.ModelError, match=r"axis=-3 is out of range for a tensor of rank 2"),
    ):
        loaded.run({"s": [A, A[:0, 0]]})


@pytest.mark.parametrize("split", [None, *map(np.array, (1, 2, 5, [1, 0, 4], [1] * 5))])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", [np.float32, np.int64, object])
def test_split(split: Array | None, keepdims: int, kind: Any) -> None:
    x = np.arange(10).reshape(2, 5)
    x = x.astype(str).astype(object) if kind is object else x.astype(kind)
    feeds = {"x": x} if split is None else {"x": x, "n": split}
    inputs = "x" if split is None else "x n"
    # The specification ignores keepdims where there is split; onnxruntime heeds it for a scalar,
    # and fails unless it is 1.
    given = 1 if split is not None and split.max() > 1 else keepdims
    model = model_of([node("SplitToSequence", inputs, "y", axis=-1, keepdims=keepdims)], feeds, "y")
    other = model_of([node("SplitToSequence", inputs, "y", axis=-1, keepdims=given)], feeds, "y")
    assert_same(run(model, feeds), by_onnxruntime(other, feeds))


@pytest.mark.parametrize("split", [np.array(0), np.array([2, 2]), np.array([7, -2])])
def test_wrong_splits_are_refused(split: Array) -> None:
    feeds = {"x": np.arange(5.0), "n": split}
    with pytest.raises(tercet.TercetError, match=r"split|parts"):
        run(model_of([node("SplitToSequence", "x n", "y")], feeds, "y"), feeds)


def test_sequences_of_strings_and_of_small_types() -> None:
    feeds = {"s": [texts("a", "b"), texts("c")], "i": np.array(-1)}
    nodes = [node("SequenceAt", "s i", "x"), node("ConcatFromSequence", "s", "y", axis=0)]
    last, joined = run(model_of(nodes, feeds, "x y"), feeds)
    assert last.tolist() == ["c"]
    assert joined.tolist() == ["a", "b", "c"]
    half = A.astype(np.float16)
    (parts,) = run(model_of([node("SplitToSequence", "x", "y")], {"x": half}, "y"), {"x": half})
    assert_same(parts, [half[:1], half[1:]])


def test_identity_of_a_sequence() -> None:
    nodes = [CONSTRUCT, node("Identity", "s", "y")]
    assert_same(run(model_of(nodes, FEEDS, "y"), FEEDS), [[A, B, C]])


# ── optionals ────────────────────────────────────────────────────────────────────────────────────


def test_optional_with_an_element() -> None:
    nodes = [
        node("Optional", "a", "o"),
        node("OptionalHasElement", "o", "y"),
        node("OptionalGetElement", "o", "x"),
    ]
    check(nodes, {"a": A}, "y x")


def test_optional_of_a_sequence() -> None:
    nodes = [CONSTRUCT, node("Optional", "s", "o"), node("OptionalGetElement", "o", "x")]
    assert_same(run(model_of(nodes, FEEDS, "x"), FEEDS), [[A, B, C]])


def test_empty_optional() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    empty = node("Optional", "", "o", type=kind)
    has = node("OptionalHasElement", "o", "y")
    (found,) = run(model_of([empty, has], {}, "y"), {})
    assert found.dtype == bool
    assert found.shape == ()
    assert not found
    with pytest.raises(tercet.TercetError, match="the optional is empty"):
        run(model_of([empty, node("OptionalGetElement", "o", "x")], {}, "x"), {})


def test_no_optional_at_all() -> None:
    (found,) = run(model_of([node("OptionalHasElement", "", "y")], {}, "y"), {})
    assert not found
