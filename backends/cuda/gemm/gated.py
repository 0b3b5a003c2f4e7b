"""Two products of one input whose results are combined elementwise, as one product of many rows.

In SwiGLU and its kin neither result is stored: their columns take turns in one right operand, so
that a thread has the sums of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.matmul import Gemm, MatMul
from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import Answer, RecipeContext, Setting
from ..algorithms.selection import SELECTORS
from ..codegen.epilogue import ALONG, Epilogue, Meeting, epilogue_of, no_epilogue
from ..recipe.operands import Packed, Tensor
from ..recipe.pattern import Operand, Whole
from ..recipe.setting import Stored
from . import f16
from .atoms import HALVES
from .few_rows import are_alike
from .gemv import MAX_ROWS
from .interleaved import INTERLEAVE, interleaved, interleaved_biases
from .linear import linear_of
from .multiplication import multiplication
from .pack import rows_of
from .packed import PackedLinear, multiply_packed_pair, packed_linear
from .problem import GemmArguments, Linear, Matrix
from .schedules import tma_persistent
from .schedules.swap_ab import SwapAb

#: Operators with kernels that multiply by two matrices at once.
PRODUCTS = MatMul | Gemm | MatMulNBits


@record
class GatedProducts(Whole):
    """Two products with a common input, and what combines them.

    Attributes:
        products: two alike; see `few_rows.are_alike`.
        epilogue: elementwise nodes in topological order; only the last result is read elsewhere.
    """

    products: tuple[Node, Node]
    epilogue: tuple[Node, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((*self.products, *self.epilogue))

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return gated_products(self, y, operand, setting)


def has_many_rows(node: Node) -> bool:
    """Whether a node is a product of many rows with constant weights in 16-bit floats."""
    x, *weights = node.inputs
    if not isinstance(node.op, PRODUCTS) or x is None or x.tensor.dtype not in HALVES:
        return False
    constant = all(w is None or w.is_constant for w in weights)
    return constant and prod(x.tensor.dims[:-1]) > MAX_ROWS


def gated_products_at(
    graph: Graph, product: Node, free: Set[Node], meeting: Meeting
) -> GatedProducts | None:
    """Return a product of many rows and another one of its input, combined elementwise.

    Args:
        graph: the graph.
        product: the product.
        free: nodes that may be taken.
        meeting: returns what combines two products.
    """
    x = product.inputs[0]
    if product not in free or x is None or not has_many_rows(product):
        return None
    for other in x.consumers:
        if other is product or other not in free or not has_many_rows(other):
            continue
        epilogue = meeting(graph, (product, other), free) if are_alike(product, other) else ()
        if epilogue:
            return GatedProducts((product, other), epilogue)
    return None


def gated_products(
    found: GatedProducts, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch of both products, or why they are computed separately.

    Args:
        found: the products and what combines them.
        y: the last result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    epilogue = epilogue_of(found.epilogue, y, *(node.output for node in found.products))
    if isinstance(epilogue, str):
        return epilogue
    if epilogue.stored.itemsize != 2 or epilogue.reads_along or epilogue.reads_rows:
        return "operands or results that no kernel of two products has"
    if any(setting.for_node(node).asked for node in found.products):
        return "an algorithm that was asked for"
    if isinstance(found.products[0].op, MatMulNBits):
        return _packed_pair(found, y, operand, epilogue, setting)
    gemm = gemm_of_pair(found.products, y, operand, setting)
    if isinstance(gemm, str):
        return gemm
    target = setting.target
    if few := f16.swapped(SwapAb(gemm, products=2), epilogue, setting):
        return few
    best = tma_persistent.choose(gemm, epilogue, target, 2)
    (m, both, k), plain = gemm.shape, no_epilogue(gemm.dtype)
    one = replace(gemm, shape=(m, both // 2, k))
    along = replace(plain, operands=(y,), kinds=(ALONG,), is_cheap=epilogue.is_cheap)
    apart = sum(f16.time_from_workspace(one, each, target) for each in (plain, along))
    if best is None or best.microseconds >= apart:
        return "estimated to take as long as two products"
    return tma_persistent.multiply(gemm, epilogue, best.tile, target, 2)


def gemm_of_pair(
    products: Sequence[Node], y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> GemmArguments | str:
    """Return two products as one with the columns of both in turns, or why there is none.

    Args:
        products: alike, with weights of floats.
        y: what their epilogue stores.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    layers: list[Linear] = []
    for node in products:
        layer = tiled_layer(node, operand, setting)
        if isinstance(layer, str):
            return layer
        layers.append(layer)
    first = layers[0]
    m, n, k = first.shape
    if k % INTERLEAVE or n % INTERLEAVE:
        return f"{n} columns of {k} terms, not multiples of {INTERLEAVE}"
    return GemmArguments(
        a=Matrix(first.a, k, INTERLEAVE),
        b=interleaved(*(_rows(layer) for layer in layers)),
        c=y,
        shape=(m, 2 * n, k),
        ldb=k,
        ldc=n,
        bias=interleaved_biases([layer.bias for layer in layers], n, first.a.dtype),
        dtype=first.a.dtype,
    )


def tiled_layer(node: Node, operand: Callable[[Value], Tensor], setting: Setting) -> Linear | str:
    """Return one of the products, if tensor cores would compute it."""
    inputs = tuple(value and operand(value) for value in node.inputs)
    own = Tensor(node.output)
    context = RecipeContext(node.op, own, inputs, setting.for_node(node))
    task, selector = multiplication(context), SELECTORS.get(type(node.op))
    if isinstance(task, str) or selector is None:
        return task if isinstance(task, str) else f"{node.kind} has one algorithm"
    taken = selector.pick(task).algorithm
    return linear_of(task) if taken == "tensor_cores" else f"algorithm '{taken}'"


def _rows(layer: Linear) -> Packed:
    """Return the right operand of a product in rows, [n, k]."""
    alpha, transposed = layer.form
    pack = partial(rows_of, alpha=alpha, transposed=transposed)
    return Packed((layer.b.value,), ("rows", *layer.form), pack)


def _packed_pair(
    found: GatedProducts,
    y: Tensor,
    operand: Callable[[Value], Tensor],
    epilogue: Epilogue,
    setting: Setting,
) -> Answer:
    """Return the launch of two products with weights of a few bits, or why there is none."""
    layers: list[PackedLinear] = []
    for node in found.products:
        assert isinstance(node.op, MatMulNBits)
        inputs = [value and operand(value) for value in node.inputs]
        layer = packed_linear(node.op, y, inputs, setting.for_node(node))
        if isinstance(layer, str):
            return layer
        layers.append(layer)
    one, other = layers
    return multiply_packed_pair((one, other), epilogue, setting.target)
