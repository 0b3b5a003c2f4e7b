"""Matrix products, batched products and Gemm, with their elementwise epilogues."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from math import prod
from typing import Any

from ...runtime.base.record import record
from ...runtime.ir.dtypes import float32, name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import TensorType
from ...runtime.ops.elementwise import Add, Gelu, Mul, Relu, Sum
from ...runtime.ops.matmul import Gemm, MatMul
from ...runtime.options import Options, Precision
from ...runtime.plan.backend import BuildContext, Formats
from ..cuda.recipe.operands import Ints
from .choice import Division, EngineTask
from .operation import HALVES, NEVER, NO_PITCHES, Operand
from .registry import NodeGroup, Source, claims, is_wanted_anyway
from .stages import FLOW, NO_TAIL, Followed, PointwiseStage, Tail, expressed, expressible, follow

#: The role of a Gemm's addend.
_ADDED = "bias"

#: TF32 engines carry no note that distinguishes them from others.
_ROUNDED = (
    "cuDNN 9 always rounds float32 products to TF32 (error 3e-4 on sm_90);"
    " precision='tf32' allows it"
)
#: Number of weights below which one row times a matrix goes to the cuda kernels.
SMALL = 1 << 22
_SLOWER = (
    "one row by a small matrix takes cuDNN 2.1 to 3.3 times as long as the cuda kernels (768x1000:"
    " 4.4 and 1.8 us, 2048x1000: 7.6 and 2.3 us on an H200)"
)


@record
class MatMulProblem:
    """A batch of matrix products, accumulated in float32, with an epilogue.

    Attributes:
        a: [stack, m, k]; a stack of one matrix is broadcast.
        b: [stack, k, n], likewise.
        y: [stack, m, n].
        tail: the epilogue applied by the same graph.
        transposed: whether it is expressed as ``y' = b' @ a'`` with column-major matrices: only
            then does cublasLt, which is column-major, support a bias and an activation.
    """

    a: Operand
    b: Operand
    y: Operand
    tail: Tail = NO_TAIL
    transposed: bool = False

    @property
    def title(self) -> str:
        """A short name: ``matmul+bias+relu``."""
        name = "transposed matmul" if self.transposed else "matmul"
        return f"{name}+{self.tail.title}" if self.tail else name

    def __str__(self) -> str:
        text = f"{self.title} a {self.a} b {self.b} y {self.y}"
        return f"{text}: {self.tail}" if self.tail else text

    @property
    def operands(self) -> Mapping[str, Operand]:
        """The tensors read and written."""
        found = {"a": self.a, "b": self.b, **dict(self.tail.operands), "y": self.y}
        return {role: _transposed(x) for role, x in found.items()} if self.transposed else found

    @property
    def results(self) -> tuple[str, ...]:
        """The roles of the tensors written."""
        return ("y",)

    @property
    def notes(self) -> tuple[str, ...]:
        """16-bit floats are summed in float32; float32 is always rounded to TF32 here.

        cublasLt computes any Gelu by its tanh approximation, which is off by up to 5e-4.
        """
        barred = () if self.y.dtype == float32 else ("REDUCED_PRECISION_REDUCTION",)
        gelu = any(stage.op == Gelu() for stage in self.tail.stages)
        return (*NEVER, *barred, "CUBLASLT_DEPENDENCY") if gelu else (*NEVER, *barred)

    def express(self, graph: Any, cudnn: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the operation to a cuDNN graph; see `Operation`."""
        left, right = ("b", "a") if self.transposed else ("a", "b")
        y = graph.matmul(A=tensors[left], B=tensors[right])
        return {"y": expressed(self.tail.stages, graph, cudnn, y, tensors)}


def _transposed(x: Operand) -> Operand:
    """Return a batch of matrices in column-major order."""
    stack, rows, columns = x.dims
    of_stack, of_rows, of_columns = x.strides
    return Operand((stack, columns, rows), (of_stack, of_columns, of_rows), x.dtype)


# ── a node in cuDNN's terms ──────────────────────────────────────────────────────────────────────


