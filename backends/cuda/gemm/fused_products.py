"""Products of one input, and what their kernels compute around them.

Patterns are made of these: what a kernel takes in front is the normalization of the rows, and
behind, a chain of elementwise nodes, in which two products meet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from dataclasses import field, replace

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import is_along_last
from ....runtime.ops.matmul import Gemm, MatMul
from ....runtime.ops.norm import LayerNormalization, RMSNormalization, are_of_rows
from ....runtime.ops.packed import MatMulNBits
from ..algorithms.registry import RecipeContext, Setting, need_dtypes
from ..algorithms.selection import SELECTORS
from ..codegen.epilogue import Epilogue, Meeting, Tail, epilogue_of, no_epilogue, pitches_in
from ..codegen.stages import head_of
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf
from .linear import TILED, linear_of
from .multiplication import multiplication
from .packed import PackedLinear, packed_linear
from .problem import Linear

#: Operators with kernels that multiply by two matrices at once.
PRODUCTS = MatMul | Gemm | MatMulNBits


@record
class Products:
    """Products by constants, with what a kernel computes in front of and behind them.

    Attributes:
        products: one, or two alike with a common input; see `are_alike`.
        epilogue: elementwise nodes in topological order; only the last result is read elsewhere.
        norm: the normalization of the input's rows; None if there is none.
        epilogues: what `epilogue_to` has returned.
    """

    products: tuple[Node, ...]
    epilogue: tuple[Node, ...]
    norm: Node | None = None
    epilogues: dict[Hashable, Epilogue | str] = field(
        default_factory=dict[Hashable, Epilogue | str], compare=False, repr=False
    )

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((*self.products, *self.epilogue, *([self.norm] if self.norm else ())))

    @property
    def result(self) -> Value:
        """What is stored."""
        return (*self.products, *self.epilogue)[-1].output

    @property
    def waits(self) -> bool:
        """Whether the epilogue reads anything else that is computed."""
        made = {node.output for node in (*self.products, *self.epilogue)}
        read = {value for node in self.epilogue for value in node.distinct_reads}
        return not all(value.is_constant for value in read - made)

    def settings(self, setting: Setting) -> Iterator[Setting]:
        """Yield those of the products and of the normalization."""
        norm = () if self.norm is None else (self.norm,)
        yield from (setting.for_node(node) for node in (*self.products, *norm))

    def epilogue_to(self, y: Tensor, operand: OperandOf) -> Epilogue | str:
        """Return the epilogue whose last result is `y`, or why there is none.

        Args:
            y: what is stored.
            operand: returns the operand of a value.
        """
        key = y, *pitches_in(self.epilogue, operand).items()
        if key not in self.epilogues:
            results = (node.output for node in self.products)
            self.epilogues[key] = epilogue_of(self.epilogue, y, *results, operand=operand)
        return self.epilogues[key]

    def reading(self, operand: OperandOf) -> OperandOf:
        """Return operands of the products, which read rows that are not normalized yet."""
        norm = self.norm

        def read(value: Value) -> Tensor:
            is_normalized = norm is not None and value is norm.output
            return operand(norm.operands[0] if norm is not None and is_normalized else value)

        return read


@record
class InTurn:
    """Products of rows that another one has computed, normalized in between.

    Attributes:
        front: the product in front, whose result may be read elsewhere as well.
        behind: the products behind, with the normalization.
        stores_rows: whether something else reads the rows as they are.
        keeps_rows: whether something else reads the normalized rows.
    """

    front: Products
    behind: Products
    stores_rows: bool
    keeps_rows: bool

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return self.front.nodes | self.behind.nodes

    @property
    def norm(self) -> Node:
        """The normalization in between."""
        assert self.behind.norm is not None
        return self.behind.norm


# ── how they are found ───────────────────────────────────────────────────────────────────────────


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


def pair_at(
    graph: Graph, product: Node, free: Set[Node], meeting: Meeting, fits: Callable[[Node], bool]
) -> Products | None:
    """Return a product, another one of its input, and the nodes that combine them.

    Args:
        graph: the graph.
        product: the product.
        free: nodes that may be taken.
        meeting: returns what combines two products.
        fits: whether a kernel of two products may compute one.
    """
    for other in product.operands[0].consumers:
        if other is product or other not in free or not fits(other):
            continue
        epilogue = meeting(graph, (product, other), free) if are_alike(product, other) else ()
        if epilogue:
            return Products((product, other), epilogue)
    return None


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
    others = y.consumers.keys() - set(products)
    fits = not any(isinstance(node.op, PRODUCTS) for node in others)
    fits = fits and not (alone and (others or graph.is_output(y)))
    unread = not any(map(graph.is_read, norm.outputs[1:]))
    rows = is_along_last(norm) and x.tensor == y.tensor
    whole = all(
        v.is_constant
        and are_of_rows(y.tensor.dims, -1, v.tensor.dims)
        and v.tensor.dtype == x.tensor.dtype
        for v in parameters
    )
    return norm if fits and unread and rows and whole else None


def in_turn(
    graph: Graph, behind: Products, free: Set[Node], tail: Tail, fits: Callable[[Node], bool]
) -> InTurn | None:
    """Return products, with the one that computes the rows which they normalize.

    Args:
        graph: the graph.
        behind: products with a normalization.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
        fits: whether a kernel may leave what one behind needs of a product's rows.
    """
    norm = behind.norm
    if norm is None or norm not in free:
        return None
    x, others = norm.operands[0], free - behind.nodes
    first = head_of(x, PRODUCTS)
    if first is None or first not in others or not fits(first):
        return None
    front = Products((first,), tail(graph, first, others))
    # What the epilogue behind reads might wait for what reads x elsewhere.
    if front.result is not x or behind.waits:
        return None
    stores = graph.is_read_outside(x, (norm,))
    return InTurn(front, behind, stores, graph.is_read_outside(norm.output, behind.products))


# ── their matrices ───────────────────────────────────────────────────────────────────────────────


def layers_of(
    found: Products,
    y: Tensor,
    operand: OperandOf,
    setting: Setting,
    epilogue: Epilogue,
    algorithm: str,
) -> tuple[Linear, ...] | str:
    """Return the matrices of products of floats, if an algorithm would compute each on its own.

    Args:
        found: the products.
        y: what their epilogue stores.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        epilogue: what is applied to the results.
        algorithm: its name.
    """
    layers, read = list[Linear](), found.reading(operand)
    for node in found.products:
        inputs = tuple(value and read(value) for value in node.inputs)
        context = RecipeContext(node.op, y, inputs, setting.for_node(node), epilogue=epilogue)
        task, selector, own = multiplication(context), SELECTORS.get(type(node.op)), node.output
        if isinstance(task, str) or selector is None:
            return task if isinstance(task, str) else f"{node.kind} has one algorithm"
        alone = replace(task, y=Tensor(own), epilogue=no_epilogue(own.tensor.dtype))
        taken = selector.pick(alone).algorithm
        refused = need_dtypes(TILED, alone.y, task.a, task.b, task.c)
        layer = linear_of(task)
        if refused or taken != algorithm or isinstance(layer, str):
            return refused or (layer if isinstance(layer, str) else f"algorithm '{taken}'")
        layers.append(layer)
    return tuple(layers)


def packed_layers_of(
    found: Products, y: Tensor, operand: OperandOf, setting: Setting
) -> tuple[PackedLinear, ...] | str:
    """Return the matrices of products with weights of a few bits, or why there are none.

    Args:
        found: the products.
        y: what their epilogue stores.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    layers, read = list[PackedLinear](), found.reading(operand)
    for node in found.products:
        assert isinstance(node.op, MatMulNBits)
        inputs = [value and read(value) for value in node.inputs]
        layer = packed_linear(node.op, y, inputs, setting.for_node(node))
        if isinstance(layer, str):
            return layer
        layers.append(layer)
    return tuple(layers)
