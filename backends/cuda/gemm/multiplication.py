"""The task of algorithms for MatMul and Gemm: operator, operands and epilogue."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import name_of
from ....runtime.ops.matmul import Gemm, MatMul
from ....runtime.plan.format import Format
from ..algorithms.registry import RecipeContext, Setting
from ..algorithms.selection import Formats
from ..codegen.epilogue import Epilogue, no_epilogue
from ..recipe.operands import Ints, Tensor, broadcast_strides, merge
from .convolution import times


@record
class Multiplication:
    """A matrix product, or a stack of them.

    Attributes:
        op: the operator.
        y: the result.
        a, b: the factors.
        c: the addend of Gemm, or None.
        epilogue: the fused elementwise nodes.
        setting: the GPU and the user's options.
    """

    op: MatMul | Gemm
    y: Tensor
    a: Tensor
    b: Tensor
    c: Tensor | None
    epilogue: Epilogue
    setting: Setting

    @property
    def formats(self) -> Formats:
        """Those of `a` and of `y`, which is always contiguous."""
        return self.a.format, Format.CONTIGUOUS

    @property
    def plain(self) -> Multiplication:
        """The same product, with results as they are."""
        return replace(self, epilogue=self.epilogue.as_plain) if self.epilogue.halves else self

    def within(self, formats: Formats) -> Multiplication:
        """Return this task with `a` in another format."""
        return replace(self, a=replace(self.a, format=formats[0]))

    @property
    def is_cut(self) -> bool:
        """Whether the kernel before can store `a` in halves."""
        return self.setting.cuts(self.a.value)

    @property
    def around(self) -> tuple[str, ...]:
        """Whether `is_cut`."""
        return ("cut",) if self.is_cut else ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K of one product."""
        terms = self.a.dims[0] if self._is_transposed else self.a.dims[-1]
        columns = self.y.dims[-1] if self.b.rank > 1 else 1
        rows = self.y.size // max(columns, 1)
        return (rows // self.count, columns, terms)

    @property
    def _is_transposed(self) -> bool:
        return isinstance(self.op, Gemm) and bool(self.op.transA)

    @property
    def count(self) -> int:
        """Number of products with separate right matrices."""
        if self.b.rank <= 2:
            return 1
        vector = self.a.rank < 2
        count = prod(self.y.dims[:-2]) if vector else stacks(self.y, self.a, self.b)[0]
        return max(count, 1)

    @property
    def is_constant(self) -> bool:
        """Whether the right matrix is constant, and can be packed."""
        return self.b.data is not None

    @property
    def signature(self) -> str:
        """What speed depends on: ``Gemm float32 1x2048 2048x1000 constant to 1x1000``."""
        parts = [
            type(self.op).__name__,
            name_of(self.a.dtype),
            times(self.a.dims),
            times(self.b.dims),
        ]
        if self.is_constant:
            parts.append("constant")
        parts += ["to", times(self.y.dims)]
        if isinstance(self.op, Gemm):
            parts.append(f"trans {self.op.transA} {self.op.transB}")
        return " ".join(parts)


def batch_axes(y: Tensor, a: Tensor, b: Tensor) -> int:
    """Return the number of batch axes, the first ones, along which right matrices are separate.

    Behind these, only the left matrix varies: their elements are further rows, such as the heads of
    an attention whose keys are shared.
    """
    batch = y.dims[:-2]
    of_a, of_b = ((1,) * (len(batch) + 2 - t.rank) + t.dims[:-2] for t in (a, b))
    count = len(batch)
    while count and of_b[count - 1] == 1 and of_a[count - 1] == batch[count - 1]:
        count -= 1
    return count


def stacks(y: Tensor, a: Tensor, b: Tensor) -> tuple[int, int]:
    """Return the number of products with separate right matrices, and the rows of each."""
    separate = batch_axes(y, a, b)
    return prod(y.dims[:separate]), prod(y.dims[separate:-1])


def stack_of(y: Tensor, a: Tensor, b: Tensor) -> tuple[Ints, Ints, Ints] | None:
    """Return how many products there are along one or two axes, and in which steps of matrices.

    None if the stacks of `a` and `b` are broadcast in more ways.

    Returns:
        The sizes of the axes, outermost first, and the matrices of `a`, and of `b`, from one index
        to the next: 0 where a stack is broadcast.
    """
    separate = batch_axes(y, a, b)
    dims = y.dims[:separate]
    rows_of_a = ((1,) * (y.rank - a.rank) + a.dims)[separate:-1]
    if prod(rows_of_a) != prod(y.dims[separate:-1]):
        return None
    of_a, of_b = (
        broadcast_strides(own, Format.CONTIGUOUS, dims)
        for own in (((1,) * (y.rank - t.rank) + t.dims)[:separate] for t in (a, b))
    )
    sizes, walks = merge(dims, (of_a, of_b)) if dims else ((1,), ((0,), (0,)))
    steps_a, steps_b = walks
    return None if len(sizes) > 2 else (sizes, steps_a, steps_b)


def multiplication(context: RecipeContext) -> Multiplication | str:
    """Return the task of a MatMul or Gemm."""
    op, y, (a, b, c) = context.op, context.y, (*context.inputs, None)[:3]
    if not isinstance(op, MatMul | Gemm) or y is None or a is None or b is None:
        return "not a product of two matrices"
    return Multiplication(op, y, a, b, c, context.epilogue or no_epilogue(a.dtype), context.setting)