def describe(
    node: Node, precision: Precision = "float32", pitches: Mapping[Value, int] = NO_PITCHES
) -> MatMulProblem | str:
    """Return the cuDNN product for a MatMul or Gemm, without factors and `c`, or why there is none.

    Args:
        node: the node.
        precision: see `Options.precision`.
        pitches: of its tensors with gaps.
    """
    a, b, y = _operand(node, 0), _operand(node, 1), node.output
    dtype = a.tensor.dtype
    if dtype == float32 and precision != "tf32":
        return _ROUNDED
    if dtype != float32 and dtype not in HALVES:
        return f"dtype {name_of(dtype)}; float16, bfloat16 and, as TF32, float32 are claimed"
    if min(len(a.tensor.dims), len(b.tensor.dims)) < 2:
        return "a product with a vector; cuDNN multiplies matrices"
    if 0 in (*a.tensor.dims, *b.tensor.dims):
        return "a tensor without elements"
    stacks = _stacks(a.tensor, b.tensor, y.tensor)
    if isinstance(stacks, str):
        return stacks
    (of_a, of_b), rows = stacks
    left, right = _is_transposed(node)
    n, k = y.tensor.dims[-1], a.tensor.dims[-2 if left else -1]
    return MatMulProblem(
        a=_matrices(a, (of_a, rows, k), left, pitches),
        b=_matrices(b, (of_b, k, n), right, pitches),
        y=_matrices(y, (max(of_a, of_b), rows, n), False, pitches),
    )


def _operand(node: Node, place: int) -> Value:
    value = node.inputs[place]
    if value is None:
        raise ValueError(f"'{node.name}' lacks an operand")
    return value


def _is_transposed(node: Node) -> tuple[bool, bool]:
    """Whether the left and the right operand are transposed."""
    gemm = node.op if isinstance(node.op, Gemm) else Gemm()
    return bool(gemm.transA), bool(gemm.transB)


def _stacks(a: TensorType, b: TensorType, y: TensorType) -> tuple[tuple[int, int], int] | str:
    """Return the batch size of each operand, and the number of rows of a result.

    A batch times a single matrix is one product with all rows.
    """
    of_a, of_b, of_y = (prod(x.dims[:-2]) for x in (a, b, y))
    if of_b == 1:
        return (1, 1), of_y * y.dims[-2]
    if of_a not in (1, of_y) or of_b != of_y:
        return f"stacks {a} and {b} are both broadcast; cuDNN broadcasts one matrix at most"
    return (of_a, of_b), y.dims[-2]


def _matrices(value: Value, dims: Ints, transposed: bool, pitches: Mapping[Value, int]) -> Operand:
    """Return a value as a batch of row-major or `transposed` matrices."""
    _, rows, columns = dims
    width, height = (rows, columns) if transposed else (columns, rows)
    width = pitches.get(value, width)
    of_matrix = (1, width) if transposed else (width, 1)
    return Operand(dims, (height * width, *of_matrix), value.tensor.dtype)


# ── divisions ────────────────────────────────────────────────────────────────────────────────────


#: Minimum K for which cublasLt with a separate kernel is faster than one fused kernel: on an H200,
#: 4096x3072x768 with a bias and a residual takes 33 us in two kernels and 35 us in one,
#: 4096x768x768 takes 13 and 12 us.
LONG = 2048


def divide(product: MatMulProblem, tail: Tail) -> tuple[Division, ...]:
    """Return the possible divisions of a product and its epilogue, best guess first.

    Fused kernels compute a Gelu slowly: 4096x768x3072 takes 62 us on an H200, and 43 us with a
    separate kernel.
    """
    alone = Division(product, tail)
    length = next((i for i, s in enumerate(tail.stages) if not expressible(s)), len(tail.stages))
    first, last = tail.cut(length)
    if not first:
        return (alone,)
    fused = Division(replace(product, tail=first), last)
    if not last and _is_classic(first, product.y.dims[-1]):
        return Division(replace(product, tail=first, transposed=True)), fused, alone
    gelu = any(isinstance(stage.op, Gelu) for stage in first.stages)
    return (alone, fused) if gelu or product.a.dims[-1] > LONG else (fused, alone)


