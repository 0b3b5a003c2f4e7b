"""Tensors that are assigned in parts are Concats of these: results are onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tercet
from tercet.runtime.ir.graph import Node
from tercet.runtime.ops.cuts import Update
from tercet.runtime.passes.moves import join_written

from .graphs import normal, optimised_file

#: Rows that each of two assignments to six rows writes, and the values.
PARTS = {
    "in order": ("0, 1, 2, 3", "4, 5"),
    "the last first": ("4, 5", "0, 1, 2, 3"),
    "from the end": ("0, 1, 2, 3", "-2, -1"),
}
STRIDED = {
    "in order": ("0, 2, 4", "1, 3, 5"),
    "the last first": ("1, 3, 5", "0, 2, 4"),
}
OTHERS = {
    "two of three places": ("0, 3", "1, 4"),
    "a place twice": ("0, 2, 4", "0, 2, 4"),
    "a place and a row": ("0, 2, 4", "1, 3"),
    "a row is left": ("0, 1, 2", "4, 5"),
    "a row is written twice": ("0, 1, 2, 3", "3, 4, 5"),
    "not in order": ("1, 0, 2, 3", "4, 5"),
    "everything at once": ("0, 1", "0, 1, 2, 3, 4, 5"),
}


def model(first: str, second: str, more: str = "") -> ModelProto:
    """Return ``y = x.clone(); y[..., first] = a; y[..., second] = b``, as it is traced."""
    sizes = [text.count(",") + 1 for text in (first, second)]
    return parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[2, 3, 6] x, float[2, 3, {sizes[0]}] a, float[2, 3, {sizes[1]}] b) => (y)
        <int64[{sizes[0]}, 1] i = {{{first}}}, int64[{sizes[1]}, 1] j = {{{second}}}> {{
            front = Transpose <perm = [2, 0, 1]> (x)
            u = Transpose <perm = [2, 0, 1]> (a)
            v = Transpose <perm = [2, 0, 1]> (b)
            one = ScatterND (front, i, u)
            both = ScatterND {more} (one, j, v)
            y = Transpose <perm = [1, 2, 0]> (both)
        }}"""
    )


def assert_as_onnxruntime(proto: ModelProto) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        each.name: rng.standard_normal([d.dim_value for d in each.type.tensor_type.shape.dim])
        for each in proto.graph.input
    }
    feeds = {name: data.astype(np.float32) for name, data in feeds.items()}
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=providers)
    (want,) = session.run(None, feeds)
    with tercet.load(proto, "numpy") as loaded:
        np.testing.assert_array_equal(loaded.run(feeds)["y"], want)


@pytest.mark.parametrize("name", PARTS)
def test_all_rows_are_joined_where_they_are(name: str) -> None:
    proto = model(*PARTS[name])
    kinds, log = optimised_file(proto)
    assert log.counts["join_written"] == 1
    assert kinds == ["Concat"]
    assert_as_onnxruntime(proto)


BACK = "whole = Transpose <perm = [1, 2, 0]> (one)\n"
#: What is between two assignments, the second of which writes to `again`, and whether they join.
BETWEEN = {
    "there and back": (f"{BACK} again = Transpose <perm = [2, 0, 1]> (whole)", True),
    "its sizes are known": (
        f"""{BACK} again = Transpose <perm = [2, 0, 1]> (whole)
        sizes = Shape (whole)
        all = Cast <to = 1> (sizes)
        number = ReduceMax (all)""",
        True,
    ),
    "it is read": (
        f"{BACK} again = Transpose <perm = [2, 0, 1]> (whole) number = ReduceMax (whole)",
        False,
    ),
    "in another order": (f"{BACK} again = Transpose <perm = [2, 1, 0]> (whole)", False),
}


@pytest.mark.parametrize("case", BETWEEN)
def test_transposes_between_two_assignments(case: str) -> None:
    """As of queries and keys with latent attention (MiniCPM3) that are exported by torch.export."""
    between, joins = BETWEEN[case]
    square = 3 if case == "in another order" else 2
    proto = parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[{square}, 3, 6] x, float[{square}, 3, 4] a, float[{square}, 3, 2] b) => (y)
        <int64[4, 1] i = {{0, 1, 2, 3}}, int64[2, 1] j = {{4, 5}}, float number = {{1}}> {{
            front = Transpose <perm = [2, 0, 1]> (x)
            u = Transpose <perm = [2, 0, 1]> (a)
            v = Transpose <perm = [2, 0, 1]> (b)
            one = ScatterND (front, i, u)
            {between}
            both = ScatterND (again, j, v)
            part = Transpose <perm = [1, 2, 0]> (both)
            y = Mul (part, number)
        }}"""
    )
    if "number" in between:
        del proto.graph.initializer[2]
    kinds, log = optimised_file(proto)
    assert (log.counts.get("join_written") == 1) is joins
    assert joins is ("ScatterND" not in kinds)
    assert_as_onnxruntime(proto)


@pytest.mark.parametrize("name", STRIDED)
def test_every_other_place_is_stacked_where_it_is(name: str) -> None:
    proto = model(*STRIDED[name])
    kinds, log = optimised_file(proto)
    assert log.counts["join_written"] == 1
    assert "ScatterND" not in kinds
    assert "Transpose" not in kinds
    assert_as_onnxruntime(proto)


def test_every_third_place_of_rows() -> None:
    proto = parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[6, 3] x, float[2, 3] a, float[2, 3] b, float[2, 3] c) => (y)
        <int64[2, 1] i = {0, 3}, int64[2, 1] j = {2, 5}, int64[2, 1] k = {1, 4}> {
            one = ScatterND (x, i, a)
            two = ScatterND (one, j, b)
            y = ScatterND (two, k, c)
        }"""
    )
    assert optimised_file(proto)[1].counts["join_written"] == 1
    assert_as_onnxruntime(proto)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_written(name: str) -> None:
    proto = model(*OTHERS[name])
    _, log = optimised_file(proto)
    assert "join_written" not in log.counts
    assert_as_onnxruntime(proto)


