"""Kernels of several nodes that read part of a wider tensor, perhaps twice, with their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.launch import finds
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Div, Max, Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.reduce import ReduceL2

from .dry import Net, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

ERROR = {float16: 5e-3, float32: 2e-5}
Case = Callable[["Halves"], tuple[Value, ...]]


class Halves(Net):
    """A net of one element type, and halves of what it computes."""

    def __init__(self, dtype: DType) -> None:
        super().__init__()
        self.dtype = dtype

    def given(self, *dims: int) -> Value:
        return self.input(*dims, dtype=self.dtype)

    def constant(self, *dims: int, scale: float = 0.2) -> Any:
        return normal(*dims, scale=scale).astype(self.dtype)

    def half(self, whole: Value, axis: int = -1, part: int = 1) -> Value:
        """Return the first or second half, which lies in the whole."""
        node = self.graph.insert(Split(axis=axis, num_outputs=2), [whole], 2)
        infer(self.graph)
        return node.outputs[part]

    def rows(self, *dims: int, part: int = 1) -> Value:
        """Return rows that are halves of wider ones."""
        return self.half(self.apply(Relu(), self.given(*dims[:-1], 2 * dims[-1])), part=part)

    def sample(self, case: Case) -> Sample:
        return Sample(self.outputs(*case(self)), self.feeds)


def left(net: Halves) -> tuple[Value, ...]:
    """The left factor is added to its product with a matrix that is transposed."""
    x, w = net.rows(40, 32), net.given(32, 32)
    y = net.apply(MatMul(), x, net.apply(Transpose(perm=(1, 0)), w))
    return (net.apply(Add(), y, x),)


def right(net: Halves) -> tuple[Value, ...]:
    """So is the right one."""
    w, x = net.given(32, 32), net.rows(32, 32)
    y = net.apply(MatMul(), net.apply(Transpose(perm=(1, 0)), w), x)
    return (net.apply(Add(), y, x),)


def stack(net: Halves) -> tuple[Value, ...]:
    """Products of several samples by constants of their own, and something else."""
    x, z = net.rows(2, 40, 24, part=0), net.rows(2, 40, 32, part=0)
    y = net.apply(MatMul(), x, net.constant(2, 24, 32))
    return (net.apply(Max(), y, z),)


def divided(net: Halves) -> tuple[Value, ...]:
    """Rows that are divided by their lengths are added to themselves."""
    x = net.rows(20, 64)
    y = net.apply(Div(), x, net.apply(ReduceL2(), x, np.array([-1])))
    return (net.apply(Add(), y, x),)


def twice(net: Halves) -> tuple[Value, ...]:
    """Rows are normalized before and after a sum."""
    z, x = net.rows(20, 64), net.given(20, 64)
    y = net.apply(Add(), net.apply(RMSNormalization(), x, net.constant(64, scale=1)), z)
    return net.apply(RMSNormalization(), y, net.constant(64, scale=1)), y


def gathered(net: Halves) -> tuple[Value, ...]:
    """Rows are put in another order and normalized."""
    z, x = net.rows(20, 64), net.given(20, 64)
    y = net.apply(Gather(), x, np.arange(20)[::-1].copy())
    y = net.apply(LayerNormalization(), y, net.constant(64), net.constant(64))
    return (net.apply(Add(), y, z),)


def put_apart(net: Halves) -> tuple[Value, ...]:
    """They are put in another order at last."""
    z, x = net.rows(20, 64), net.given(20, 64)
    y = net.apply(LayerNormalization(), x, net.constant(64), net.constant(64))
    return (net.apply(Gather(), net.apply(Add(), y, z), np.arange(20)[::-1].copy()),)


def channels(net: Halves) -> tuple[Value, ...]:
    """An inverted residual of half of the channels, as in networks with partial stages."""
    x = net.apply(Conv(), net.given(2, 16, 8, 8), net.constant(32, 16, 1, 1))
    x = net.half(net.apply(Relu(), x), axis=1)
    y = net.apply(Relu(), net.apply(Conv(), x, net.constant(32, 16, 1, 1)))
    y = net.apply(Conv(group=32, pads=(1,) * 4), y, net.constant(32, 1, 3, 3))
    y = net.apply(Conv(), net.apply(Relu(), y), net.constant(16, 32, 1, 1))
    return (net.apply(Add(), y, x),)


STRIDED, ROWS, RESIDUAL = "strided_mma", "normalize_rows", "inverted_residual"


CASES = [
    *((case, dtype, STRIDED) for case in (left, right) for dtype in (float16, float32)),
    (stack, float16, "mma"),
    (divided, float32, ROWS),
    *((case, float16, ROWS) for case in (twice, gathered, put_apart)),
    *((channels, dtype, RESIDUAL) for dtype in (float16, float32)),
]


@needs_compiler
@pytest.mark.parametrize(("case", "dtype", "entry"), CASES)
def test_operands_lie_in_wider_tensors(
    case: Case, dtype: DType, entry: str, emulated: CudaBackend
) -> None:
    """Nothing copies them but where rows are put apart."""
    sample = Halves(dtype).sample(case)
    assert entries_of(sample.graph)[-1] == entry
    compare(sample, emulated, error=ERROR[dtype])


def test_kernels_that_read_slices_as_if_they_were_dense_get_none() -> None:
    """Whatever they say: all operands that are a tensor have its pitch."""
    launch = launches(planned(Halves(float32).sample(left).graph))[-1]
    a, z = (launch.args[name] for name in ("a", "z0"))
    assert isinstance(a, Tensor)
    assert isinstance(z, Tensor)
    assert (a.value, a.pitch, z.pitch) == (z.value, 64, 64)
    pitches = {a.value: 64}
    assert finds(launch, pitches)
    for name, operand in (("a", a), ("z0", z)):
        dense = replace(launch, args={**launch.args, name: Tensor(operand.value)})
        assert not finds(dense, pitches)
    assert not finds(replace(launch, pitched=()), pitches)
    assert not finds(launch, {})
