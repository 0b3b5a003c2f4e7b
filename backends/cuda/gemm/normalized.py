"""Two products with a normalization of rows in between, as two kernels: `swap_ab.cu`.

The first one stores its results and their moments, and the second one normalizes rows as it
multiplies them, where both have 17 to 512 rows of 16-bit floats. Those of float32 are in
`normalized_halves`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from math import prod
from typing import TypeVar

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.matmul import Gemm, MatMul
from ....runtime.ops.norm import LayerNormalization, RMSNormalization
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext, Setting
from ..algorithms.selection import SELECTORS
from ..codegen.epilogue import Epilogue, Tail
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div
from ..recipe.pattern import OperandOf, Pattern, Rest, Whole
from ..recipe.setting import DECIDED, PLAIN, Stored
from ..recipe.targets import Target
from . import f16, in_halves
from .atoms import HALVES
from .findings import is_finite
from .fused_products import InTurn, Products, in_turn, norm_of_rows
from .linear import linear_of
from .multiplication import Multiplication, multiplication
from .pack_scaled import ScaledColumns, ScaledRows
from .problem import GemmArguments, Linear
from .rotated import RotatedProduct, rotated_product_at, turned_of
from .schedules.swap_ab import MOMENTS, RowsNorm, SwapAb, few_rows_of
from .turned import Turned

L = TypeVar("L")
#: Elements of a part of a row, whose moments are stored.
OF_PART = 64
#: Microseconds that the normalization takes as a kernel of its own.
SAVED = 1.0
#: Bytes between what begins in the workspace.
ALIGNED = 1024


@record
class NormalizedProduct(Whole):
    """A product of rows that another one has computed, normalized in between.

    Attributes:
        found: the products.
        rotated: the product behind with the rotation of its first columns; None if there is none.
        turns: whether the rotation is part of it; else it is tried without the normalization.
    """

    found: InTurn
    rotated: RotatedProduct | None = None
    turns: bool = False

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        turned = self.rotated.nodes if self.rotated and self.turns else frozenset[Node]()
        return self.found.nodes | turned

    @property
    def in_halves(self) -> tuple[Node, ...]:
        """The products of float32, of which rows arrive and results leave in halves."""
        products = (*self.found.front.products, *self.found.behind.products)
        return products if self._is_wide else ()

    @property
    def _is_wide(self) -> bool:
        return self.found.norm.output.tensor.dtype == float32

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return halves for the rows in front, if a kernel can store these so; see `Pattern`."""
        rows = self.found.front.products[0].operands[0]
        return {rows: Format.HALVES} if self._is_wide and setting.cuts(rows) else {}

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        if self._is_wide:
            from .normalized_halves import normalized_halves  # with the kernels of float32

            return normalized_halves(self.found, y, operand, setting, stored)
        turning = self.rotated if self.turns else None
        return normalized_product(self.found, y, operand, setting, turning)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return the rotated product apart from the others; see `Pattern`."""
        if self.rotated is None:
            return (Rest(self.nodes, self.regrouped),)
        return Rest(self.found.front.nodes), Rest(frozenset({self.found.norm})), self.rotated


def normalized_product_at(
    graph: Graph, product: Node, free: Set[Node], tail: Tail
) -> NormalizedProduct | None:
    """Return a product, the normalization that no other product reads, and the product before.

    Args:
        graph: the graph.
        product: the product behind.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    if product not in free or not _is_of_some_rows(product):
        return None
    norm = norm_of_rows(graph, (product,), alone=False)
    if norm is None:
        return None
    behind = Products((product,), tail(graph, product, free), norm)
    found = in_turn(graph, behind, free, tail, _is_of_some_rows)
    rotated = rotated_product_at(graph, product, free, tail)
    turns = rotated is not None and rotated.size <= OF_PART
    return found and NormalizedProduct(found, rotated, turns=turns)


def _is_of_some_rows(product: Node) -> bool:
    """Whether a node is a product of rows, neither few nor many, by constants."""
    if not isinstance(product.op, MatMul | Gemm):
        return False
    x, w, *others = product.operands
    if x.is_constant or x.tensor.dtype not in HALVES | {float32}:
        return False
    few = few_rows_of(w.tensor.nbytes) + 1 if x.tensor.dtype in HALVES else in_halves.MIN_ROWS
    constant = all(v.is_constant for v in (w, *others))
    return constant and few <= prod(x.tensor.dims[:-1]) <= f16.MORE_ROWS


@record
class _Layer:
    """One of the products.

    Attributes:
        gemm: its arguments as a product of its own.
        form: how its right matrix is packed; see `Linear.form`.
        b: the right matrix.
        epilogue: what is applied to its results.
        microseconds: the estimate of the fastest kernel for it alone.
        turned: what rotates its first columns; None if nothing does.
    """

    gemm: GemmArguments
    form: tuple[float, bool]
    b: Tensor
    epilogue: Epilogue
    microseconds: float
    turned: Turned | None = None


def normalized_product(
    found: InTurn,
    y: Tensor,
    operand: OperandOf,
    setting: Setting,
    rotated: RotatedProduct | None = None,
) -> Answer:
    """Return the launches of both products, or why the normalization is a kernel of its own.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        rotated: the product behind with the rotation of its first columns, if that is part of it.
    """
    rows = Tensor(rotated.found.result) if rotated else y
    layers = both_layers(found, rows, operand, setting, _layer)
    if isinstance(layers, str):
        return layers
    first, second = layers
    if rotated is not None:
        turned = _turned(rotated, second, operand)
        if isinstance(turned, str):
            return turned
        second = turned
    norm = _norm_of(found, second, operand)
    if isinstance(norm, str):
        return norm
    return _launches(first, second, norm, setting.target, stores_rows=found.stores_rows)


