"""Indices of rows that a program has expanded are indices of rows: results are onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import tercet
from tercet.runtime.ir.types import Array

from .graphs import kinds

#: And casts, and coordinates that are joined.
VIEWS = ("Squeeze", "Unsqueeze", "Reshape", "Concat", "Cast")
HEADER = '<ir_version: 10, opset_import: ["" : 21]>'


def expanded(name: str, value: str, dims: str) -> str:
    """Return the nodes that expand a value to these sizes."""
    count = len(dims.split(","))
    shape = f"{name}s = Constant <value = int64[{count}] {{{dims}}}> ()"
    return f"{shape}\n{name} = Expand ({value}, {name}s)"


def checked(text: str, feeds: dict[str, Array], *operators: str) -> None:
    """Compare with onnxruntime, and the graph's operators, views aside, with those expected."""
    proto = parse_model(f"{HEADER} g {text}")
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (wanted,) = session.run(None, feeds)
    with tercet.load(proto) as model:
        result = model.run(feeds)["y"]
        assert [kind for kind in kinds(model.graph) if kind not in VIEWS] == list(operators)
    np.testing.assert_allclose(result, np.asarray(wanted), rtol=1e-6)


def indices(*shape: int, below: int) -> Array:
    return np.random.default_rng(0).integers(-below, below, shape)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("batch", "operator"), [(1, "Gather"), (3, "GatherND")])
def test_rows_of_each_sample(batch: int, operator: str) -> None:
    """As a detector selects its queries."""
    text = f"""(float[{batch},9,4] x, int64[{batch},5,1] i) => (float[{batch},5,4] y) {{
        {expanded("e", "i", f"{batch},5,4")}
        y = GatherElements <axis = 1> (x, e) }}"""
    checked(text, {"x": numbers(batch, 9, 4), "i": indices(batch, 5, 1, below=9)}, operator)


@pytest.mark.parametrize(("batch", "operator"), [(1, "Gather"), (2, "GatherND")])
def test_neighbours_of_each_point(batch: int, operator: str) -> None:
    """The data of a graph of points are expanded, too."""
    text = f"""(float[{batch},1,6,4] x, int64[{batch},6,3,1] i) => (float[{batch},6,3,4] y) {{
        {expanded("d", "x", f"{batch},6,6,4")}
        {expanded("e", "i", f"{batch},6,3,4")}
        y = GatherElements <axis = 2> (d, e) }}"""
    feeds = {"x": numbers(batch, 1, 6, 4), "i": indices(batch, 6, 3, 1, below=6)}
    checked(text, feeds, operator)


@pytest.mark.parametrize(("batch", "operator"), [(1, "Gather"), (2, "GatherND")])
def test_neighbours_behind_their_points(batch: int, operator: str) -> None:
    """Data are expanded along the axis of neighbours, which indices have (RandLA-Net)."""
    text = f"""(float[{batch},6,1,4] x, int64[{batch},5,3,1] i) => (float[{batch},5,3,4] y) {{
        {expanded("d", "x", f"{batch},6,3,4")}
        {expanded("e", "i", f"{batch},5,3,4")}
        y = GatherElements <axis = 1> (d, e) }}"""
    feeds = {"x": numbers(batch, 6, 1, 4), "i": indices(batch, 5, 3, 1, below=6)}
    checked(text, feeds, operator)


@pytest.mark.parametrize(
    ("batch", "operators"), [(1, ["Gather"]), (2, ["Transpose", "GatherND", "Transpose"])]
)
def test_channels_of_neighbours(batch: int, operators: list[str]) -> None:
    """All channels, in front of the points, have the same indices."""
    text = f"""(float[{batch},4,6,1] x, int64[{batch},1,5,3] i) => (float[{batch},4,5,3] y) {{
        {expanded("d", "x", f"{batch},4,6,3")}
        {expanded("e", "i", f"{batch},4,5,3")}
        y = GatherElements <axis = 2> (d, e) }}"""
    feeds = {"x": numbers(batch, 4, 6, 1), "i": indices(batch, 1, 5, 3, below=6)}
    checked(text, feeds, *operators)


