"""Linear attention with relu in place of a softmax: found in every spelling, and its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.attention.relu_linear import SIZES
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Div, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Pad, Slice, Split, Transpose
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.session.model import Model

from .cubins import all_compile
from .dry import DryDevice, apply, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS, Sample, compare

#: Kernels that this module compiles.
COMPILES = {"attention/relu_linear.cu"}
TRANSPOSE = Transpose(perm=(0, 1, 3, 2))


class Block:
    """Attention of an image [images, heads * 3 * size, *spatial], node by node."""

    def __init__(self, heads: int, size: int, dtype: DType, spatial: tuple[int, ...]) -> None:
        self.graph, self.dtype = Graph("relu_linear"), dtype
        self.heads, self.size, self.spatial = heads, size, spatial
        self.shape = (2, heads * 3 * size, *spatial)
        self.x = self.graph.add_input("x", TensorType(dtype, self.shape))

    def add(self, op: Any, *inputs: Value | Array) -> Value:
        return apply(self.graph, op, *inputs)

    def split(self, axis: int) -> tuple[Value, ...]:
        """Return q, k, v: of matrices of pixels and channels (3), or of channels and pixels (2)."""
        pixels = int(np.prod(self.spatial))
        heads = np.array([2, self.heads, 3 * self.size, pixels])
        value = self.add(Reshape(), self.x, heads)
        if axis == 3:
            split = Split(axis=3, num_outputs=3)
            return self.graph.insert(split, [self.add(TRANSPOSE, value)], 3).outputs
        return tuple(self.cut(value, 2, i * self.size, (i + 1) * self.size) for i in range(3))

    def cut(self, value: Value, axis: int, begin: int, end: int) -> Value:
        return self.add(Slice(), value, *(np.array([i]) for i in (begin, end, axis, 1)))

    def wide(self, value: Value) -> Value:
        """Return a value as float32."""
        return value if self.dtype == float32 else self.add(Cast(to=float32), value)

    def ones(self, value: Value, axis: int, one: float = 1.0) -> Value:
        ends = np.array([int(i == 4 + axis) for i in range(8)])
        return self.wide(self.add(Pad(), value, ends, np.array(one, self.dtype)))

    def finish(self, sums: Value, axis: int, *, transposed: bool = False) -> Sample:
        """Divide all but the last channel by that one."""
        above, below = (
            self.cut(sums, axis, *part) for part in ((0, self.size), (self.size, 2**62))
        )
        epsilon = np.array(1e-5, np.float32)
        value = self.add(Div(), above, self.add(Add(), below, epsilon))
        value = self.add(TRANSPOSE, value) if transposed else value
        shape = np.array([2, self.heads * self.size, *self.spatial])
        value = self.add(Reshape(), value, shape)
        if self.dtype != float32:
            value = self.add(Cast(to=self.dtype), value)
        self.graph.set_outputs({"y": value})
        infer(self.graph)
        return Sample(self.graph, {"x": normal(*self.shape).astype(self.dtype)})


def of_pixels(heads: int, size: int, dtype: DType, *spatial: int, one: float = 1.0) -> Sample:
    """Matrices of pixels and channels, as in timm."""
    block = Block(heads, size, dtype, spatial)
    q, k, v = block.split(3)
    transposed = block.wide(block.add(TRANSPOSE, block.add(Relu(), k)))
    inner = block.add(MatMul(), transposed, block.ones(v, 3, one))
    queries = block.wide(block.add(Relu(), q))
    return block.finish(block.add(MatMul(), queries, inner), 3, transposed=True)


def of_channels(heads: int, size: int, dtype: DType, *spatial: int) -> Sample:
    """Matrices of channels and pixels, as in the authors' own code."""
    block = Block(heads, size, dtype, spatial)
    q, k, v = block.split(2)
    transposed = block.wide(block.add(TRANSPOSE, block.add(Relu(), k)))
    inner = block.add(MatMul(), block.ones(v, 2), transposed)
    queries = block.wide(block.add(Relu(), q))
    return block.finish(block.add(MatMul(), inner, queries), 2)


@pytest.mark.parametrize("spelling", [of_pixels, of_channels])
def test_all_nodes_are_one_kernel(spelling: Any) -> None:
    for dtype in (float16, float32):
        (launch,) = launches(planned(spelling(4, 16, dtype, 14, 14).graph))
        assert launch.title == "relu_linear 4 heads of 16"
        assert launch.grid == (4, 2, 1)


def test_what_is_something_else_stays_apart() -> None:
    """Heads of a size without a kernel, and a column of twos."""
    for sample in (of_pixels(2, 12, float32, 5, 5), of_pixels(2, 16, float32, 5, 5, one=2.0)):
        assert "relu_linear" not in {each.entry for each in launches(planned(sample.graph))}


def test_a_matrix_times_itself_stays_apart() -> None:
    block = Block(1, 4, float32, (5,))
    square = block.add(Reshape(), block.cut(block.x, 1, 0, 5), np.array([2, 1, 5, 5]))
    sums = block.add(MatMul(), square, square)
    above, below = (block.cut(sums, 2, *part) for part in ((0, 4), (4, 5)))
    below = block.add(Add(), below, np.array(1e-5, np.float32))
    block.graph.set_outputs({"y": block.add(Div(), above, below)})
    infer(block.graph)
    assert "relu_linear" not in {each.entry for each in launches(planned(block.graph))}


@pytest.mark.slow
def test_every_size_compiles(cache: Path) -> None:
    device = DryDevice()
    for size in SIZES:
        for dtype in (float16, bfloat16, float32):
            planned(of_pixels(2, size, dtype, 5, 7).graph, device)
            planned(of_channels(2, size, dtype, 35).graph, device)
    all_compile(list(device.compiler.sources), H200, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spelling", [of_pixels, of_channels])
def test_results(spelling: Any, size: int, dtype: DType, emulated: CudaBackend) -> None:
    for spatial in ((9, 11), (1, 3), (70,)):
        sample = spelling(2, size, dtype, *spatial)
        compare(sample, emulated, error=ERROR[dtype])
        with Model(sample.graph, [emulated], OPTIONS, evaluate) as model:
            assert "relu_linear" in str(model.placement())
