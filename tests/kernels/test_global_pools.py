"""Poolings of whole images with elementwise nodes around them: one kernel, as of reductions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul, Sigmoid, Sub
from tercet.runtime.ops.pool import GlobalAveragePool, GlobalMaxPool

from .dry import Net, entries_of
from .emulator import needs_compiler
from .samples import compare, sample_of

SHAPE = (2, 16, 6, 5)
MEAN, MOST = GlobalAveragePool(), GlobalMaxPool()


def product(net: Net) -> Value:
    return net.apply(MEAN, net.apply(Mul(), net.input(*SHAPE), net.input(*SHAPE)))


def gate(net: Net) -> Value:
    return net.apply(Sigmoid(), net.apply(MEAN, net.input(*SHAPE, dtype=float16)))


def both(net: Net) -> Value:
    """The statistics of CBAM."""
    x = net.input(*SHAPE)
    return net.apply(Add(), net.apply(MEAN, x), net.apply(MOST, x))


def difference(net: Net) -> Value:
    """Pixels without the mean of their channel."""
    x = net.input(*SHAPE)
    return net.apply(Sub(), x, net.apply(MEAN, x))


def of_lines(net: Net) -> Value:
    return net.apply(Sigmoid(), net.apply(MOST, net.input(3, 8, 40)))


def last(net: Net) -> Value:
    """Channels that a convolution has stored last."""
    w = (np.arange(16 * 16 * 9, dtype=np.float32).reshape(16, 16, 3, 3) % 7 - 3) / 30
    image = net.apply(Conv(pads=(1, 1, 1, 1)), net.input(*SHAPE), w)
    return net.apply(Sigmoid(), net.apply(MEAN, image))


@needs_compiler
@pytest.mark.parametrize(
    ("build", "entry"),
    [
        (product, "reduce_chain"),
        (gate, "reduce_chain"),
        (both, "row_chain"),
        (difference, "row_chain"),
        (of_lines, "reduce_chain"),
        (last, "reduce_chain"),
    ],
)
def test_one_kernel(build: Callable[[Net], Value], entry: str, emulated: CudaBackend) -> None:
    sample = sample_of(build)
    found = entries_of(sample.graph)
    assert found[-1].startswith(entry)
    assert len(found) == 1 or build is last
    compare(sample, emulated, error=1e-3 if build is gate else 5e-6)


def test_pooling_alone() -> None:
    assert entries_of(sample_of(lambda net: net.apply(MEAN, net.input(2, 16, 32, 32))).graph) == [
        "reduce_rows"
    ]