def test_the_same_rows_of_all_samples() -> None:
    text = f"""(float[2,9,4] x, int64[1,5,1] i) => (float[2,5,4] y) {{
        {expanded("e", "i", "2,5,4")}
        y = GatherElements <axis = 1> (x, e) }}"""
    checked(text, {"x": numbers(2, 9, 4), "i": indices(1, 5, 1, below=9)}, "Gather")


@pytest.mark.parametrize(("axis", "operator"), [(0, "Gather"), (1, "GatherND")])
def test_places_that_are_expanded(axis: int, operator: str) -> None:
    """Indices choose among the copies of one row: there are as many as an Expand makes."""
    outer = "2," * axis
    text = f"""(float[{outer}1,3] x, int64[{outer}5,1] i) => (float[{outer}5,3] y) {{
        {expanded("d", "x", f"{outer}4,3")}
        {expanded("e", "i", f"{outer}5,3")}
        y = GatherElements <axis = {axis}> (d, e) }}"""
    shape = (2,) * axis
    feeds = {"x": numbers(*shape, 1, 3), "i": indices(*shape, 5, 1, below=4)}
    checked(text, feeds, "Expand", operator)


@pytest.mark.parametrize(("reduction", "dtype"), [("add", "int64"), ("max", "int32")])
def test_sums_of_edges(reduction: str, dtype: str) -> None:
    """As networks of graphs add up messages."""
    text = f"""(float[6,4] x, {dtype}[20,1] i, float[20,4] u) => (float[6,4] y) {{
        {expanded("e", "i", "20,4")}
        y = ScatterElements <axis = 0, reduction = "{reduction}"> (x, e, u) }}"""
    i = indices(20, 1, below=6).astype(dtype)
    checked(text, {"x": numbers(6, 4), "i": i, "u": numbers(20, 4)}, "ScatterND")


@pytest.mark.parametrize("batch", [1, 3])
def test_pillars_of_each_sample(batch: int) -> None:
    """As what a network has about parts of a scene is written to their places in an image."""
    of_u, of_x = f"float[{batch},7,4]", f"float[{batch},9,4]"
    text = f"""({of_x} x, int64[{batch},7,1] i, {of_u} u) => ({of_x} y) {{
        {expanded("e", "i", f"{batch},7,4")}
        y = ScatterElements <axis = 1, reduction = "add"> (x, e, u) }}"""
    feeds = {"x": numbers(batch, 9, 4), "i": indices(batch, 7, 1, below=9)}
    checked(text, {**feeds, "u": numbers(batch, 7, 4)}, "ScatterND")


def test_numbers_of_edges() -> None:
    """Each element of a vector is a slice of it."""
    text = """(float[6] x, int64[20] i, float[20] u) => (float[6] y) {
        y = ScatterElements <axis = 0, reduction = "add"> (x, i, u) }"""
    feeds = {"x": numbers(6), "i": indices(20, below=6), "u": numbers(20)}
    checked(text, feeds, "ScatterND")


@pytest.mark.parametrize(
    ("x", "i", "e", "axis"),
    [
        ((9, 4), (5, 1), "5,3", 0),  # part of a row
        ((9, 4), (5, 4), "5,4", 0),  # other places in each column
        ((9, 4), (9, 1), "9,4", 1),  # nothing is behind
        ((3, 9, 4), (2, 5, 1), "2,5,4", 1),  # of some samples only
        ((2, 3, 9), (2, 3, 5), "2,3,5", 2),  # numbers, not slices
        ((1, 9), (1, 5), "1,5", 1),  # numbers of a row
    ],
)
def test_what_stays(x: tuple[int, ...], i: tuple[int, ...], e: str, axis: int) -> None:
    dims = [",".join(map(str, each)) for each in (x, i)]
    text = f"""(float[{dims[0]}] x, int64[{dims[1]}] i) => (float[{e}] y) {{
        {expanded("e", "i", e)}
        y = GatherElements <axis = {axis}> (x, e) }}"""
    feeds = {"x": numbers(*x), "i": indices(*i, below=x[axis])}
    proto = parse_model(f"{HEADER} g {text}")
    with tercet.load(proto) as model:
        assert "GatherElements" in kinds(model.graph)
        found = model.run(feeds)["y"]
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_array_equal(found, session.run(None, feeds)[0])
