"""Zero padding joins the window behind it, and nothing else does."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from tercet import load
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.conv import Conv, ConvTranspose, Ints
from tercet.runtime.ops.elementwise import Cast, Mul, Relu
from tercet.runtime.ops.movement import Concat, Pad, Slice
from tercet.runtime.ops.pool import AveragePool, MaxPool
from tercet.runtime.ops.shape import Unsqueeze
from tercet.runtime.ops.signal import DFT

from .graphs import apply, assert_same, kinds, make, normal, optimised

IMAGE = (0, 0, 1, 2, 0, 0, 3, 0)
COUNTED = AveragePool(kernel_shape=(4, 4), count_include_pad=1)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def padded(window: Op, *weights: np.ndarray, pad: Pad | None = None, rest=(), pads=IMAGE) -> Graph:
    def build(graph: Graph, x: Value) -> Value:
        return apply(graph, window, apply(graph, pad or Pad(), x, ints(*pads), *rest), *weights)

    return make(build, (2, 3, 7, 8))


FOLDED = {
    "conv": padded(Conv(), normal(4, 3, 3, 3), normal(4)),
    "conv with pads": padded(Conv(pads=(1, 1, 0, 2), strides=(2, 1)), normal(4, 3, 3, 3)),
    "conv, VALID": padded(Conv(auto_pad="VALID"), normal(4, 3, 3, 3)),
    "dilated": padded(Conv(dilations=(2, 2)), normal(4, 3, 2, 2)),
    "mean": padded(COUNTED),
    "zero said": padded(Conv(), normal(4, 3, 3, 3), rest=(np.zeros((), np.float32),)),
    "greatest": padded(MaxPool(kernel_shape=(4, 4)), rest=(np.array(-np.inf, np.float32),)),
    "axes": padded(Conv(), normal(4, 3, 3, 3), rest=(None, ints(-1, 2)), pads=(2, 0, 1, 3)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_zeros_are_padding(name: str) -> None:
    after, log = optimised(FOLDED[name])
    assert len(kinds(after)) == 1
    assert log.counts == {"fold_pad": 1, "remove_dead": 1} or log.counts == {"fold_pad": 1}
    assert len(after.nodes[0].origin) == 2
    assert_same(FOLDED[name], after)


KEPT = {
    "other numbers": padded(Conv(), normal(4, 3, 3, 3), rest=(np.ones((), np.float32),)),
    "reflected": padded(Conv(), normal(4, 3, 3, 3), pad=Pad(mode="reflect")),
    "cropped": padded(Conv(), normal(4, 3, 3, 3), pads=(0, 0, -1, 0, 0, 0, 0, 0)),
    "channels": padded(Conv(), normal(4, 5, 3, 3), pads=(0, 1, 0, 0, 0, 1, 0, 0)),
    "SAME": padded(Conv(auto_pad="SAME_UPPER"), normal(4, 3, 3, 3)),
    "greatest": padded(MaxPool(kernel_shape=(4, 4))),
    "only padding": padded(MaxPool(kernel_shape=(3, 3)), rest=(np.array(-np.inf, np.float32),)),
    "zeros not counted": padded(AveragePool(kernel_shape=(4, 4))),
    "a window of padding": padded(AveragePool(kernel_shape=(3, 3), count_include_pad=1)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    after, _ = optimised(KEPT[name])
    assert kinds(after)[0] == "Pad"


@pytest.mark.parametrize("is_rectified", [True, False])
def test_zeros_around_what_is_not_negative_are_no_maximum(is_rectified: bool) -> None:
    """Keras pads after a Relu."""

    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Relu(), x) if is_rectified else x
        y = apply(graph, Pad(), y, ints(0, 0, 1, 1, 0, 0, 1, 1))
        return apply(graph, MaxPool(kernel_shape=(3, 3), strides=(2, 2)), y)

    graph = make(build, (2, 3, 7, 8))
    after, _ = optimised(graph)
    assert ("Pad" in kinds(after)) != is_rectified
    assert_same(graph, after)


@pytest.mark.parametrize(
    ("op", "size", "pads"),
    [
        (MaxPool(kernel_shape=(2, 1), strides=(3, 1), ceil_mode=1), (5, 4), (0, 0, 1, 0)),
        (MaxPool(kernel_shape=(2, 1), pads=(1, 0, 0, 0), dilations=(3, 1)), (2, 4), (0, 0, 1, 0)),
    ],
    ids=["rounded up", "dilated"],
)
def test_a_maximum_of_added_zeros_stays(op: MaxPool, size: Ints, pads: Ints) -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Pad(), apply(graph, Relu(), x), ints(0, 0, *pads[:2], 0, 0, *pads[2:]))
        return apply(graph, op, y)

    graph = make(build, (2, 3, *size))
    after, _ = optimised(graph)
    assert "Pad" in kinds(after)
    assert_same(graph, after)


def test_positions_count_padding() -> None:
    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, Pad(), apply(graph, Relu(), x), ints(0, 0, 1, 1, 0, 0, 1, 1))
        places = graph.insert(MaxPool(kernel_shape=(3, 3)), [y], 2).outputs[1]
        infer(graph)
        return apply(graph, Cast(to=float32), places)

    graph = make(build, (2, 3, 7, 8))
    after, _ = optimised(graph)
    assert "Pad" in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("side", [0, 4])
def test_an_image_without_pixels_is_padded(side: int) -> None:
    def build(graph: Graph, x: Value) -> Value:
        wide = apply(graph, Pad(), x, ints(0, 0, 1, 1, 0, 0, 1, 1))
        return apply(graph, Conv(), wide, normal(4, 3, 1, 1))

    graph = make(build, (1, 3, side, 4))
    after, _ = optimised(graph)
    assert ("Pad" in kinds(after)) == (side == 0)
    assert_same(graph, after)


@pytest.mark.parametrize(
    "layer",
    [
        "Conv (p, w, b)",
        "AveragePool <kernel_shape = [3, 3], count_include_pad = 1, pads = [1, 1, 1, 1]> (p)",
        "MaxPool <kernel_shape = [3, 3]> (r)",
    ],
)
def test_an_image_of_any_size_may_have_no_pixels(layer: str) -> None:
    """Then there is the padding alone, which onnxruntime gives windows, too."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
      g (float[1, 2, h, w] x, float[3] b) => (float[c, d, e, f] y)
      <int64[8] n = {{0, 0, 2, 2, 0, 0, 2, 2}}, float[3, 2, 3, 3] w = {{{", ".join(["0.5"] * 54)}}}>
      {{ p = Pad (x, n)  r = Relu (p)  y = {layer} }}"""
    proto = onnx.parser.parse_model(text)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    with load(proto) as model:
        assert model.rewrites.counts.get("fold_pad", 0) == layer.startswith("Conv")
        for size in ((4, 5), (0, 5), (4, 0), (0, 0)):
            feeds = {"x": normal(1, 2, *size), "b": normal(3)}
            (right,) = session.run(None, feeds)
            np.testing.assert_allclose(model.run(feeds)["y"], np.asarray(right), 1e-5, 1e-5)


def test_padding_that_others_read() -> None:
    def build(graph: Graph, x: Value) -> Value:
        wide = apply(graph, Pad(), x, ints(*IMAGE))
        graph.set_outputs({"wide": apply(graph, Relu(), wide)})
        return apply(graph, Conv(), wide, normal(4, 3, 3, 3))

    graph = Graph()
    x = graph.add_input("x", make(lambda g, v: v, (1, 3, 4, 4)).inputs[0].type)
    y = build(graph, x)
    graph.set_outputs({**graph.outputs, "y": y})
    after, _ = optimised(graph)
    assert "Pad" in kinds(after)


# ── results that are dropped ─────────────────────────────────────────────────────────────────────


def cropped(conv: Conv, *bounds: np.ndarray, kernel=(4, 4)) -> Graph:
    def build(graph: Graph, x: Value) -> Value:
        return apply(graph, Slice(), apply(graph, conv, x, normal(4, 3, *kernel)), *bounds)

    return make(build, (2, 3, 7, 8))


DROPPED = {
    "the last": cropped(Conv(pads=(2, 2, 2, 2)), ints(0), ints(-1), ints(-1)),
    "of both axes": cropped(Conv(pads=(2, 2, 2, 2)), ints(0, 0), ints(7, 8), ints(2, 3)),
    "the first": cropped(Conv(pads=(2, 2, 2, 2)), ints(2), ints(1 << 40), ints(2)),
    "other axis strided": cropped(
        Conv(pads=(2, 2, 2, 2), strides=(2, 1)), ints(1), ints(-2), ints(3), ints(1)
    ),
    "dilated": cropped(Conv(pads=(3, 0, 3, 0), dilations=(2, 1)), ints(1), ints(-1), ints(2)),
    "scalars": cropped(Conv(pads=(2, 2, 2, 2)), *map(np.array, (0, -1, 2))),
}


@pytest.mark.parametrize("name", DROPPED)
def test_windows_whose_results_are_dropped_need_no_padding(name: str) -> None:
    after, log = optimised(DROPPED[name])
    assert kinds(after) == ["Conv"]
    assert log.counts["fold_pad"] == 1
    assert_same(DROPPED[name], after)


NOT_DROPPED = {
    "more than padding": cropped(Conv(pads=(1, 1, 1, 1)), ints(0), ints(-2), ints(2)),
    "strided": cropped(Conv(pads=(2, 2, 2, 2), strides=(2, 2)), ints(0), ints(-1), ints(2)),
    "a step": cropped(Conv(pads=(2, 2, 2, 2)), ints(1), ints(-1), ints(2), ints(2)),
    "channels": cropped(Conv(pads=(2, 2, 2, 2)), ints(0), ints(-1), ints(1)),
    "SAME": cropped(Conv(auto_pad="SAME_UPPER"), ints(0), ints(-1), ints(2)),
}


@pytest.mark.parametrize("name", NOT_DROPPED)
def test_other_slices_stay(name: str) -> None:
    after, _ = optimised(NOT_DROPPED[name])
    assert "Slice" in kinds(after)
    assert_same(NOT_DROPPED[name], after)


def cropped_transposed(conv: ConvTranspose, *bounds: np.ndarray, scale: bool = False) -> Graph:
    def build(graph: Graph, x: Value) -> Value:
        w = normal(6, 6 // conv.group, 5, 4)
        y = apply(graph, conv, x, w)
        y = apply(graph, Mul(), y, normal(1)) if scale else y
        return apply(graph, Slice(), y, *bounds)

    return make(build, (2, 6, 7, 8))


TRANSPOSED = {
    "the last": cropped_transposed(ConvTranspose(strides=(2, 2)), ints(0), ints(-2), ints(-1)),
    "of both axes": cropped_transposed(
        ConvTranspose(strides=(3, 2), pads=(1, 1, 0, 0), output_padding=(2, 0)),
        *(ints(2, 1), ints(20, 1 << 40), ints(2, 3)),
    ),
    "behind a scale": cropped_transposed(
        ConvTranspose(strides=(2, 2)), ints(1), ints(-3), ints(2), scale=True
    ),
    "more than a window of one channel": cropped_transposed(
        ConvTranspose(strides=(2, 2), group=6), ints(7, 6), ints(-7, -5), ints(2, 3)
    ),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_what_is_dropped_of_a_transposed_convolution_is_padding(name: str) -> None:
    after, log = optimised(TRANSPOSED[name])
    assert kinds(after) == ["ConvTranspose"]
    assert log.counts["fold_pad"] == 1
    assert_same(TRANSPOSED[name], after)


def test_more_than_a_window_of_a_transposed_convolution_stays_a_slice() -> None:
    graph = cropped_transposed(ConvTranspose(strides=(2, 2)), ints(5), ints(1 << 40), ints(2))
    after, _ = optimised(graph)
    assert kinds(after) == ["ConvTranspose", "Slice"]
    assert_same(graph, after)


@pytest.mark.parametrize("viewed", [False, True])
@pytest.mark.parametrize("length", [None, 5, 8, 20])
@pytest.mark.parametrize("inverse", [False, True])
def test_zeros_after_a_signal_are_part_of_its_transform(
    inverse: bool, length: int | None, viewed: bool
) -> None:
    def build(g: Graph, x: Value) -> Value:
        axes = ints(1) if inverse else ints(-1) if viewed else np.array(1)  # a list of one, or it
        longer = apply(g, Pad(), x, ints(0, 9), np.array(0, np.float32), axes)
        if not inverse and viewed:
            longer = apply(g, Unsqueeze(), longer, ints(-1))
        axis = ints(1) if not viewed or inverse else ints(-2)
        op = DFT(onesided=1, inverse=int(inverse))
        counts = [] if length is None else [np.array(length)]
        given = [g.constant(each) for each in (*counts, axis.reshape(()))]
        inputs = [longer, *given] if counts else [longer, None, *given]
        return g.insert(op, inputs).output

    shape = (2, 7, 2) if inverse else ((2, 7) if viewed else (2, 7, 1))
    graph = make(build, shape)
    after, log = optimised(graph)
    assert "Pad" not in kinds(after)
    assert log.counts["fold_pad"] == 1
    assert_same(graph, after)


@pytest.mark.parametrize("pads", [(1, 0), (-1, 3)])
def test_other_zeros_around_a_signal_stay(pads: Ints) -> None:
    def build(g: Graph, x: Value) -> Value:
        longer = apply(g, Pad(), x, ints(*pads), np.array(0, np.float32), ints(1))
        return apply(g, DFT(onesided=1), longer, np.array(16), np.array(1))

    graph = make(build, (2, 7, 1))
    after, log = optimised(graph)
    assert "fold_pad" not in log.counts
    assert_same(graph, after)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("zeros", [True, False])
def test_imaginary_parts_of_zero(zeros: bool, inverse: bool) -> None:
    """A real signal that an exporter has made complex (FNet)."""

    def build(g: Graph, x: Value) -> Value:
        imaginary = np.zeros((2, 7, 1), np.float32) if zeros else normal(2, 7, 1)
        pair = apply(g, Concat(axis=-1), x, imaginary)
        return apply(g, DFT(inverse=int(inverse)), pair, np.array(7), np.array(1))

    graph = make(build, (2, 7, 1))
    after, _ = optimised(graph)
    assert kinds(after) == (["DFT"] if zeros else ["Concat", "DFT"])
    assert_same(graph, after)


def test_imaginary_parts_of_half_a_spectrum_stay() -> None:
    """A transform with real results takes complex numbers (PyTorch's irfft)."""

    def build(g: Graph, x: Value) -> Value:
        pair = apply(g, Concat(axis=-1), x, np.zeros((2, 5, 1), np.float32))
        return apply(g, DFT(inverse=1, onesided=1), pair, np.array(8), np.array(1))

    graph = make(build, (2, 5, 1))
    after, _ = optimised(graph)
    assert kinds(after) == ["Concat", "DFT"]
    assert_same(graph, after)


def around(number: float | None, *, negative: bool = False) -> Graph:
    def build(graph: Graph, x: Value) -> Value:
        inner = apply(graph, Pad(), x, ints(0, 1, 0, -2 if negative else 2))
        given = () if number is None else (np.array(number, np.float32),)
        return apply(graph, Pad(), inner, ints(1, 0, 2, 3), *given)

    return make(build, (3, 5))


@pytest.mark.parametrize("number", [None, 0.0])
def test_zeros_around_zeros_are_added_at_once(number: float | None) -> None:
    graph = around(number)
    after, _ = optimised(graph)
    assert kinds(after) == ["Pad"]
    assert_same(graph, after)


@pytest.mark.parametrize("graph", [around(1.0), around(None, negative=True)])
def test_what_is_added_around_other_numbers_stays(graph: Graph) -> None:
    after, _ = optimised(graph)
    assert kinds(after) == ["Pad", "Pad"]
    assert_same(graph, after)
