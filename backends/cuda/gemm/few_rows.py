"""Products of few rows, fused with a second product, an epilogue and a normalization.

A decoder step reads the weights of its gate and of the gated projection once each; one kernel for
both, whose epilogue combines the results, has twice as many bytes in flight. Meanwhile, every block
has time to normalize a single row itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.matmul import Gemm, MatMul
from ....runtime.ops.norm import LayerNormalization, RMSNormalization, are_of_rows
from ....runtime.ops.packed import MatMulNBits
from ....runtime.ops.shapes import normalize_axis
from ..algorithms.registry import Answer, RecipeContext, Setting, need_dtypes
from ..algorithms.selection import SELECTORS
from ..codegen.epilogue import Epilogue, Meeting, Tail, epilogue_of, no_epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Tensor
from ..recipe.pattern import Operand, Pattern, Rest, Whole
from ..recipe.setting import Stored
from .between import Measured
from .gemv import MAX_ROWS, RowNorm, multiply_rows
from .linear import TILED, linear_of
from .multiplication import multiplication
from .packed import PackedLinear, multiply_packed_rows, packed_linear
from .problem import Linear

#: Operators with kernels for few rows that multiply by two matrices at once.
PRODUCTS = MatMul | Gemm | MatMulNBits
#: Maximum bytes of a row that a block normalizes. With one row, a decoder step takes 6 to 8 %
#: less time on an H200 than with kernels that normalize; with two rows it takes 5 % more, with
#: eight 50 %. Weights of a few bits are multiplied by several rows that are not normalized yet; see
#: `scaled_rows.cuh`.
MAX_NORMALIZED = 1 << 15


@record
class FewRows(Whole):
    """Products with a common input, fused with the nodes around them.

    Attributes:
        products: one, or two of the same kind; see `are_alike`.
        epilogue: elementwise nodes in topological order; only the last result is read elsewhere.
        norm: the normalization of the input; None if there is none.
    """

    products: tuple[Node, ...]
    epilogue: tuple[Node, ...]
    norm: Node | None = None

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((*self.products, *self.epilogue, *([self.norm] if self.norm else ())))

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return few_rows(self, y, operand, setting)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return two products without the normalization, or each separately; see `Pattern`."""
        if self.norm is None or len(self.products) == 1:
            return (Rest(self.nodes),)
        return Rest(frozenset({self.norm})), replace(self, norm=None)


def has_few_rows(node: Node) -> bool:
    """Whether a node is a product with constant weights that kernels for few rows may compute."""
    x, *weights = node.inputs
    if not isinstance(node.op, PRODUCTS) or x is None or x.is_constant:
        return False
    few = 0 < prod(x.tensor.dims[:-1]) <= MAX_ROWS
    return few and all(w is None or w.is_constant for w in weights)


def are_alike(one: Node, other: Node) -> bool:
    """Whether two products have the same input, and weights and results of one kind."""
    if type(one.op) is not type(other.op) or one.inputs[0] is not other.inputs[0]:
        return False
    return one.output.tensor == other.output.tensor and _packing(one) == _packing(other)


def _packing(product: Node) -> tuple[int, ...]:
    """Return what identifies the packing of a MatMulNBits."""
    op, (zeros, indices) = product.op, (*product.inputs, None, None, None)[3:5]
    if not isinstance(op, MatMulNBits):
        return ()
    return op.bits, op.block_size, zeros is not None, indices is not None


def norm_before(graph: Graph, products: Sequence[Node]) -> Node | None:
    """Return the normalization whose only readers are products of few rows, if it can be fused."""
    norm = norm_of_rows(graph, products)
    if norm is None:
        return None
    y = norm.output.tensor
    few = y.size == y.dims[-1] or isinstance(products[0].op, MatMulNBits)
    return norm if few and y.dims[-1] <= MAX_NORMALIZED // y.dtype.itemsize else None


def norm_of_rows(graph: Graph, products: Sequence[Node], *, alone: bool = True) -> Node | None:
    """Return the normalization of rows, by constants, whose readers are these products.

    Args:
        graph: the graph.
        products: the products.
        alone: whether nothing else may read it; else no other product may.
    """
    y = products[0].inputs[0]
    norm = None if y is None else y.producer
    if y is None or norm is None or not isinstance(norm.op, LayerNormalization | RMSNormalization):
        return None
    x, *parameters = norm.operands
    rank = len(y.tensor.dims)
    others = y.consumers.keys() - set(products)
    fits = not any(isinstance(node.op, PRODUCTS) for node in others)
    fits = fits and not (alone and (others or graph.is_output(y)))
    unread = not any(map(graph.is_read, norm.outputs[1:]))
    rows = normalize_axis(norm.op.axis, rank) == rank - 1 and x.tensor == y.tensor
    whole = all(
        v.is_constant
        and are_of_rows(y.tensor.dims, -1, v.tensor.dims)
        and v.tensor.dtype == x.tensor.dtype
        for v in parameters
    )
    return norm if fits and unread and rows and whole else None


