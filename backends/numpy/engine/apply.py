"""Steps of elementwise nodes, and of operators that are plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import gcd, prod
from typing import Any

import numpy as np

from ....runtime.ir.dtypes import float16
from ....runtime.ir.graph import Node, Value
from ....runtime.ir.op import Op
from ....runtime.ir.types import Array, HostValue, TensorType, ValueType
from ....runtime.plan.backend import BuildContext, Claim
from ..numerics.elementwise import CALLS, ELEMENTWISE
from ..numerics.elementwise_calls import elementwise_call
from . import thread_pool
from .blocking import Block, Frame, cut, lengths, shares
from .chain import Chain
from .cost import ELEMENT, blocks_worth
from .registry import KERNELS, PlainKernel
from .step import Bound, HostStep, Tape

#: Elements per block for several calls, sized for the L2 cache.
BLOCK = 1 << 15
#: Maximum elements of a row, and minimum rows, that are faster column by column.
SHORT, MANY = 4, 1 << 10
#: Bytes of a line of the cache, those after which lines share a set, and lines of a set.
LINE, PERIOD, WAYS = 64, 1 << 12, 8
#: Bytes of a copy from which that matters, and how many elements are copied together.
CLASHING, FEWEST, MOST = 1 << 17, 16, 128


def elementwise_claim(chain: Chain) -> Claim:
    """Return the claim of a chain with an elementwise head."""

    def build(site: BuildContext) -> HostStep:
        count = thread_pool.size()
        record = partial(_record_elementwise, chain, count)
        return HostStep(chain.title, site, record, workers=count)

    return Claim(chain.nodes, build, in_place=in_place(chain))


def in_place(chain: Chain) -> tuple[tuple[Value, Value], ...]:
    """Return pairs of the result and an input of the head that may share memory.

    The head must read an element before it is written, and later stages must not read it.
    """
    later = {value for stage in chain.stages for value in stage.others} | {*chain.head.inputs[2:]}
    inputs = [value for value in chain.head.inputs[:2] if value is not None]
    return tuple(
        (chain.output, value)
        for value in inputs
        if not value.is_constant and value.type == chain.output.type and value not in later
    )


def _record_elementwise(chain: Chain, workers: int, bound: Bound) -> list[Tape]:
    head, result = chain.head, bound[chain.output]
    function = ELEMENTWISE[type(head.op)](head.op)
    calls = CALLS.get(type(head.op), 1) + chain.calls
    count = blocks_worth(ELEMENT * calls * result.size, workers)
    frame = _frame(chain, count > 1)
    finish = chain.finish(frame, bound)
    target = frame.view(result)
    operands = [None if v is None else frame.view(bound[v]) for v in head.inputs]
    is_whole = isinstance(function, np.ufunc) and not chain.stages and not _has_halves(chain)
    tapes: list[Tape] = []
    for share in shares(frame.shape, count, max(1, result.size) if is_whole else BLOCK):
        tape: Tape = []
        for block in _columns(share) if isinstance(function, np.ufunc) else share:
            arrays = [None if data is None else cut(data, block) for data in operands]
            tape.append(elementwise_call(function, *arrays, out=cut(target, block)))
            finish(tape, block)
        tapes.append(tape)
    return tapes


def _columns(share: Sequence[Block]) -> Iterator[Block]:
    """Yield blocks, cut into columns if rows are so short that starting loops takes most time."""
    for block in share:
        count = lengths(block)
        if count[-1] > SHORT or prod(count[:-1]) < MANY:
            yield block
            continue
        for i in range(block[-1].start, block[-1].stop):
            yield (*block[:-1], slice(i, i + 1))


def _has_halves(chain: Chain) -> bool:
    """Whether the head reads halves, which are converted in blocks."""
    return any(v is not None and v.tensor.dtype == float16 for v in chain.head.inputs)


def _frame(chain: Chain, is_shared: bool) -> Frame:
    """Return the coarsest frame that fits all operands: flat, by row, by channel, or unmerged.

    An image shared by several threads is cut by channels and positions if possible.
    """
    dims = chain.output.tensor.dims
    rank = len(dims)
    inputs = [v.tensor.dims for v in chain.head.inputs if v is not None]
    candidates = [(0,), *((0, axis) for axis in range(rank - 1, 0, -1))]
    if rank > 2:
        candidates.insert(0 if is_shared and dims[0] == 1 else rank, (0, 1, 2))
    for starts in candidates:
        frame = Frame(dims, starts)
        if all(map(frame.fits, inputs)) and chain.frame(starts) == frame:
            return frame
    return Frame.finest(dims)


def kernel_claim(node: Node, kernel: PlainKernel) -> Claim:
    """Return the claim of a node run by a plain function."""

    def build(site: BuildContext) -> HostStep:
        return HostStep(node.kind, site, lambda bound: [record_kernel(node, kernel, bound)])

    pairs: tuple[tuple[Value, Value], ...] = ()
    first = node.inputs[0] if node.inputs else None
    if kernel.in_place and first is not None and not first.is_constant:
        pairs = ((node.output, first),) if first.type == node.output.type else ()
    return Claim((node,), build, in_place=pairs)


def left_to_kernel(chain: Chain, site: BuildContext) -> HostStep:
    """Return a step of the plain function."""
    node = chain.head
    kernel = KERNELS[type(node.op)]
    return HostStep(node.kind, site, lambda bound: [record_kernel(node, kernel, bound)])


def record_kernel(node: Node, kernel: PlainKernel, bound: Bound) -> Tape:
    """Return the recorded calls of a node run by a plain function."""
    arrays = [bound.get(value) for value in node.inputs]
    if kernel.writes:
        return [partial(kernel.function, node.op, *arrays, out=bound[node.output])]
    targets = [bound.get(value) for value in node.outputs]
    if kernel.views and all(v is None or v.is_constant for v in node.inputs[1:]):
        pairs = zip(targets, _as_tuple(kernel.function(node.op, *arrays)), strict=False)
        return [
            partial(np.copyto, *each)
            for target, view in pairs
            if target is not None
            for each in _pieces(target, view)
        ]

    def run() -> None:
        results = kernel.function(node.op, *arrays)
        for target, result in zip(targets, _as_tuple(results), strict=False):
            if target is not None:
                if np.shape(result) != target.shape:
                    raise ValueError(f"a result of shape {np.shape(result)}, not {target.shape}")
                np.copyto(target, result)

    return [run]


def _pieces(target: Array, view: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the parts to copy one after the other.

    Elements that are next to each other in the result may be in as many lines of the source, which
    have left the cache when those next to them are copied. So no more of them are visited at a time
    than the sets hold that these lines share.
    """
    while view.ndim > 1 and _is_one_axis(target) and _is_one_axis(view):
        shape = (*view.shape[:-2], view.shape[-2] * view.shape[-1])
        target, view = target.reshape(shape), view.reshape(shape)
    count, apart = (view.shape[-1], abs(view.strides[-1])) if view.ndim else (0, 0)
    together = max(FEWEST, min(WAYS * (PERIOD // gcd(apart, PERIOD)), MOST))
    near = [0 < abs(step) < LINE for n, step in zip(view.shape, view.strides, strict=True) if n > 1]
    if view.nbytes < CLASHING or apart < LINE or count <= together or not any(near):
        yield target, view
        return
    for first in range(0, count, together):
        some = (..., slice(first, first + together))
        yield target[some], view[some]


def _is_one_axis(x: Array) -> bool:
    """Whether the last two axes can be merged without a copy."""
    return x.strides[-2] == x.shape[-1] * x.strides[-1]


def call(
    op: Op,
    kernel: PlainKernel,
    inputs: Sequence[HostValue],
    types: Sequence[ValueType | None] = (),
) -> tuple[HostValue, ...]:
    """Call a plain function and return new values, of these types if known.

    Texts with another shape are a view: their bytes are then not counted again, text by text.
    """
    if kernel.views:
        return tuple(np.array(view) for view in _as_tuple(kernel.function(op, *inputs)))
    if not kernel.writes:
        return tuple(map(_as_value, _as_tuple(kernel.function(op, *inputs))))
    arrays = [data if isinstance(data, np.ndarray) else None for data in inputs]
    first = arrays[0] if kernel.reshapes else None
    if first is not None and first.dtype.hasobject:
        return (first.reshape(_type_of_result(op, arrays, types).dims),)
    out = _empty(op, arrays, types)
    kernel.function(op, *arrays, out=out)
    return (out,)


def _as_value(result: Any) -> HostValue:
    return result if result is None or isinstance(result, list | dict) else np.asarray(result)


def call_elementwise(
    op: Op,
    function: Callable[..., object],
    inputs: Sequence[HostValue],
    types: Sequence[ValueType | None] = (),
) -> tuple[Array, ...]:
    """Call an elementwise operator's function; return a new array, of a given type if known."""
    arrays = [data if isinstance(data, np.ndarray) else None for data in inputs]
    out = _empty(op, arrays, types)
    function(*arrays, out=out)
    return (out,)


def _empty(op: Op, inputs: list[Array | None], known: Sequence[ValueType | None]) -> Array:
    """Return an array for the first output, whose type is known or inferred."""
    found = _type_of_result(op, inputs, known)
    return np.empty(found.dims, found.dtype)


def _type_of_result(
    op: Op, inputs: list[Array | None], known: Sequence[ValueType | None]
) -> TensorType:
    first = known[0] if known else None
    if isinstance(first, TensorType) and first.is_static:
        return first
    found = op.infer(*(x if x is None else TensorType(x.dtype, x.shape, x) for x in inputs))
    first = found[0] if isinstance(found, tuple) else found
    if not isinstance(first, TensorType):
        raise ValueError(f"{op} gives no tensor")
    return first


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
