"""A product whose first columns are heads that are rotated, as one kernel.

Queries and keys of an attention are parts of the rows of one product. Where nothing else reads
these, `tma_persistent.cu` rotates them before it stores them, and stores the columns behind, which
are values, apart.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import RotaryEmbedding
from ....runtime.ops.cuts import Part, part_of
from ....runtime.ops.matmul import Gemm, MatMul
from ..algorithms.registry import Answer, Setting, need_dtypes
from ..codegen.epilogue import Epilogue, Tail, no_epilogue
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import DECIDED, Stored
from . import f16
from .atoms import HALVES
from .fused_products import Products, layers_of
from .problem import GemmArguments
from .schedules import tma_persistent
from .tile import LAUNCH, MEMORY
from .turned import Turned


@record
class RotatedProduct(Whole):
    """A product, the rotation of its first columns, and what takes these and those behind.

    Attributes:
        found: the product with its bias.
        rotation: the RotaryEmbedding.
        parts: the nodes that take its columns.
        others: the columns behind; None if there are none.
    """

    found: Products
    rotation: Node
    parts: tuple[Node, ...]
    others: Value | None

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return self.found.nodes | {self.rotation, *self.parts}

    @property
    def size(self) -> int:
        """Elements of a head."""
        op = self.rotation.op
        assert isinstance(op, RotaryEmbedding)
        return self.rotation.output.tensor.dims[-1] // (op.num_heads or 1)

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return rotated_product(self, operand, setting)


def rotated_product_at(
    graph: Graph, product: Node, free: Set[Node], tail: Tail
) -> RotatedProduct | None:
    """Return a product whose first columns are rotated.

    Args:
        graph: the graph.
        product: the product.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    if product not in free or not _is_of_rows(product):
        return None
    found = Products((product,), tail(graph, product, free))
    rows = found.result
    if graph.is_output(rows) or not rows.consumers:
        return None
    readers = tuple(graph.in_order(rows.consumers))
    parts = () if isinstance(readers[0].op, RotaryEmbedding) else readers
    taken = [(value, part_of(value)) for node in parts for value in node.outputs] or [(rows, None)]
    turned, *others = sorted(taken, key=lambda each: each[1].places.start if each[1] else 0)
    rotation = graph.sole_consumer(turned[0])
    if rotation is None or not isinstance(rotation.op, RotaryEmbedding) or len(others) > 1:
        return None
    whole = RotatedProduct(found, rotation, parts, others[0][0] if others else None)
    return whole if whole.nodes <= free and _fits(whole, rows, turned[0]) else None


def _is_of_rows(product: Node) -> bool:
    """Whether a node is a product of rows by constants."""
    if not isinstance(product.op, MatMul | Gemm) or product.output.tensor.rank != 3:
        return False
    x, *weights = product.operands
    constant = all(w.is_constant for w in weights) and not x.is_constant
    return constant and x.tensor.dtype in HALVES


def _fits(whole: RotatedProduct, rows: Value, turned: Value) -> bool:
    """Whether the rotated columns and those behind are all of the rows, and heads fill strips."""
    op, strip = whole.rotation.op, tma_persistent.STRIP
    end = 0
    for value in (turned, *([] if whole.others is None else [whole.others])):
        part = Part(rows, 2, range(rows.tensor.dims[2])) if value is rows else part_of(value)
        if part is None or part[:2] != (rows, 2) or part.places.start != end:
            return False
        end = part.places.stop
    width = turned.tensor.dims[-1]
    if not isinstance(op, RotaryEmbedding) or turned.tensor.rank != 3 or not op.num_heads:
        return False
    size = width // op.num_heads
    half = (op.rotary_embedding_dim or size) // 2
    even = width % strip == size % 8 == 0
    even = even and (op.interleaved or half % (8 if half < strip else strip) == 0)
    fills = 0 in (size and strip % size, size % strip)
    return bool(even and fills and half > 0) and end == rows.tensor.dims[2]


def turned_of(whole: RotatedProduct, operand: OperandOf) -> Turned | str:
    """Return what the kernel of a product does for its rotation, or why no kernel does.

    Args:
        whole: the product with its rotation.
        operand: returns the operand of a value.
    """
    op, y = whole.rotation.op, operand(whole.rotation.output)
    assert isinstance(op, RotaryEmbedding)
    cosines, sines, *places = (operand(value) for value in whole.rotation.operands[1:])
    return need_dtypes((y.dtype,), Tensor(whole.found.result), cosines, sines) or (
        Turned(
            *(op, y.dims[2], cosines, sines, places[0] if places else None),
            *(y.dims[2] // (op.num_heads or 1), y.dims[1], whole.others and operand(whole.others)),
        )
    )


def gemm_of_rotated(
    found: Products, gemm: GemmArguments, epilogue: Epilogue, y: Tensor
) -> GemmArguments | str:
    """Return a product with its bias whose result is rotated, or why it has another epilogue.

    Args:
        found: the product.
        gemm: its arguments.
        epilogue: of what is rotated.
        y: the rotated columns.
    """
    bias = epilogue.behind_bias and epilogue.behind_bias.bias
    if found.epilogue and (len(found.epilogue) > 1 or bias is None or gemm.bias is not None):
        return f"an epilogue {epilogue.title}"
    return replace(gemm, c=y, bias=gemm.bias or bias)


def time_apart(y: Tensor) -> float:
    """Return the estimate for a rotation as a kernel of its own, in microseconds."""
    return LAUNCH + 2 * y.size * y.dtype.itemsize / MEMORY


def rotated_product(whole: RotatedProduct, operand: OperandOf, setting: Setting) -> Answer:
    """Return the launch, or why there is none.

    Args:
        whole: the product with its rotation.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
    """
    found, target, rows = whole.found, setting.target, Tensor(whole.found.result)
    y, turned = operand(whole.rotation.output), turned_of(whole, operand)
    epilogue = found.epilogue_to(rows, operand)
    if isinstance(turned, str) or isinstance(epilogue, str):
        return str(turned if isinstance(turned, str) else epilogue)
    layers = layers_of(found, rows, operand, setting, epilogue, "tensor_cores")
    if isinstance(layers, str):
        return layers
    if any(own.is_decided for own in found.settings(setting)):
        return DECIDED
    gemm = gemm_of_rotated(found, f16.gemm_of(layers[0]), epilogue, y)
    if isinstance(gemm, str):
        return gemm
    plain = no_epilogue(y.dtype)
    apart = f16.time_of_some_rows(gemm, plain, setting) + time_apart(y)
    ways = tma_persistent.candidates(gemm, plain, target)
    way = next((w for w in ways if tma_persistent.can_turn(w.config.tile, turned.size)), None)
    if way is None or way.microseconds >= apart:
        return "estimated to take as long as the product and the rotation"
    return tma_persistent.multiply(gemm, plain, way.config.tile, target, turned=turned)