def few_rows_at(
    graph: Graph, product: Node, free: Set[Node], tail: Tail, meeting: Meeting
) -> FewRows | None:
    """Return a product of few rows, with the nodes fused into its kernel.

    These are another product of the same input, combined with it elementwise, the normalization of
    the input, or both.

    Args:
        graph: the graph.
        product: the product.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
        meeting: returns what combines two products.
    """
    x = product.inputs[0]
    if product not in free or x is None or not has_few_rows(product):
        return None
    products: tuple[Node, ...] = (product,)
    epilogue: tuple[Node, ...] = ()
    for other in x.consumers:
        fits = other is not product and other in free and has_few_rows(other)
        if fits and not epilogue and are_alike(product, other):
            epilogue = meeting(graph, (product, other), free)
            products = (product, other) if epilogue else products
    norm = norm_before(graph, products)
    norm = norm if norm in free else None
    if len(products) == 1 and norm is None:
        return None
    return FewRows(products, epilogue or tail(graph, product, free), norm)


def few_rows(
    found: FewRows,
    y: Tensor,
    operand: Callable[[Value], Tensor],
    setting: Setting,
    *,
    measured: Measured | None = None,
    left: Measured | None = None,
) -> Launch | str:
    """Return the launch of fused products, or why they are computed separately.

    Args:
        found: the products and the fused nodes.
        y: the last result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        measured: what the product in front has left of the rows to normalize; None if nothing.
        left: what is stored for a product behind; None if nothing.
    """
    epilogue = epilogue_of(found.epilogue, y, *(node.output for node in found.products))
    if isinstance(epilogue, str):
        return epilogue
    if found.norm is not None and setting.for_node(found.norm).asked:
        return f"algorithm '{setting.for_node(found.norm).asked[0]}'"
    norm = None if found.norm is None else _row_norm(found.norm, operand, measured)
    source = found.products[0].inputs[0] if found.norm is None else found.norm.inputs[0]
    contexts = [
        RecipeContext(
            node.op,
            y,
            tuple(v and operand(v) for v in (source, *node.inputs[1:])),
            setting.for_node(node),
            epilogue=epilogue,
        )
        for node in found.products
    ]
    if any(isinstance(node.op, MatMulNBits) for node in found.products):
        return _packed(contexts, epilogue, setting, norm, left)
    layers: list[Linear] = []
    for node, context in zip(found.products, contexts, strict=True):
        layer = _linear(context, Tensor(node.output))
        if isinstance(layer, str):
            return layer
        layers.append(layer)
    return multiply_rows(layers, epilogue, setting.target, norm, left)


def _row_norm(norm: Node, operand: Callable[[Value], Tensor], measured: Measured | None) -> RowNorm:
    """Return a normalization of rows as kernels take it."""
    _, scale, *shift = (operand(value) for value in norm.operands)
    assert isinstance(norm.op, LayerNormalization | RMSNormalization)
    centred = isinstance(norm.op, LayerNormalization)
    by, epsilon = shift[0] if shift else None, norm.op.epsilon
    return RowNorm(scale, by, epsilon, centred, norm.kind, measured)


def _linear(context: RecipeContext, own: Tensor) -> Linear | str:
    """Return one of the products, if it would be computed by a few-rows kernel on its own."""
    task, selector = multiplication(context), SELECTORS.get(type(context.op))
    if isinstance(task, str) or selector is None:
        return task if isinstance(task, str) else f"{type(context.op).__name__} has one algorithm"
    refused = need_dtypes(TILED, own, task.a, task.b, task.c)
    alone = replace(task, y=own, epilogue=no_epilogue(own.dtype))
    taken = selector.pick(alone).algorithm
    if refused or taken != "gemv":
        return refused or f"algorithm '{taken}'"
    return linear_of(task)


def _packed(
    contexts: Sequence[RecipeContext],
    epilogue: Epilogue,
    setting: Setting,
    norm: RowNorm | None,
    left: Measured | None,
) -> Launch | str:
    layers: list[PackedLinear] = []
    for context in contexts:
        assert isinstance(context.op, MatMulNBits)
        assert context.y is not None
        layer = packed_linear(context.op, context.y, context.inputs, context.setting)
        if isinstance(layer, str):
            return layer
        layers.append(layer)
    return multiply_packed_rows(layers, epilogue, setting.target, norm, left)
