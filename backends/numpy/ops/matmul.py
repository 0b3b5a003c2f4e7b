"""Matrix products by BLAS; half floats are summed in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from ....runtime.ir.dtypes import DType, float64
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ....runtime.ops.matmul import Det, Einsum, Gemm, MatMul
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.blocking import Block, Frame, cut, full_block
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, FETCH, PRODUCT, blocks_worth
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, ScratchLayout, Tape
from ..numerics.halves import store
from ..numerics.products import recorded, sums

#: A common multiple of the tile sizes of BLAS's kernels.
GROUP = 16


@builder(MatMul, fuses=True)
def matmul(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Multiply stacked matrices, with fused elementwise nodes."""
    a, b, _ = chain.operands
    return _Product(chain, a, b, sums(a.tensor.dtype)).step(site)


@builder(Gemm, fuses=True)
def gemm(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Multiply two matrices and add a third one, with fused elementwise nodes.

    Scaled integers are summed in float64, as the factors are floats.
    """
    a, b, _ = chain.operands
    op, dtype = chain.head.op, sums(a.tensor.dtype)
    if dtype.kind in "iu" and isinstance(op, Gemm) and (op.alpha, op.beta) != (1, 1):
        dtype = float64
    return _Product(chain, a, b, dtype).step(site)


class _Product:
    """alpha * a @ b + beta * c; for MatMul only the product."""

    def __init__(self, chain: Chain, a: Value, b: Value, dtype: DType) -> None:
        self.chain, self.a, self.b, self.dtype = chain, a, b, dtype
        self.dims = chain.output.tensor.dims
        self.scratch = ScratchLayout()
        self.sums = None
        if chain.output.tensor.dtype != dtype:
            self.sums = self.scratch.take(chain.output.tensor.size, dtype)
        self.workers = 1 if self.scratch.nbytes else thread_pool.size()

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        name = f"{self.chain.title}: {self.a.tensor} @ {self.b.tensor}"
        return HostStep(name, site, self._record, self.workers, self.scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        op = self.chain.head.op
        a, b = (bound.as_dtype(value, self.dtype) for value in (self.a, self.b))
        if isinstance(op, Gemm):
            a, b = a.T if op.transA else a, b.T if op.transB else b
        out = bound[self.chain.output]
        if self._is_flat(a, b, out):
            a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
        dims, last = out.shape, len(self.dims) - 1
        sums = out if self.sums is None else bound.scratch(self.sums, dims)
        boxes = list(self._boxes(a, b, dims))
        merged = _joined(boxes[0], dims)
        if len(dims) < len(self.dims):
            merged = tuple((0, last)[: len(starts)] for starts in merged)
        frame = self.chain.frame(*merged)
        finish = self.chain.finish(frame, bound)
        place = frame if len(dims) > last else Frame(dims, (0, 1)[: len(frame.starts)])
        tapes: list[Tape] = []
        for box in boxes:
            tape: Tape = [_multiply(a, b, sums, box, is_fixed=self.b.is_constant)]
            if isinstance(op, Gemm):
                self._add(tape, op, bound, sums[box], box)
            if sums is not out:
                tape.append(partial(store, out, sums))
            if out.size:
                finish(tape, place.block(box) if box else full_block(frame.shape))
            tapes.append(tape)
        return tapes

    def _is_flat(self, a: Array, b: Array, out: Array) -> bool:
        """Whether stacks of rows, all multiplied by one matrix, are rows of one product."""
        last = len(self.dims) - 1
        if b.ndim != 2 or last < 2 or not a.size or not out.size:
            return False
        if not (a.flags.c_contiguous and out.flags.c_contiguous):
            return False
        return len(self.chain.frame((0, last)).starts) == 2

    def _boxes(self, a: Array, b: Array, dims: tuple[int, ...]) -> Iterator[Block]:
        """Yield the parts of the result: some stacks, rows or columns."""
        whole = full_block(dims)
        calls = 1 + self.chain.calls
        nanoseconds = prod(dims) * (a.shape[-1] * PRODUCT + calls * ELEMENT) + b.size * FETCH
        wanted = blocks_worth(nanoseconds, self.workers)
        if wanted < 2 or a.ndim < 2 or b.ndim < 2:
            yield whole
            return
        stacks, rows, columns = dims[0], *dims[-2:]
        axis = 0
        if len(dims) == 2 or stacks < self.workers:
            axis = len(dims) - (1 if columns >= rows else 2)
        # BLAS sums whole groups of rows or columns in one order and what is left over in another:
        # blocks of whole groups make a product independent of how it is cut.
        size = dims[axis]
        bounds = {min(size, -(-size * i // wanted // GROUP) * GROUP) for i in range(wanted + 1)}
        for start, stop in pairwise(sorted(bounds)):
            yield (*whole[:axis], slice(start, stop), *whole[axis + 1 :])

    def _add(self, tape: Tape, op: Gemm, bound: Bound, sums: Array, box: Block) -> None:
        if op.alpha != 1:
            tape.append(partial(np.multiply, sums, op.alpha, out=sums))
        _, _, c = self.chain.operands
        if c is None or op.beta == 0:
            return
        if op.beta != 1 and c.is_constant:
            layout = ("times", op.beta, self.dtype)
            addend = bound.packed((c,), layout, lambda x: (x * op.beta).astype(self.dtype))
        else:
            addend = bound[c]
        addend = cut(addend.reshape((1,) * (2 - addend.ndim) + addend.shape), box)
        if op.beta != 1 and not c.is_constant:
            tape.append(lambda: np.add(sums, addend * op.beta, out=sums, casting="same_kind"))
        else:
            tape.append(partial(np.add, sums, addend, out=sums))


def _joined(box: Block, dims: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return which axes may be merged, coarse first, so that boxes are contiguous in each."""
    last = max(1, len(dims) - 1)
    parts = (part.stop - part.start for part in box)
    whole = [part == size for part, size in zip(parts, dims, strict=True)]
    axis = 0 if all(whole) else whole.index(False)
    if axis == 0:
        return (0,), (0, last)
    return ((0, last),) if axis == last else ((0, axis), (0, axis, last))


def _multiply(
    a: Array, b: Array, out: Array, box: Block, *, is_fixed: bool
) -> Callable[[], object]:
    """Return the call that computes one part of a product."""
    if a.ndim > 1:
        a = _stacks(a, box)[..., box[-2], :] if b.ndim > 1 else a
    if b.ndim > 1:
        b = _stacks(b, box)[..., box[-1]] if a.ndim > 1 else b
    return recorded(a, b, out[(..., *box)], is_fixed=is_fixed)


def _stacks(data: Array, box: Block) -> Array:
    """Return the stacks of an operand needed for the leading axes of a box of the result."""
    lead = box[: len(box) - 2]
    own = lead[len(lead) - (data.ndim - 2) :]
    sizes = data.shape[:-2]
    return data[tuple(slice(None) if n == 1 else s for n, s in zip(sizes, own, strict=True))]


@kernel(Einsum)
def einsum(op: Einsum, *inputs: Array) -> Array:
    """Sum over the letters missing in the result."""
    dtype = inputs[0].dtype
    wide = [x.astype(sums(dtype), copy=False) for x in inputs]
    return np.einsum(op.equation.replace(" ", ""), *wide, optimize=len(wide) > 1).astype(dtype)


@kernel(Det)
def det(op: Det, x: Array) -> Array:
    """Return the determinant of each matrix."""
    return np.linalg.det(x.astype(sums(x.dtype), copy=False)).astype(x.dtype)