def _turned(rotated: RotatedProduct, layer: _Layer, operand: OperandOf) -> _Layer | str:
    """Return a product whose first columns are rotated, or why no kernel rotates them."""
    y, turned = operand(rotated.rotation.output), turned_of(rotated, operand)
    if isinstance(turned, str):
        return turned
    return replace(layer, gemm=replace(layer.gemm, c=y), turned=turned)


def both_layers(
    found: InTurn,
    y: Tensor,
    operand: OperandOf,
    setting: Setting,
    layer: Callable[[Products, Tensor, OperandOf, Setting], L | str],
) -> tuple[L, L] | str:
    """Return both products, the one behind of rows as they are, or why there are none.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        layer: returns a product with what its epilogue stores, or why it is none.
    """
    x = operand(found.norm.operands[0])
    if setting.for_node(found.norm).asked:
        return "an algorithm that was asked for"
    if x.row != x.dims[-1]:
        return "rows that are apart"
    first = layer(found.front, x, operand, setting)
    second = layer(found.behind, y, operand, setting)
    if isinstance(first, str) or isinstance(second, str):
        return first if isinstance(first, str) else str(second)
    return first, second


def task_of(
    found: Products, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored = PLAIN
) -> tuple[Multiplication, Linear] | str:
    """Return a product with its epilogue, and its matrices, unless another algorithm is wanted."""
    (product,) = found.products
    own, read = setting.for_node(product), found.reading(operand)
    if own.is_decided:
        return DECIDED
    epilogue = found.epilogue_to(y, operand)
    if isinstance(epilogue, str):
        return epilogue
    halves = Tensor(y.value, y.format.halves) if stored.halves else None
    epilogue = epilogue.storing(halves, plain=stored.plain)
    inputs = tuple(value and read(value) for value in product.inputs)
    task = multiplication(RecipeContext(product.op, y, inputs, own, epilogue=epilogue))
    if isinstance(task, str):
        return task
    layer = linear_of(task)
    if isinstance(layer, str):
        return layer
    if epilogue.stored != layer.a.dtype:
        return f"results of {epilogue.stored.name}"
    if any(size % OF_PART for size in layer.shape[1:]):
        return f"columns or terms that are no multiples of {OF_PART}"
    return task, layer


def _layer(found: Products, y: Tensor, operand: OperandOf, setting: Setting) -> _Layer | str:
    """Return a product and its epilogue, if tensor cores would compute it."""
    matrices, (product,) = task_of(found, y, operand, setting), found.products
    selector = SELECTORS.get(type(product.op))
    if isinstance(matrices, str) or selector is None:
        return matrices if isinstance(matrices, str) else f"{product.kind} has one algorithm"
    task, layer = matrices
    taken = selector.pick(task).algorithm
    if taken != "tensor_cores":
        return f"algorithm '{taken}'"
    gemm, end = f16.gemm_of(layer), task.epilogue
    microseconds = f16.time_of_some_rows(gemm, end, task.setting)
    return _Layer(gemm, layer.form, layer.b, end, microseconds)


def _norm_of(found: InTurn, behind: _Layer, operand: OperandOf) -> RowsNorm | str:
    """Return the normalization as the kernel of the product behind it takes it."""
    constants = (behind.b, *(operand(value) for value in found.norm.operands[1:]))
    if not all(each.data is not None and is_finite(each.data) for each in constants):
        return "infinities or NaNs among the weights"
    values, form = tuple(each.value for each in constants), behind.form
    weights = Packed(values[:2], ("scaled columns in eights", *form), ScaledRows(*form))
    columns = Packed(values, ("columns of a norm", *form), ScaledColumns(*form))
    return norm_of(found, operand, weights, columns)


def norm_of(found: InTurn, operand: OperandOf, weights: Packed, columns: Packed) -> RowsNorm:
    """Return the normalization, with the weights of the product behind it; see `RowsNorm`."""
    norm = found.norm
    assert isinstance(norm.op, LayerNormalization | RMSNormalization)
    scale, *shift = (operand(value) for value in norm.operands[1:])
    return RowsNorm(
        weights=weights,
        columns=columns,
        scale=scale,
        shift=shift[0] if shift else None,
        kept=operand(norm.output) if found.keeps_rows else None,
        epsilon=norm.op.epsilon,
        centred=isinstance(norm.op, LayerNormalization),
        kind=norm.kind,
    )


def _launches(
    first: _Layer, second: _Layer, norm: RowsNorm, target: Target, *, stores_rows: bool
) -> Answer:
    """Return the launches, if they are estimated to be faster than three kernels.

    The workspace has the moments, and the rows if nothing else reads these.
    """
    m, n, _ = first.gemm.shape
    scratch = m * n // OF_PART * MOMENTS
    one, other = first.gemm, replace(second.gemm, b=norm.weights)
    if not stores_rows:
        rows = Scratch(ceil_div(scratch, ALIGNED) * ALIGNED)
        scratch = rows.offset + m * n * first.gemm.dtype.itemsize
        one, other = replace(one, c=rows), replace(other, a=replace(other.a, data=rows))
    before = SwapAb(one, moments=Scratch(0))
    behind = SwapAb(other, norm=norm, moments=Scratch(0), turned=second.turned)
    ways = before.choose(target), behind.choose(target)
    if ways[0] is None or ways[1] is None:
        return "no blocks have all terms of their rows"
    together = ways[0].microseconds + ways[1].microseconds
    apart = first.microseconds + second.microseconds + SAVED
    if together > apart:
        return f"estimated to take {together:.1f} us, and {apart:.1f} apart"
    launch = before.launch(first.epilogue, ways[0].config, target)
    behind_it = behind.launch(second.epilogue, ways[1].config, target)
    return replace(launch, scratch=scratch), behind_it
