"""Products of stacks of 16-bit matrices, read where they lie."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Exp, Mul, Relu, Sigmoid, Tanh
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Expand, Pad, Slice, Split, Transpose
from tercet.runtime.ops.norm import BatchNormalization, LayerNormalization
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Precision

from .dry import entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare, results_of

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

HEADS = 3
TWO = np.full(1, 2, np.float32)


class Net:
    """A graph of 16-bit inputs."""

    def __init__(self, dtype: DType = float16) -> None:
        self.graph, self.dtype = Graph("strided"), dtype

    def input(self, name: str, *dims: int) -> Value:
        return self.graph.add_input(name, TensorType(self.dtype, dims))

    def add(self, op: Op, *values: Value, outputs: int = 1) -> Value:
        node = self.graph.insert(op, list(values), outputs)
        infer(self.graph)
        return node.output

    def heads(self, x: Value, *perm: int, wide: bool) -> Value:
        """Return [samples, heads, ...] of rows [samples, rows, heads * size]."""
        samples, rows, width = x.tensor.dims
        shape = self.graph.constant(np.array([samples, rows, HEADS, width // HEADS]), "")
        transposed = self.add(Transpose(perm=perm), self.add(Reshape(), x, shape))
        return self.add(Cast(to=float32), transposed) if wide else transposed

    def done(self, y: Value) -> Graph:
        self.graph.set_outputs({"y": y})
        return self.graph


def scores(dtype: DType, size: int = 16, *, wide: bool, samples: int = 2) -> Graph:
    """Queries times transposed keys, parts of one tensor, and a factor."""
    net = Net(dtype)
    x = net.input("x", samples, 20, 2 * HEADS * size)
    net.add(Split(axis=2, num_outputs=2), x, outputs=2)
    q, k = net.graph.nodes[-1].outputs
    a = net.heads(q, 0, 2, 1, 3, wide=wide)
    b = net.heads(k, 0, 2, 3, 1, wide=wide)
    y = net.add(MatMul(), a, b)
    factor = net.graph.constant(np.array(0.125, float32 if wide else dtype), "")
    return net.done(net.add(Mul(), y, factor))


def parts_of_rows() -> Graph:
    """Queries times transposed keys, which Slices cut out of one tensor."""
    net, width = Net(), HEADS * 16
    x = net.input("x", 2, 20, 3 * width)
    bounds = [np.array([n]) for n in (0, width, 2 * width)]
    q, k = (
        net.add(Slice(), x, *(net.graph.constant(n, "") for n in (a, b, np.array([2]))))
        for a, b in pairwise(bounds)
    )
    left = net.heads(q, 0, 2, 1, 3, wide=False)
    return net.done(net.add(MatMul(), left, net.heads(k, 0, 2, 3, 1, wide=False)))


def equal_columns() -> Graph:
    """Queries times a key for each head that an Expand repeats."""
    net = Net()
    q = net.heads(net.input("q", 2, 20, HEADS * 16), 0, 2, 1, 3, wide=False)
    shape = net.graph.constant(np.array([2, HEADS, 12, 16]), "")
    keys = net.add(Expand(), net.input("k", 2, HEADS, 1, 16), shape)
    return net.done(net.add(MatMul(), q, net.add(Transpose(perm=(0, 1, 3, 2)), keys)))


def chunks() -> Graph:
    """Products of the second chunk of the states of each head, as a chunked delta rule has them."""
    net, sides = Net(float32), (2, HEADS, 32, 32)
    a, x = (net.input(name, 2, HEADS, 2 * 32 * 32) for name in "ax")
    ints = [net.graph.constant(np.array(n), "") for n in ([1024], [2048], [2], sides)]
    left, right = (net.add(Reshape(), net.add(Slice(), v, *ints[:3]), ints[3]) for v in (a, x))
    return net.done(net.add(MatMul(), left, right))


def mixtures(*, wide: bool) -> Graph:
    """Weights times values, whose rows are transposed as well."""
    net = Net()
    a, x = net.input("a", 2, HEADS, 20, 24), net.input("x", 2, 24, HEADS * 8)
    left = net.add(Cast(to=float32), a) if wide else a
    return net.done(net.add(MatMul(), left, net.heads(x, 0, 2, 1, 3, wide=wide)))


def transposed_left() -> Graph:
    """Keys transposed times values, as in linear attention: terms of the left one are far apart."""
    net = Net()
    x = net.input("x", 2, 24, HEADS * 8)
    a = net.heads(x, 0, 2, 3, 1, wide=True)
    return net.done(net.add(MatMul(), a, net.heads(x, 0, 2, 1, 3, wide=True)))


def positions(terms: int = 16) -> Graph:
    """Queries times a constant matrix for each head, of an odd number of columns (Conformer)."""
    net = Net()
    q = net.heads(net.input("q", 2, 20, HEADS * terms), 0, 2, 1, 3, wide=False)
    keys = net.graph.constant(normal(1, HEADS, terms, 13).astype(np.float16), "")
    return net.done(net.add(MatMul(), q, keys))


def windows() -> Graph:
    """Weights of each window times its pixels (outlook attention), as exporters unfold images."""
    net, size, channels = Net(), 9, HEADS * 8
    pixels = net.add(Transpose(perm=(0, 3, 1, 2)), net.input("x", 1, size, size, channels))
    pads = net.graph.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "")
    places = net.graph.constant(np.arange(3)[:, None] + np.arange(0, size, 2), "")
    rows = net.add(Gather(axis=2), net.add(Pad(), pixels, pads), places)
    taps = net.add(Transpose(perm=(0, 1, 2, 4, 3, 5)), net.add(Gather(axis=4), rows, places))
    shape = net.graph.constant(np.array([HEADS, 8, 9, 25]), "")
    values = net.add(Transpose(perm=(0, 3, 2, 1)), net.add(Reshape(), taps, shape))
    return net.done(net.add(MatMul(), net.input("a", HEADS, 25, 9, 9), values))


def cut_anew(dtype: DType = float32) -> Graph:
    """Weights times parts of rows that views cut into rows of another length."""
    net = Net(dtype)
    a, x = net.input("a", 2, 4, 6, 6), net.input("x", 5, 6, 96)
    net.add(Split(axis=2, num_outputs=3), x, outputs=3)
    shape = net.graph.constant(np.array([2, 6, 4, 20]), "")
    rows = net.add(Reshape(), net.graph.nodes[-1].outputs[2], shape)
    return net.done(net.add(MatMul(), a, net.add(Transpose(perm=(0, 2, 1, 3)), rows)))


def images() -> Graph:
    """Scores of pixels of two images that convolutions store with channels last."""
    net, width = Net(), HEADS * 16
    x = net.input("x", 2, 32, 5, 5)
    weights = [net.graph.constant(normal(width, 32, 1, 1).astype(float16), "") for _ in "qk"]
    shape = net.graph.constant(np.array([2, HEADS, 16, 25]), "")
    q, k = (net.add(Reshape(), net.add(Conv(), x, w), shape) for w in weights)
    return net.done(net.add(MatMul(), net.add(Transpose(perm=(0, 1, 3, 2)), q), k))


def image_of_heads(*, normalized: bool) -> Graph:
    """Values of an image times weights, as an image again, whose addend is convolved (ViM)."""
    net, width = Net(), HEADS * 16
    x = net.input("x", 2, 32, 5, 5)
    filters = [net.graph.constant(normal(width, 32, 1, 1).astype(float16), "") for _ in "vx"]
    v = net.add(Conv(), x, filters[0])
    shapes = [net.graph.constant(np.array(n), "") for n in ((2, HEADS, 16, 25), (2, width, 5, 5))]
    mixed = net.add(MatMul(), net.add(Reshape(), v, shapes[0]), net.input("a", 2, HEADS, 25, 25))
    image = net.add(Reshape(), mixed, shapes[1])
    if normalized:
        numbers = [np.abs(normal(width)) + 0.5 for _ in range(4)]
        given = [net.graph.constant(n.astype(float16), "") for n in numbers]
        return net.done(_convolved(net, net.add(BatchNormalization(), image, *given)))
    total = net.add(Add(), image, net.add(Conv(), x, filters[1]))
    return net.done(_convolved(net, net.add(Relu(), total)))


def _convolved(net: Net, x: Value) -> Value:
    filters = normal(8, x.tensor.dims[1], 1, 1).astype(float16)
    return net.add(Conv(), x, net.graph.constant(filters, ""))


def image_of_rows() -> Graph:
    """Pixels of normalized rows times states, in float32, and convolved (EfficientViM)."""
    net, width = Net(), 32
    rows = net.input("x", 2, 5, 5, width)
    scale = net.graph.constant(np.ones(width, float16), "")
    image = net.add(Transpose(perm=(0, 3, 1, 2)), net.add(LayerNormalization(), rows, scale))
    line = net.add(Reshape(), image, net.graph.constant(np.array([2, width, 25]), ""))
    filters = net.graph.constant(normal(8, width, 1).astype(float16), "")
    states = net.add(Conv(), line, filters)
    wide = [net.add(Cast(to=float32), each) for each in (line, states)]
    product = net.add(MatMul(), wide[0], net.add(Transpose(perm=(0, 2, 1)), wide[1]))
    return net.done(net.add(Cast(to=float16), product))


IN_PLACE = {
    "constants": positions,
    "constants of few terms": lambda: positions(4),
    "scores": lambda: scores(float16, wide=False),
    "wide scores": lambda: scores(float16, wide=True),
    "bfloat16": lambda: scores(bfloat16, wide=True),
    "one sample": lambda: scores(float16, wide=True, samples=1),
    "parts of rows": parts_of_rows,
    "equal columns": equal_columns,
    "mixtures": lambda: mixtures(wide=False),
    "wide mixtures": lambda: mixtures(wide=True),
}
OF_ANY_STRIDES = {
    "odd heads": lambda: scores(float16, 5, wide=True),
    "transposed left": transposed_left,
    "chunks": chunks,
}


def test_chunks_are_read_where_they_are() -> None:
    assert entries_of(chunks()) == ["strided_mma"]


@pytest.mark.parametrize("name", IN_PLACE)
def test_nothing_is_copied(name: str) -> None:
    assert entries_of(IN_PLACE[name]()) == ["mma"]


@pytest.mark.parametrize("name", OF_ANY_STRIDES)
def test_nor_of_any_strides(name: str) -> None:
    """Parts of rows that do not begin at words are copied, but nothing is transposed or widened."""
    entries = {launch.entry for launch in launches(planned(OF_ANY_STRIDES[name]()))}
    assert {"strided_mma"} <= entries <= {"strided_mma", "copy_strided"}


def test_pixels_are_read_with_channels_last() -> None:
    assert entries_of(images()) == ["mma"] * 3


IMAGES = {
    "image of heads": lambda: image_of_heads(normalized=False),
    "normalized image of heads": lambda: image_of_heads(normalized=True),
    "image of rows": image_of_rows,
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_before_and_behind_are_not_reordered(name: str) -> None:
    kinds = [row.kind for row in planned(IMAGES[name]()).rows]
    last = len(kinds) - kinds[::-1].index("step")
    assert "reformat" not in kinds[kinds.index("step") : last]


def test_windows_are_unfolded_by_one_kernel() -> None:
    entries = entries_of(windows())
    assert len(entries) == 2
    assert "moved" in entries


OTHERS = {
    **IMAGES,
    "images": images,
    "windows": windows,
    "cut anew": cut_anew,
    "cut anew, 16 bits": lambda: cut_anew(float16),
}


@needs_compiler
@pytest.mark.parametrize("name", [*IN_PLACE, *OF_ANY_STRIDES, *OTHERS])
def test_results(name: str, emulated: CudaBackend) -> None:
    graph = (IN_PLACE | OF_ANY_STRIDES | OTHERS)[name]()
    feeds = {
        value.name: normal(*value.tensor.dims).astype(value.tensor.dtype) for value in graph.inputs
    }
    compare(Sample(graph, feeds), emulated)


@needs_compiler
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("head", range(HEADS))
def test_heads_beside_one_that_is_not_finite(
    value: float, head: int, emulated: CudaBackend
) -> None:
    """Their keys are next to its own in memory."""
    graph = scores(float16, wide=False)
    x = normal(*graph.inputs[0].tensor.dims).astype(np.float16)
    x[..., 16 * (HEADS + head) : 16 * (HEADS + head + 1)] = value
    (found,) = results_of(Sample(graph, {"x": x}), (emulated,))
    assert np.isfinite(np.delete(found, head, 1)).all()
    assert not np.isfinite(found[:, head]).any()


@needs_compiler
def test_sums_beyond_the_range_of_16_bits(emulated: CudaBackend) -> None:
    graph = scores(float16, wide=True)
    (x,) = graph.inputs
    feeds = {"x": (300 * normal(*x.tensor.dims)).astype(np.float16)}
    sample = Sample(graph, feeds)
    compare(sample, emulated)
    wide = feeds["x"].astype(np.float64)
    assert (wide**2).sum(-1).max() > np.finfo(np.float16).max


def test_a_vector_times_a_few_16_bit_rows_reads_them_in_float32() -> None:
    """What computes them widens them, and such a product has a kernel of its own."""
    net = Net()
    rows = net.add(Cast(to=float32), net.add(Relu(), net.input("x", 1, 64, 4)))
    steps = net.graph.add_input("steps", TensorType(float32, (1, 4, 1)))
    found = launches(planned(net.done(net.add(MatMul(), rows, steps))))
    assert [launch.entry for launch in found] == ["elementwise", "dots"]


def test_a_result_that_is_transposed_behind_a_product_that_is_no_faster() -> None:
    """Of few columns and many terms: the product and the Transpose have separate kernels."""
    net = Net(float32)
    a, b = net.input("a", 4, 8, 2048), net.input("b", 4, 2048, 4)
    graph = net.done(net.add(Transpose(perm=(1, 0, 2)), net.add(MatMul(), a, b)))
    assert len(launches(planned(graph))) > 1


def weighted(*, narrow: bool) -> Graph:
    """Weights of float32, which nothing bounds, times values of 16 bits or of float32."""
    net = Net(float16 if narrow else float32)
    a = net.graph.add_input("a", TensorType(float32, (2, HEADS, 20, 24)))
    return net.done(
        net.add(MatMul(), a, net.heads(net.input("x", 2, 24, 48), 0, 2, 1, 3, wide=narrow))
    )


@pytest.mark.parametrize(
    ("narrow", "precision"), [(True, "float16"), (True, "float32"), (False, "float16")]
)
def test_one_tf32_number_beside_a_factor_of_16_bits(narrow: bool, precision: Precision) -> None:
    """In half precision; elsewhere float32 is two numbers, which have as many digits."""
    (product,) = launches(planned(weighted(narrow=narrow), precision=precision))
    single = narrow and precision == "float16"
    assert ("PARTS", 1 if single else 2) in product.source.constants


def features(kind: type[Op]) -> Graph:
    """Features of float32 times others, heads side by side (linear attention)."""
    net = Net(float32)
    a = net.graph.add_input("a", TensorType(float32, (2, HEADS, 20, 24)))
    x = net.add(Mul(), net.add(kind(), net.input("x", 2, 24, 48)), net.graph.constant(TWO))
    return net.done(net.add(MatMul(), net.add(kind(), a), net.heads(x, 0, 2, 1, 3, wide=False)))


@pytest.mark.parametrize(("kind", "parts"), [(Sigmoid, 1), (Exp, 1), (Tanh, 2)])
def test_one_tf32_number_where_nothing_is_negative(kind: type[Op], parts: int) -> None:
    product = launches(planned(features(kind), precision="float16"))[-1]
    assert ("PARTS", parts) in product.source.constants
    product = launches(planned(features(kind)))[-1]
    assert ("PARTS", 2) in product.source.constants


@needs_compiler
@pytest.mark.parametrize("graph", [weighted(narrow=True), features(Exp)], ids=["16 bits", "shares"])
def test_results_of_one_tf32_number(graph: Graph, emulated: CudaBackend) -> None:
    """Errors are those of numbers with 11 digits."""
    feeds = {
        value.name: normal(*value.tensor.dims).astype(value.tensor.dtype) for value in graph.inputs
    }
    options = replace(OPTIONS, precision="float16")
    compare(Sample(graph, feeds), emulated, options=options, error=2**-11)
