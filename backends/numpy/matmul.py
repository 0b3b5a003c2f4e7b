"""Matrix products by BLAS; half floats are summed in float32."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...runtime.backend import Site
from ...runtime.dtypes import DType, bfloat16, float16, float32
from ...runtime.ir import Value
from ...runtime.ops.matmul import Det, Einsum, Gemm, MatMul
from ...runtime.options import Options
from ...runtime.types import Array
from .chain import Chain
from .conv import operands
from .frame import blocks
from .registry import builder, kernel
from .step import Bound, HostStep, Piece, Scratch, Tape

#: Elements of the result that bias and activation are applied to at once.
BLOCK = 1 << 16


def _sums(dtype: DType) -> DType:
    return float32 if dtype in (float16, bfloat16) else dtype


class _Wide:
    """Operands in the dtype of the sums: constants converted once, others in the workspace."""

    def __init__(self, dtype: DType, scratch: Scratch) -> None:
        self.dtype, self.scratch = dtype, scratch
        self.copies: dict[Value, Piece] = {}

    def want(self, value: Value) -> None:
        """Reserve what `value` takes."""
        if value.tensor.dtype != self.dtype and not value.is_constant:
            self.copies[value] = self.scratch.take(value.tensor.size, self.dtype)

    def get(self, tape: Tape, bound: Bound, value: Value) -> Array:
        """Return `value`, and add to the tape the call that converts it."""
        if value not in self.copies:
            return bound.as_dtype(value, self.dtype)
        copy = bound.scratch(self.copies[value], value.tensor.dims)
        tape.append(partial(np.copyto, copy, bound[value]))
        return copy


@builder(MatMul, fuses=True)
def matmul(chain: Chain, site: Site, options: Options) -> HostStep | str:
    """Multiply stacks of matrices, with the elementwise nodes behind the product."""
    a, b, _ = operands(chain.head)
    return _Product(chain, a, b, _sums(a.tensor.dtype)).step(site)


@builder(Gemm, fuses=True)
def gemm(chain: Chain, site: Site, options: Options) -> HostStep | str:
    """Multiply two matrices and add a third one, with the elementwise nodes behind."""
    a, b, _ = operands(chain.head)
    return _Product(chain, a, b, _sums(a.tensor.dtype)).step(site)


class _Product:
    """alpha * a @ b + beta * c, the addend and all but the product left out for MatMul."""

    def __init__(self, chain: Chain, a: Value, b: Value, dtype: DType) -> None:
        self.chain, self.a, self.b, self.dtype = chain, a, b, dtype
        self.scratch = Scratch()
        self.wide = _Wide(dtype, self.scratch)
        self.wide.want(a)
        self.wide.want(b)
        self.sums = None
        if chain.output.tensor.dtype != dtype:
            self.sums = self.scratch.take(chain.output.tensor.size, dtype)

    def step(self, site: Site) -> HostStep:
        """Return what runs it."""
        size = f"{self.a.tensor} @ {self.b.tensor}"
        return HostStep(f"{self.chain.title}: {size}", site, self._record, own=self.scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        tape: Tape = []
        op = self.chain.head.op
        out = bound[self.chain.output]
        sums = out if self.sums is None else bound.scratch(self.sums, out.shape)
        a, b = (self.wide.get(tape, bound, value) for value in (self.a, self.b))
        if isinstance(op, Gemm):
            a, b = a.T if op.transA else a, b.T if op.transB else b
            tape.append(partial(np.matmul, a, b, sums))
            self._add(tape, op, bound, sums)
        else:
            tape.append(partial(np.matmul, a, b, sums))
        if sums is not out:
            tape.append(partial(np.copyto, out, sums))
        frame = self.chain.frame((0,), (0, max(1, out.ndim - 1)))
        finish = self.chain.finish(frame, bound)
        for block in blocks(frame.shape, BLOCK):
            finish(tape, block)
        return [tape]

    def _add(self, tape: Tape, op: Gemm, bound: Bound, sums: Array) -> None:
        if op.alpha != 1:
            tape.append(partial(np.multiply, sums, op.alpha, sums))
        _, _, c = operands(self.chain.head)
        if c is None or op.beta == 0:
            return
        if op.beta != 1 and c.is_constant:
            layout = ("times", op.beta, self.dtype)
            addend = bound.packed((c,), layout, lambda x: (x * op.beta).astype(self.dtype))
        else:
            addend = bound[c]
        if op.beta != 1 and not c.is_constant:
            tape.append(lambda: np.add(sums, addend * op.beta, out=sums, casting="same_kind"))
        else:
            tape.append(partial(np.add, sums, addend, sums))


@kernel(Einsum)
def einsum(op: Einsum, *inputs: Array) -> Array:
    """Sum over the letters that the result lacks."""
    dtype = inputs[0].dtype
    wide = [x.astype(_sums(dtype), copy=False) for x in inputs]
    return np.einsum(op.equation.replace(" ", ""), *wide, optimize=len(wide) > 1).astype(dtype)


@kernel(Det)
def det(op: Det, x: Array) -> Array:
    """Return the determinant of each matrix."""
    return np.linalg.det(x.astype(_sums(x.dtype), copy=False)).astype(x.dtype)
