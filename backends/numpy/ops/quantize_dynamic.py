"""Quantization to uint8 by the range of what is quantized."""

from __future__ import annotations

from functools import partial

import numpy as np

from ....runtime.ir.dtypes import float32, uint8
from ....runtime.ir.types import Array
from ....runtime.ops.quantize import DynamicQuantizeLinear
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.apply import BLOCK
from ..engine.chain import Chain
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, Piece, ScratchLayout, Tape
from ..numerics.convert import saturating

#: The number of steps from the lowest to the highest element.
_STEPS = np.array(255, float32)


@kernel(DynamicQuantizeLinear)
def dynamic_quantize_linear(op: DynamicQuantizeLinear, x: Array) -> tuple[Array, Array, Array]:
    """Quantize to uint8 by the range of `x` and 0; the scale of all zeros is 1."""
    found = np.empty(x.shape, uint8), np.empty((), float32), np.empty((), uint8)
    for call in _tape(x, *found, np.empty(min(x.size, BLOCK), float32)):
        call()
    return found


@builder(DynamicQuantizeLinear)
def quantize_dynamically(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Prepare the calls when the step is bound."""
    scratch = ScratchLayout()
    piece = scratch.take(min(chain.output.tensor.size, BLOCK), float32)
    record = partial(_record, chain, piece)
    return HostStep(chain.title, site, record, own=scratch.nbytes)


def _record(chain: Chain, piece: Piece, bound: Bound) -> list[Tape]:
    x, (result, *others) = bound[chain.nodes[0].distinct_reads[0]], chain.head.outputs
    given = [bound.get(value) for value in others]
    scale, zero_point = (
        np.empty((), dtype) if array is None else array
        for array, dtype in zip((*given, None, None), (float32, uint8), strict=False)
    )
    return [_tape(x, bound[result], scale, zero_point, bound.scratch(piece, (piece.size,)))]


def _tape(x: Array, result: Array, scale: Array, zero_point: Array, spare: Array) -> Tape:
    """Return the calls that quantize `x`.

    Args:
        x: float32 in C order.
        result: uint8, of the same shape.
        scale: float32, one element.
        zero_point: uint8, one element.
        spare: float32, for the elements of a block.
    """
    elements, found = x.reshape(-1), result.reshape(-1)
    scale, zero_point = scale.reshape(()), zero_point.reshape(())
    low, high, shift = (np.empty((), float32) for _ in range(3))

    def avoid_zero() -> None:
        if scale == 0:
            scale[...] = 1

    tape: Tape = [
        partial(np.minimum.reduce, elements, out=low, initial=0),
        partial(np.maximum.reduce, elements, out=high, initial=0),
        partial(np.subtract, high, low, scale),
        partial(np.divide, scale, _STEPS, scale),
        avoid_zero,
        partial(np.negative, low, shift),
        partial(np.divide, shift, scale, shift),
        partial(np.rint, shift, shift),
        *saturating(shift, zero_point),
        partial(np.copyto, shift, zero_point),
    ]
    for first in range(0, elements.size, BLOCK):
        part = elements[first : first + BLOCK]
        quotients = spare[: part.size]
        tape += [
            partial(np.divide, part, scale, quotients),
            partial(np.rint, quotients, quotients),
            partial(np.add, quotients, shift, quotients),
            *saturating(quotients, found[first : first + BLOCK]),
        ]
    return tape
