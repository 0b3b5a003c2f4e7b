"""A Reshape behind a product of rows, which moves in front of it, or stays for a reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Neg
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Flatten, Reshape, Squeeze

from .graphs import apply, assert_same, kinds, make, normal, optimised

SHAPE = (2, 5, 8)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def flat(g: Graph, x: Value) -> Value:
    return apply(g, Reshape(), x, ints(-1, 8))


def behind(g: Graph, y: Value, *shape: int) -> Value:
    return apply(g, Reshape(), y, ints(*(shape or (2, 5, -1))))


def layer(op: object = None, *data: np.ndarray) -> Callable[[Graph, Value], Value]:
    def build(g: Graph, x: Value) -> Value:
        return behind(g, apply(g, op or Gemm(), flat(g, x), *(data or (normal(8, 6),))))

    return build


MOVED: dict[str, tuple[Callable[[Graph, Value], Value], list[str]]] = {
    "a Gemm": (layer(), ["MatMul"]),
    "with a bias": (layer(Gemm(), normal(8, 6), normal(6)), ["MatMul", "Add"]),
    "transposed": (layer(Gemm(transB=1), normal(6, 8), normal(6)), ["MatMul", "Add"]),
    "a MatMul": (layer(MatMul()), ["MatMul"]),
    "other axes than before": (
        lambda g, x: behind(g, apply(g, Gemm(), flat(g, x), normal(8, 6)), 5, 2, 1, 6),
        ["Reshape", "MatMul"],
    ),
    "no Reshape in front": (
        lambda g, x: behind(
            g, apply(g, Gemm(), apply(g, Neg(), apply(g, Flatten(axis=2), x)), normal(8, 6))
        ),
        ["Flatten", "Neg", "Reshape", "MatMul"],
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_it_moves(name: str) -> None:
    build, wanted = MOVED[name]
    graph = make(build, SHAPE)
    after, log = optimised(graph)
    assert kinds(after) == wanted
    assert log.counts["hoist_reshapes"] == 1
    assert after.outputs["y"].type == graph.outputs["y"].type
    assert_same(graph, after)
    product = next(node for node in after.nodes if node.kind == "MatMul")
    assert {"Gemm", "MatMul"} & set(product.origin)


def pixels(shape: tuple[int, ...], conv: Conv, *data: np.ndarray) -> Callable[..., Value]:
    """A convolution of an image whose pixels are in one axis, and are an image again behind it."""

    def build(g: Graph, x: Value) -> Value:
        sound = apply(g, Reshape(), x, ints(2, 6, 20))
        return apply(g, Reshape(), apply(g, conv, sound, *data), ints(*shape))

    return build


@pytest.mark.parametrize("groups", [1, 2])
def test_pixels_are_convolved_as_an_image(groups: int) -> None:
    """Attention of images has their pixels in one axis (guided diffusion)."""
    conv = Conv(group=groups)
    build = pixels((2, 8, 4, 5), conv, normal(8, 6 // groups, 1), normal(8))
    graph = make(lambda g, x: apply(g, Add(), build(g, x), normal(2, 8, 4, 5)), (2, 6, 4, 5))
    after, log = optimised(graph)
    assert kinds(after) == ["Conv", "Add"]
    assert log.counts["hoist_reshapes"] == 1
    assert_same(graph, after)


PIXELS_STAY: dict[str, Callable[[Graph, Value], Value]] = {
    "channels are cut": pixels((2, 2, 4, 20), Conv(), normal(8, 6, 1)),
    "samples are cut": pixels((1, 16, 4, 5), Conv(), normal(8, 6, 1)),
    "windows": pixels((2, 8, 4, 5), Conv(pads=(1, 1)), normal(8, 6, 3)),
    "every other pixel": pixels((2, 8, 2, 5), Conv(strides=(2,)), normal(8, 6, 1)),
}


@pytest.mark.parametrize("name", PIXELS_STAY)
def test_pixels_stay_in_one_axis(name: str) -> None:
    graph = make(PIXELS_STAY[name], (2, 6, 4, 5))
    after, log = optimised(graph)
    assert "hoist_reshapes" not in log.counts
    assert_same(graph, after)


def test_layers_of_integers_move() -> None:
    """Their sums are the same in any order."""
    data = np.arange(-24, 24).reshape(8, 6).astype(np.int32)
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (int32[2, 5, 8] x) => (int32[2, 5, 6] y)
      <int64[2] rows = {10, 8}, int64[3] shape = {2, 5, 6}, int32[6] b = {1, 2, 3, 4, 5, 6}>
      { r = Reshape(x, rows) p = Gemm(r, w, b) y = Reshape(p, shape) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(data, "w"))
    x = np.arange(80, dtype=np.int32).reshape(2, 5, 8)
    with tercet.load(proto) as model:
        found = model.run({"x": x})["y"]
        assert "hoist_reshapes" in {each.name for each in model.rewrites}
    np.testing.assert_array_equal(found, x @ data + np.arange(1, 7))


STAYS: dict[str, Callable[[Graph, Value], Value]] = {
    "columns are cut": lambda g, x: behind(
        g, apply(g, Gemm(), flat(g, x), normal(8, 6)), 2, 5, 2, 3
    ),
    "rows are joined with columns": lambda g, x: behind(
        g, apply(g, Gemm(), flat(g, x), normal(8, 6)), 2, 30, 1
    ),
    "fewer axes": lambda g, x: behind(g, apply(g, MatMul(), x, normal(8, 6)), 10, 6),
    "a factor": layer(Gemm(alpha=0.5), normal(8, 6)),
    "a bias by row": layer(Gemm(), normal(8, 6), normal(10, 1)),
    "a computed weight": lambda g, x: behind(
        g, apply(g, MatMul(), flat(g, x), apply(g, Reshape(), apply(g, Neg(), x), ints(8, 10)))
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_it_stays(name: str) -> None:
    graph = make(STAYS[name], SHAPE)
    after, log = optimised(graph)
    assert "hoist_reshapes" not in log.counts
    assert_same(graph, after)


def test_others_may_read_the_rows() -> None:
    graph = make(layer(), SHAPE)
    rows = graph.nodes[1].output
    graph.set_outputs({**graph.outputs, "rows": rows})
    _, log = optimised(graph)
    assert "hoist_reshapes" not in log.counts


@pytest.mark.parametrize("shape", [("n", 5, 8), ("n", "m", 8)])
def test_one_size_may_vary(shape: tuple[Dim, ...]) -> None:
    def build(g: Graph, x: Value) -> Value:
        return behind(g, apply(g, Gemm(), flat(g, x), normal(8, 6)), -1, 5, 6)

    graph = make(build, shape)
    after, _ = optimised(graph)
    assert kinds(after)[-1] == "MatMul"
    assert_same(graph, after, *SHAPE)


def counted(g: Graph, x: Value, *, cut: tuple[int, ...] = (2, 2, 5, 5)) -> Value:
    """The scores of two heads, all matrices counted by one axis, as tf2onnx writes Einsum."""
    heads = apply(g, Reshape(), x, ints(2, 5, 2, 4))
    q = apply(g, Reshape(), apply(g, Transpose(perm=(0, 2, 1, 3)), heads), ints(4, 5, 4))
    k = apply(g, Reshape(), apply(g, Transpose(perm=(0, 2, 3, 1)), heads), ints(4, 4, 5))
    scores = apply(g, Reshape(), apply(g, MatMul(), q, k), ints(*cut, 1))
    return apply(g, Neg(), apply(g, Squeeze(), scores, ints(-1)))


def test_matrices_in_one_row_get_axes_of_their_own() -> None:
    graph = make(counted, SHAPE)
    after, log = optimised(graph)
    assert log.counts["hoist_reshapes"] == 1
    (product,) = (node for node in after.nodes if node.kind == "MatMul")
    assert product.output.tensor.dims == (2, 2, 5, 5)
    transposed = ["Reshape", "Transpose", "Transpose"]
    assert kinds(after) == [*transposed, "MatMul", "Neg"]
    assert_same(graph, after)


@pytest.mark.parametrize("cut", [(2, 2, 25, 1), (2, 10, 5), (2, 2, 1, 5, 5)])
def test_a_cut_through_the_matrices_stays(cut: tuple[int, ...]) -> None:
    graph = make(lambda g, x: counted(g, x, cut=cut), SHAPE)
    after, _ = optimised(graph)
    assert_same(graph, after)
    (product,) = (node for node in after.nodes if node.kind == "MatMul")
    assert (len(product.output.tensor.dims) == 3) == (cut[-2:] != (5, 5))


@pytest.mark.parametrize("masked", [True, False])
def test_keys_without_the_axis_of_a_single_sample(masked: bool) -> None:
    """As torch.onnx's optimizer leaves the attention of DETR for one image."""

    def build(g: Graph, x: Value) -> Value:
        heads = [apply(g, Transpose(perm=(0, 2, 1, 3)), x) for _ in range(3)]
        q, k, v = (apply(g, Reshape(), each, ints(3, 5, 8)) for each in heads)
        keys = apply(g, Transpose(perm=(0, 2, 1)), k)
        scores = apply(g, MatMul(), heads[0] if masked else q, keys)
        if masked:
            scores = behind(g, apply(g, Add(), scores, normal(1, 1, 5, 5)), 3, 5, 5)
        weights = apply(g, Softmax(axis=-1), scores)
        y = behind(g, apply(g, MatMul(), weights, v), 1, 3, 5, 8)
        return apply(g, Transpose(perm=(0, 2, 1, 3)), y)

    graph = make(build, (1, 5, 3, 8))
    after, _ = optimised(graph)
    assert "Attention" in kinds(after)
    assert "Softmax" not in kinds(after)
    assert_same(graph, after)


def test_an_empty_batch() -> None:
    """Its size is no size to be copied from the axis in the same place."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[n, 3, 4] x) => (float[a, b, c, d] y)
      <int64[1] front = {0}>
      { t = Transpose <perm = [0, 2, 1]> (x)  u = Unsqueeze (t, front)  y = MatMul (x, u) }"""
    with tercet.load(onnx.parser.parse_model(text)) as model:
        for count in (2, 0):
            x = normal(count, 3, 4)
            np.testing.assert_allclose(
                model.run({"x": x})["y"], (x @ x.transpose(0, 2, 1))[None], 1e-5
            )