def test_assignments_to_a_tensor_of_unknown_rank() -> None:
    proto = parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[6, 4] x, int64[n] shape, float[2, 4] a, float[4, 4] b) => (y)
        <int64[2, 1] i = {0, 1}, int64[4, 1] j = {2, 3, 4, 5}> {
            shaped = Reshape (x, shape)
            one = ScatterND (shaped, i, a)
            y = ScatterND (one, j, b)
        }"""
    )
    feeds = {"x": normal(6, 4), "shape": np.array([6, 4]), "a": normal(2, 4), "b": normal(4, 4)}
    with tercet.load(proto) as loaded:
        found = loaded.run(feeds)["y"]
    np.testing.assert_array_equal(found, np.concatenate((feeds["a"], feeds["b"])))


def test_sums_are_no_assignments() -> None:
    proto = model(*PARTS["in order"], '<reduction = "add">')
    assert "join_written" not in optimised_file(proto)[1].counts
    assert_as_onnxruntime(proto)


#: Places of the axis that the two scatters of `along` write.
PLACES = {"in order": (0, 1), "the last first": (1, 0), "twice": (1, 1)}


@pytest.mark.parametrize("name", PLACES)
def test_scatters_along_an_axis(name: str) -> None:
    """As `select_scatter` is exported: one step of a recurrence each."""
    first, second = PLACES[name]
    proto = parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[2, 2, 3] x, float[2, 1, 3] a, float[2, 1, 3] b) => (float[2, 2, 3] y)
        <int64[2, 1, 3] i = {{{", ".join([str(first)] * 6)}}},
         int64[2, 1, 3] j = {{{", ".join([str(second)] * 6)}}}> {{
            one = ScatterElements <axis = 1> (x, i, a)
            y = ScatterElements <axis = -2> (one, j, b)
        }}"""
    )
    kinds, log = optimised_file(proto)
    assert ("join_written" in log.counts) == (name != "twice")
    assert ("Concat" in kinds) == (name != "twice")
    assert_as_onnxruntime(proto)


def steps(places: list[int], count: int) -> ModelProto:
    """Return a tensor of `count` places, some of which are written one after the other."""
    rows = [
        f"int64[2, 1, 3] i{n} = {{{', '.join([str(place)] * 6)}}}" for n, place in enumerate(places)
    ]
    nodes = [f"u{n + 1} = Add (u{n}, u0)" for n in range(len(places))]
    nodes += [
        f"d{n + 1} = ScatterElements <axis = 1> (d{n}, i{n}, u{n})" for n in range(len(places))
    ]
    return parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[2, {count}, 3] d0, float[2, 1, 3] u0) => (float[2, {count}, 3] y)
        <{", ".join(rows)}> {{
            {" ".join(nodes)}
            y = Relu (d{len(places)})
        }}"""
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_place_may_be_written_once_more(first: bool) -> None:
    """What comes before all others is dropped; what comes after them is written into these."""
    proto = steps([2, 0, 3, 1, 2] if first else [0, 1, 2, 3, 2], 4)
    kinds, log = optimised_file(proto)
    assert log.counts["join_written"] == 1
    assert kinds.count("Concat") == 1
    assert kinds.count("ScatterElements") == (not first)
    assert_as_onnxruntime(proto)


@pytest.mark.parametrize("count", [40, 41])
def test_each_step_is_read_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not all rows are written."""
    asked: list[object] = []

    def update_of(node: Node) -> Update | None:
        asked.append(node)
        return real(node)

    real = join_written.update_of
    monkeypatch.setattr(join_written, "update_of", update_of)
    _, log = optimised_file(steps(list(range(40)), count))
    assert ("join_written" in log.counts) == (count == 40)
    assert len(asked) == len(set(map(id, asked)))
