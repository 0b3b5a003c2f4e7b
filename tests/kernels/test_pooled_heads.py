"""Heads that are pooled as images, beside a class token: columns of rows that nothing copies."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.matmul import Einsum, MatMul
from tercet.runtime.ops.movement import Concat, Slice, Transpose
from tercet.runtime.ops.norm import LayerNormalization
from tercet.runtime.ops.shape import Reshape, Squeeze
from tercet.runtime.session.model import Model

from .dry import DryDevice, Net, dry_backend, launches, normal, planned_model
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

ERROR = {float16: 5e-3, float32: 2e-5}
HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE
PIXELS = 2, 4, 16
LENGTH = 1 + 2 * 4 * 16
TURNED = Transpose(perm=(0, 1, 3, 2))


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers)


class Heads(Net):
    """A net of heads of one element type."""

    def __init__(self, dtype: DType, count: int) -> None:
        super().__init__()
        self.dtype, self.count = dtype, count

    def constant(self, *dims: int) -> np.ndarray:
        return normal(*dims, scale=0.2).astype(self.dtype)

    def cut(self, value: Value, axis: int, start: int, stop: int) -> Value:
        return self.apply(Slice(), value, integers(start), integers(stop), integers(axis))

    def heads(self) -> Value:
        """Return the second of three parts of a layer, as heads."""
        x = self.input(self.count, LENGTH, WIDTH, dtype=self.dtype)
        layer = self.apply(MatMul(), x, self.constant(WIDTH, 3 * WIDTH))
        split = self.apply(Reshape(), layer, integers(self.count, LENGTH, 3, HEADS, SIZE))
        parts = self.apply(Transpose(perm=(0, 3, 2, 1, 4)), split)
        return self.apply(Squeeze(), self.cut(parts, 2, 1, 2), integers(2))

    def pooled(self, heads: Value) -> Value:
        """Return heads whose image is convolved, and normalized with their class token."""
        token, image = self.cut(heads, 2, 0, 1), self.cut(heads, 2, 1, LENGTH)
        image = self.apply(Reshape(), self.apply(TURNED, image), integers(-1, SIZE, *PIXELS))
        op = Conv(group=SIZE, pads=(1,) * 6)
        image = self.apply(op, image, self.constant(SIZE, 1, 3, 3, 3))
        image = self.apply(Reshape(), image, integers(-1, HEADS, SIZE, LENGTH - 1))
        joined = self.apply(Concat(axis=2), token, self.apply(TURNED, image))
        return self.apply(LayerNormalization(axis=-1), joined, self.constant(SIZE))

    def rows(self, heads: Value) -> Value:
        turned = self.apply(Transpose(perm=(0, 2, 1, 3)), heads)
        return self.apply(Reshape(), turned, integers(self.count, -1, WIDTH))


def entries_of(sample: Sample) -> list[str]:
    """Return the entry points of what a sample is behind the passes."""
    device = DryDevice()
    with Model(sample.graph.clone(), [dry_backend(device)], OPTIONS, evaluate) as model:
        return [launch.entry for launch in launches(planned_model(model, device))]


@pytest.fixture(params=[float16, float32], ids=str)
def dtype(request: pytest.FixtureRequest) -> DType:
    return request.param


@needs_compiler
@pytest.mark.parametrize("count", [1, 2])
def test_images_of_heads_lie_in_rows(dtype: DType, count: int, emulated: CudaBackend) -> None:
    net = Heads(dtype, count)
    sample = Sample(net.outputs(net.rows(net.pooled(net.heads()))), net.feeds)
    entries = entries_of(sample)
    assert "gather" not in entries
    if count == 1:  # the convolution reads part of rows, and writes behind the row of the token
        assert "concat" not in entries
        assert entries.count("copy_strided") == 1
    compare(sample, emulated, error=ERROR[dtype])


@needs_compiler
@pytest.mark.parametrize("axis", ["t", "h"])
def test_places_are_multiplied_in_rows(dtype: DType, axis: str, emulated: CudaBackend) -> None:
    net = Heads(dtype, 1)
    image = net.cut(net.pooled(net.heads()), 2, 1, LENGTH)
    image = net.apply(Reshape(), image, integers(1, HEADS, *PIXELS, SIZE))
    table = net.constant(PIXELS["thw".index(axis)], 8, SIZE)
    made = net.apply(Einsum(equation=f"bnthwc,{axis}kc->bnthwk"), image, table)
    sample = Sample(net.outputs(made), net.feeds)
    entries = entries_of(sample)
    assert "gather" not in entries
    compare(sample, emulated, error=ERROR[dtype])
