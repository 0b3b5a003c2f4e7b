"""Products of stacks of matrices that are read where they are, with the nodes that move them.

Heads next to one another in rows, transposed matrices, and 16-bit floats that are widened where
nothing bounds a product: such nodes only bring matrices into an order that kernels do not need.
`multistage.cu` multiplies stacks of 16-bit matrices with two strides and rows of words, and
`strided.cu` all others; sums are in float32 in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from itertools import takewhile
from math import inf, prod

from ....runtime.base.record import record
from ....runtime.ir.chains import chain_behind
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.elementwise import Cast
from ....runtime.ops.matmul import MatMul
from ....runtime.ops.movement import Transpose
from ....runtime.ops.shape import RESHAPES
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext, Setting, kernel_of
from ..algorithms.selection import CONTIGUOUS, SELECTORS, Formats
from ..codegen.elementwise import in_chains
from ..codegen.epilogue import Tail, epilogue_of, rounding_to
from ..codegen.moves import movement
from ..recipe.operands import Ints, Packed, Tensor, ceil_div, merge
from ..recipe.pattern import Grouping, OperandOf, Pattern, Rest, Whole
from ..recipe.setting import Stored
from .atoms import HALVES
from .multiplication import Multiplication, multiplication
from .pack import EIGHTS
from .problem import Batch, GemmArguments, Matrix, Problem, packed_matrix, widest
from .schedules import multistage
from .schedules.strided import StridedMatrix, StridedProducts, choose, is_direct
from .strided_factors import (
    Factor,
    Factors,
    becomes_image,
    common_factors,
    factor_of,
    is_never_negative,
    single_stride,
)
from .tile import LAUNCH, MEMORY

#: Elements of A per copy of `multistage.cu`, and of B unless its columns are adjacent.
VECTORS, EIGHT = (8, 4, 2), 8
#: Maximum number of blocks along the third grid axis.
MAX_STACKED = 65535
#: Rows of an instruction.
ROWS = 16
#: Factor by which a product of float32 must be estimated to be faster where nothing is moved: on
#: CUDA cores its errors are half as large.
MARGIN = 0.85
#: Maximum number of elements for which reading 16 bits saves less than a launch.
FEW_WIDENED = 1 << 16


@record
class StridedProduct(Whole):
    """A product, and what moves its factors and its result.

    Attributes:
        product: a MatMul.
        factors: the left one and the right one.
        epilogue: elementwise nodes behind it.
        behind: nodes that move the result, in order, of which one may round it to 16 bits; the last
            one is a view only if that is an image.
    """

    product: Node
    factors: tuple[Factor, Factor]
    epilogue: tuple[Node, ...]
    behind: tuple[Node, ...]

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        read = (node for factor in self.factors for node in factor.nodes)
        return frozenset((self.product, *read, *self.epilogue, *self.behind))

    @property
    def result(self) -> Value:
        """The result as it is before it is moved."""
        return (self.product, *self.epilogue)[-1].output

    @property
    def moved(self) -> Tensor:
        """The result as it is stored: an image has channels last."""
        last = self.behind[-1] if self.behind else None
        is_image = last is not None and isinstance(last.op, RESHAPES)
        format = Format.CHANNELS_LAST if is_image else Format.CONTIGUOUS
        return Tensor(self.result if last is None else last.output, format)

    @property
    def terms(self) -> int:
        """K."""
        return self.product.operands[0].tensor.dims[-1]

    @property
    def copied(self) -> int:
        """The bytes that the nodes around the product would read and write."""
        return sum(
            value.tensor.size * value.tensor.dtype.itemsize
            for node in self.copied_by
            for value in (node.operands[0], node.output)
        )

    @property
    def copies(self) -> int:
        """The number of these nodes."""
        return len(self.copied_by)

    @property
    def in_order(self) -> StridedProduct | None:
        """The same with its result as it is; None if then nothing is moved, or nothing was."""
        alone = replace(self, behind=())
        return alone if self.behind and alone.copies else None

    @property
    def copied_by(self) -> list[Node]:
        """The nodes that it does without, apart from views, other than that of an image."""
        around = self.nodes.difference((self.product, *self.epilogue))
        image = self.behind[-1:]
        return [node for node in around if node in image or not isinstance(node.op, RESHAPES)]

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats of its factors and its result; see `Pattern`."""
        moved = self.moved
        read = {each.x: each.format for each in self.factors if not each.x.is_constant}
        return read | {moved.value: moved.format}

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return strided_product(self, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return it with its result as it is, and what moves that; see `Pattern`."""
        if (alone := self.in_order) is None:
            return (Rest(self.nodes, Grouping.MOVED),)
        return alone, Rest(frozenset(self.behind), Grouping.MOVED)


# ── in the graph ─────────────────────────────────────────────────────────────────────────────────


def strided_product_at(
    graph: Graph, product: Node, free: Set[Node], tail: Tail
) -> StridedProduct | None:
    """Return the product of stacks that a node is, if any of them is only moved."""
    if product not in free or not isinstance(product.op, MatMul):
        return None
    values = product.operands
    floats = HALVES | {float32}
    if any(len(v.tensor.dims) < 2 or v.tensor.dtype not in floats for v in values):
        return None
    if values[0].is_constant or (values[1].is_constant and prod(values[1].tensor.dims[:-2]) == 1):
        return None
    left, right = (factor_of(graph, product, value, free) for value in values)
    epilogue = tail(graph, product, free)
    last, behind = (product, *epilogue)[-1], tuple[Node, ...]()
    if not values[1].is_constant:  # others move what a layer computes while they read it
        behind = moved_behind(graph, last, free, narrows=not epilogue, images=True)
    found = StridedProduct(product, (left, right), epilogue, behind)
    is_vector = 1 in product.output.tensor.dims[-2:]
    if is_vector and len(found.copied_by) == 1 and _is_stored_wide(graph, found.copied_by[0]):
        return None
    return found if found.copies else None


def _is_stored_wide(graph: Graph, node: Node) -> bool:
    """Whether a node is a Cast of few elements that is left to the kernel of what it reads."""
    maker = node.operands[0].producer
    if maker is None or not isinstance(node.op, Cast) or node.output.tensor.size > FEW_WIDENED:
        return False
    registered = kernel_of(maker.op)
    stores = in_chains(maker) or (registered is not None and registered.chains_for(maker))
    return stores and graph.sole_consumer(node.operands[0]) is node


def moved_behind(
    graph: Graph, last: Node, free: Set[Node], *, narrows: bool, images: bool = False
) -> tuple[Node, ...]:
    """Return the transposes and views behind a node, up to the last Transpose.

    With `narrows`, one of them may be a Cast of float32 to 16 bits; with `images`, the last one may
    be the view of an image of 16-bit floats that only convolutions read, or sums before them.
    """
    found: list[Node] = []
    for node in takewhile(free.__contains__, chain_behind(graph, last.output)):
        if isinstance(node.op, Cast):
            wide = node.operands[0].tensor.dtype == float32
            if not narrows or not wide or node.op.to not in HALVES:
                break
            narrows = False
        elif not isinstance(node.op, (Transpose, *RESHAPES)):
            break
        found.append(node)
    while found and isinstance(found[-1].op, RESHAPES):
        if images and becomes_image(graph, found[-1].output):
            break
        found.pop()
    return tuple(found)


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def strided_product(
    found: StridedProduct, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch of a product with the nodes around it, or why they stay apart.

    Args:
        found: the nodes.
        y: the last result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    setting = setting.for_node(found.product)
    if setting.asked:
        return "an algorithm that was asked for"
    first, last = found.product.output, Tensor(found.result)
    epilogue = epilogue_of(found.epilogue, last, first, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    if y.dtype != epilogue.stored:
        epilogue = rounding_to(y.dtype)
    products = _products(found, y, operand, setting)
    if isinstance(products, str):
        return products
    target = setting.target
    if (gemm := _stack(products)) is not None:
        first, *rest = multistage.multiply_halves(gemm, epilogue, target)
        read = [x.data for x in (products.a, products.b) if x.data.data is None]
        return replace(first, pitched=(*first.pitched, *read)), *rest
    if products.b.data.data is not None or _time(products, setting) >= _time_apart(found, setting):
        return "estimated to take as long as copies and a product"
    return products.launch(epilogue, target)


def _time_apart(found: StridedProduct, setting: Setting) -> float:
    """Return the estimate of the product and what moves its matrices, as separate kernels."""
    own = Tensor(found.product.output)
    inputs = tuple(Tensor(value) for value in found.product.operands)
    task = multiplication(RecipeContext(found.product.op, own, inputs, setting))
    time = inf if isinstance(task, str) else SELECTORS[MatMul].expected(task)[1]()
    time += found.copies * LAUNCH + found.copied / MEMORY
    alone = replace(found, behind=())
    products = _products(alone, Tensor(alone.result), Tensor, setting)
    gemm = None if isinstance(products, str) else _stack(products)
    if gemm is None or not found.behind:
        return time
    behind = (found.copies - alone.copies) * LAUNCH + (found.copied - alone.copied) / MEMORY
    return min(time, multistage.time_of(gemm, setting.target) + behind)


def _stack(products: StridedProducts) -> GemmArguments | None:
    """Return a stack of products as `multistage.cu` computes them, if it can: of 16-bit floats."""
    a, b, c, (m, n, k) = products.a, products.b, products.c, products.shape
    stack, across = products.stack, products.b.line == 1
    dense = tuple(m * n * prod(stack[i + 1 :]) for i in range(len(stack)))
    is_dense = c.line in (0, n) and c.term == 1 and c.batch in (dense, (1,))
    if (
        not is_direct(*products.types)
        or products.is_transposed
        or not is_dense
        or a.first
        or b.first
    ):
        return None
    if a.term != 1 or not (across or b.term == 1) or len(stack) > 2 or prod(stack) > MAX_STACKED:
        return None
    data: Tensor | Packed = b.data
    ldb = b.term if across else b.line
    if b.data.data is not None:  # packed, with terms adjacent
        data, across = packed_matrix(b.data, (1.0, False), "in eights", EIGHTS), False
        ldb = ceil_div(k, EIGHT) * EIGHT
        b = replace(b, batch=tuple(step // (n * k) * n * ldb for step in b.batch), term=1)
    (of_a, *head_a), (of_b, *head_b) = a.batch, b.batch
    gemm = GemmArguments(
        a=Matrix(a.data, a.line, widest(VECTORS, k, a.line, *a.batch)),
        b=data,
        c=c.data,
        shape=products.shape,
        ldb=ldb,
        ldc=n,
        batch=Batch(
            *(prod(stack), of_a, of_b, m * n, prod(stack[1:])),
            *(next(iter(strides), 0) for strides in (head_a, head_b)),
        ),
        across=across,
        dtype=a.data.dtype,
    )
    is_read = isinstance(data, Tensor) and not across
    unaligned = is_read and widest((EIGHT,), k, ldb, *b.batch) == 1
    return None if unaligned or 1 in (gemm.a.vector, gemm.vector_b) else gemm


def _time(products: StridedProducts, setting: Setting) -> float:
    problem = Problem(*products.shape, prod(products.stack))
    return choose(problem, products.types, setting.target).microseconds


def _parts(setting: Setting, *factors: Tensor) -> int:
    """Return how many tf32 numbers represent one of float32.

    With half precision one does if the other factor has 16 bits, which have no more digits, or if
    no element of either factor is negative: no sum cancels digits.
    """
    precision = setting.options.precision
    rounded = precision != "float32" and (
        any(x.dtype in HALVES for x in factors) or all(is_never_negative(x.value) for x in factors)
    )
    return 1 if precision == "tf32" or rounded else 2


def _products(
    found: StridedProduct, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> StridedProducts | str:
    """Return where the matrices of a product are."""
    a, b = (operand(factor.x) for factor in found.factors)
    rank = len(found.result.tensor.dims)
    of_a, of_b = (f.axes(x, rank) for f, x in zip(found.factors, (a, b), strict=True))
    of_c = landing(found)
    if of_c is None:
        return "a result that is moved in parts"
    if of_a is None or of_b is None:
        return "a factor whose places are in a table"
    return _arranged((a, *of_a), (b, *of_b), (y, of_c, 0), found.terms, setting)


def _arranged(
    of_a: tuple[Tensor, list[Factors], int],
    of_b: tuple[Tensor, list[Factors], int],
    of_c: tuple[Tensor, list[Factors], int],
    k: int,
    setting: Setting,
) -> StridedProducts | str:
    """Return the matrices of a product of `k` terms from the factors of each axis."""
    if not setting.target.has_tf32:
        return f"{setting.target.arch} has no tensor cores for float32"
    y = tuple(prod(size for size, _ in axis) for axis in of_c[1])
    m, n = y[-2:]
    if not k or not prod(y):
        return "no elements"
    batch: list[tuple[int, Ints]] = []
    for axis, size in enumerate(y[:-2]):
        shared = common_factors(size, [axes[axis] for _, axes, _ in (of_a, of_b, of_c)])
        if shared is None:
            return "batches whose axes are cut differently"
        batch += shared
    of_tensors = [tuple(strides[i] for _, strides in batch) for i in range(3)]
    sizes, strides = merge([size for size, _ in batch], of_tensors)
    lines = [single_stride(axes[-2]) for _, axes, _ in (of_a, of_b, of_c)]
    terms = [single_stride(axes[-1]) for _, axes, _ in (of_a, of_b, of_c)]
    if None in lines or None in terms:
        return "rows or columns in several parts"
    matrices = [
        StridedMatrix(x, stride, line or 0, term or 0, first)
        for (x, _, first), stride, line, term in zip(
            (of_a, of_b, of_c), strides, lines, terms, strict=True
        )
    ]
    a, b, c = matrices
    b = replace(b, line=b.term, term=b.line)
    if prod(sizes) >= 2**31 or max(x.data.extent for x in (a, b, c)) >= 2**31:
        return f"{prod(sizes)} products"
    products = StridedProducts(a, b, c, (m, n, k), sizes, _parts(setting, a.data, b.data))
    if c.term == 1 or n == 1:
        return products
    return products.transposed if c.line == 1 or m == 1 else "results that are not adjacent"


def landing(found: StridedProduct) -> list[Factors] | None:
    """Return where the elements along each axis of a result go as it is moved."""
    dims, y = found.result.tensor.dims, found.moved
    behind = [node for node in found.behind if not isinstance(node.op, Cast)]
    if not behind:
        return [[(size, prod(dims[axis + 1 :]))] for axis, size in enumerate(dims)]
    moved = movement(behind)
    walk = None if moved is None else moved.walk(Tensor(found.result))
    if moved is None or walk is None or walk.table is not None:
        return None
    sizes = [
        (size, step * prod(axis[i + 1 :]))
        for axis, step in zip(moved.factors, y.strides, strict=True)
        for i, size in enumerate(axis)
    ]
    placed = [
        (source, size, step)
        for (size, step), source in zip(sizes, walk.strides, strict=True)
        if size > 1
    ]
    left = [(size, place) for _, size, place in sorted(placed, reverse=True)]
    axes: list[Factors] = []
    for dim in reversed(dims):
        axis: Factors = []
        while dim > 1:
            count, place = left.pop()
            inner = min(dim, count)
            if count % inner or dim % inner:
                return None
            if count > inner:
                left.append((count // inner, place * inner))
            axis.insert(0, (inner, place))
            dim //= inner
        axes.insert(0, axis)
    return axes


# ── of matrices that are not moved ───────────────────────────────────────────────────────────────


def strided_formats(task: Multiplication) -> Formats | str:
    """Return the formats in which a product is computed, or why it is not."""
    if not isinstance(task.op, MatMul) or min(task.a.rank, task.b.rank) < 2:
        return "not a product of two matrices"
    if task.a.dtype != float32 or task.is_constant:
        return "not matrices of float32, of which the right one is computed"
    if task.shape[0] < ROWS:
        return f"{task.shape[0]} rows, fewer than an instruction has"
    if not task.setting.target.has_tf32:
        return f"{task.setting.target.arch} has no tensor cores for float32"
    return CONTIGUOUS


def strided_time(task: Multiplication) -> float:
    """Return the estimate in microseconds; see `MARGIN`."""
    problem = Problem(*task.shape, task.count)
    return choose(problem, (float32, float32), task.setting.target).microseconds / MARGIN


def multiply_strided(task: Multiplication, variant: str) -> Answer:
    """Return the launch of a product with a computed right matrix."""
    factors, (y, rank) = (Factor(task.a.value), Factor(task.b.value)), (task.y, task.y.rank)
    of_a, of_b = (factor.axes(x, rank) for factor, x in zip(factors, (task.a, task.b), strict=True))
    assert of_a is not None, "it is not moved"
    assert of_b is not None, "it is not moved"
    of_c = [[(n, s)] for n, s in zip(y.dims, y.strides, strict=True)]
    k = task.a.dims[-1]
    products = _arranged((task.a, *of_a), (task.b, *of_b), (y, of_c, 0), k, task.setting)
    if isinstance(products, str):
        return products
    launch = products.launch(task.epilogue, task.setting.target, variant)
    return replace(launch, pitched=(*launch.pitched, *task.epilogue.pitched))