def _is_classic(tail: Tail, columns: int) -> bool:
    """Whether a tail is a bias and possibly ReLU, which cublasLt supports."""
    bias, *others = tail.stages
    operands = dict(tail.operands)
    per_column = [role for role in bias.roles if operands[role].dims == (1, 1, columns)]
    adds = isinstance(bias.op, Add | Sum) and len(bias.inputs) == 2 and len(per_column) == 1
    return adds and [stage.op for stage in others] in ([], [Relu()])


# ── the family ───────────────────────────────────────────────────────────────────────────────────


def _is_small(product: MatMulProblem) -> bool:
    """Whether a product is a single row times a matrix that fits into caches."""
    stack, rows, columns = product.y.dims
    return stack * rows == 1 and product.a.dims[-1] * columns < SMALL


@claims(MatMul, Gemm)
def product(graph: Graph, node: Node, free: Set[Node], options: Options) -> NodeGroup | str:
    """Return a matrix product with its elementwise epilogue."""
    found = describe(node, options.precision)
    if isinstance(found, str):
        return found
    if isinstance(node.op, Gemm) and node.op.beta == 0 and len(node.operands) > 2:
        return "beta=0 with an input c"
    if _is_small(found) and not is_wanted_anyway(node, options):
        return _SLOWER
    pattern = MatMulPattern(node, follow(graph, node.output, free, axis=-1), options)
    return NodeGroup(
        nodes=pattern.nodes,
        task=pattern.task(found),
        reads=pattern.reads,
        gives={"y": pattern.y},
        formats=pattern.formats,
        at=pattern.at,
    )


class MatMulPattern(Followed):
    """A matrix product and the nodes fused into its step."""

    @property
    def reads(self) -> dict[str, Source]:
        """The tensors read, by role."""
        reads: dict[str, Source] = {"a": _operand(self.node, 0), "b": _operand(self.node, 1)}
        if self.added is not None:
            reads[_ADDED] = self.added
        return reads | {**self.followers.across, **self.followers.along}

    @property
    def formats(self) -> Formats:
        """All formats are contiguous; operands with row pitches may be slices."""
        pitched = {*self.node.operands[:2], self.y, *self.followers.along.values()}
        return Formats(pitched=frozenset(value for value in pitched if not value.is_constant))

    def at(self, site: BuildContext) -> EngineTask | str:
        """Return the task for tensors with the given layouts."""
        pitches = self.pitches(site)
        found = describe(self.node, self.options.precision, pitches)
        return found if isinstance(found, str) else self.task(found, pitches)

    def task(self, found: MatMulProblem, pitches: Mapping[Value, int] = NO_PITCHES) -> EngineTask:
        """Return the engine task for tensors with these pitches."""
        dtype, (_, _, columns) = found.y.dtype, found.y.dims
        operands = dict.fromkeys(self.followers.across, Operand.of((1, 1, columns), dtype))
        for role, value in self.followers.along.items():
            operands[role] = _matrices(value, found.y.dims, False, pitches)
        if self.added is not None:
            dims = (1, 1, 1, *self.added.tensor.dims)[-3:]
            operands[_ADDED] = Operand.of(dims, dtype)
        stages = (*self._factors, *map(_flow_first, self.followers.stages))
        return EngineTask(divide(found, Tail.of(stages, operands)), self.options.workspace)

    @property
    def _factors(self) -> tuple[PointwiseStage, ...]:
        """The stages of a Gemm after its product: ``beta * (alpha / beta * y + c)``."""
        op = self.node.op
        if not isinstance(op, Gemm):
            return ()
        if self.added is None:
            return _times(op.alpha)
        return (
            *_times(op.alpha / op.beta),
            PointwiseStage(Add(), (FLOW, _ADDED)),
            *_times(op.beta),
        )


def _times(factor: float) -> tuple[PointwiseStage, ...]:
    return () if factor == 1 else (PointwiseStage(Mul(), (FLOW, factor)),)


def _flow_first(stage: PointwiseStage) -> PointwiseStage:
    """Return a stage with cuDNN's result as first operand, if its operands commute."""
    if isinstance(stage.op, Add | Mul) and stage.inputs[1] == FLOW != stage.inputs[0]:
        return replace(stage, inputs=(FLOW, stage.inputs[0]))
    return stage
