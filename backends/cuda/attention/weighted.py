"""Attention without a softmax: its detection in the graph, and its kernel.

y = f(q k') v, where f is elementwise: a decay (Sun et al., "Retentive Network", 2023), a causal
mask (linear attention), a sigmoid or a squared ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.matmul import MatMul
from ..algorithms.registry import Answer, Setting
from ..codegen.elementwise import ElementwiseChain, chain_of, in_chains
from ..codegen.readers import readers_outside
from ..gemm.atoms import HALVES, TF32, atom_of
from ..gemm.problem import widest
from ..gemm.strided import StridedProduct, landing, moved_behind
from ..gemm.strided_factors import Factor, Factors, common_factors, factor_of, single_stride
from ..gemm.tile import LAUNCH, MEMORY
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Tensor, broadcast_strides, ceil_div, merge
from ..recipe.pattern import Grouping, OperandOf, Whole
from ..recipe.setting import Stored

#: Maximum size of a query, and number of columns of a block.
MAX_SIZE, COLUMNS = 128, 128
#: Maximum number of nodes between both products, and of operands that they read.
MAX_NODES, MAX_OPERANDS = 12, 2
#: Keys of a tile, and stages, by the number of operands: these are in registers as well.
TILES = {0: (64, 2), 1: (64, 2), 2: (32, 3)}
#: Warps of a block, and maximum number of keys where blocks are too few for the GPU: they loop over
#: these one after another.
WARPS, FEW = (4, 2), 128
#: Products per microsecond, for scores that blocks of other columns compute as well.
PRODUCTS = 1.2e8


@record
class WeightedHeads(Whole):
    """Two products, and the elementwise nodes between them.

    Attributes:
        scores: the product of queries and keys, [..., rows, keys].
        weights: the nodes from the scores to the left factor of the second product.
        q, k: the factors of the first product.
        product: the second product, whose right factor are the values.
    """

    scores: Node
    weights: tuple[Node, ...]
    q: Factor
    k: Factor
    product: StridedProduct

    reads_rows = True
    regrouped = Grouping.LAST

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        inner = (self.scores, *self.weights, *self.q.nodes, *self.k.nodes)
        return self.product.nodes.union(inner)

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes of a query and of a value."""
        return self.scores.operands[0].tensor.dims[-1], self.product.result.tensor.dims[-1]

    @property
    def across(self) -> int:
        """The number of blocks that share the columns of a row."""
        return ceil_div(self.sizes[1], COLUMNS)

    @property
    def is_worth(self) -> bool:
        """Whether scores computed by every block take less time than stored ones."""
        size_k, size_v = self.sizes
        scores = self.scores.output.tensor
        again = (self.across - 1) * scores.size * size_k / PRODUCTS
        stored = LAUNCH + 2 * scores.size * scores.dtype.itemsize / MEMORY
        return 0 < size_k <= MAX_SIZE and size_v > 0 and again < stored

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return weighted_heads(self, y, operand, setting)


def weighted_heads_at(graph: Graph, scores: Node, free: Set[Node]) -> WeightedHeads | None:
    """Return the attention without a softmax that begins with this product, if there is one."""
    if scores not in free or not isinstance(scores.op, MatMul):
        return None
    weights = _weights(graph, scores, free)
    reader = None if weights is None else graph.sole_consumer((scores, *weights)[-1].output)
    if weights is None or reader is None:
        return None
    left, v = reader.operands
    computed = all(value.data is None for value in (*scores.operands, v))
    if v is left or left is not (scores, *weights)[-1].output or not computed:
        return None
    if any(len(value.tensor.dims) < 2 for value in (*scores.operands, v)):
        return None
    values = factor_of(graph, reader, v, free)
    behind = moved_behind(graph, reader, free, narrows=True)
    product = StridedProduct(reader, (Factor(left), values), (), behind)
    q, k = (factor_of(graph, scores, value, free) for value in scores.operands)
    types = {factor.x.tensor.dtype for factor in (q, k, values)}
    found = WeightedHeads(scores, weights, q, k, product)
    return found if types <= HALVES and found.is_worth else None


def _weights(graph: Graph, scores: Node, free: Set[Node]) -> tuple[Node, ...] | None:
    """Return the elementwise nodes from scores to the product that reads the last one."""
    dims, values, found = scores.output.tensor.dims, [scores.output], list[Node]()
    while len(found) <= MAX_NODES:
        readers = readers_outside(graph, values, found)
        node = next(iter(readers), None)
        if node is None or node not in free or any(graph.is_output(value) for value in values):
            return None
        if isinstance(node.op, MatMul):
            return tuple(found) if found and len(readers) == 1 else None
        if not in_chains(node) or node.output.tensor.dims != dims:
            return None
        found.append(node)
        values.append(node.output)
    return None


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


@record
class _Matrices:
    """Matrices of one tensor.

    Attributes:
        batch: elements from a matrix to the next, by batch axis.
        line: from one row to the next.
        term: from one element of a row to the next.
        first: the place of the first element.
    """

    batch: Ints
    line: int
    term: int
    first: int = 0

    def vector(self, size: int) -> int:
        """Return how many elements of a row can be copied at once, up to eight."""
        return widest((8, 4, 2), size, self.line, self.first, *self.batch) if self.term == 1 else 1


def weighted_heads(
    found: WeightedHeads, y: Tensor, operand: Callable[[Value], Tensor], setting: Setting
) -> Answer:
    """Return the launch of attention without a softmax, or why its nodes stay apart."""
    if refused := _refusal(found, setting):
        return refused
    if isinstance(chain := _chain(found), str):
        return chain
    q, k, v = (operand(one.x) for one in (found.q, found.k, found.product.factors[1]))
    read = [operand(value) for value in chain.operands[1:]]
    if isinstance(arranged := _arranged(found, (q, k, v, y), read), str):
        return arranged
    stack, (of_q, of_k, of_v, of_y, *of_read) = arranged
    *_, rows, keys = found.scores.output.tensor.dims
    size_k, size_v = found.sizes
    vectors = of_k.vector(size_k), of_v.vector(size_v)
    if min(keys, rows, prod(stack)) == 0:
        return "no elements"
    if 1 in (*vectors, of_q.vector(size_k)) or of_y.term != 1:
        return "elements that are apart"
    if max(x.extent for x in (q, k, v, y, *read)) >= 2**31:
        return "too many elements"
    across, processors = found.across, setting.target.processors
    blocks = {w: ceil_div(rows, 16 * w) * across * prod(stack) for w in WARPS}
    warps = next((w for w in WARPS[:-1] if blocks[w] >= processors), WARPS[-1])
    if blocks[warps] < processors and keys > FEW:
        return f"{blocks[warps]} blocks of {keys} keys"
    padded, wide_v = ceil_div(size_k, 16) * 16, min(COLUMNS, ceil_div(size_v, 16) * 16)
    tile, stages = TILES[len(read)]
    of_a, of_b = (*of_read, *[_Matrices((0,) * len(stack), 0, 0)] * MAX_OPERANDS)[:MAX_OPERANDS]
    types = [x.dtype for x in read] + [float32] * MAX_OPERANDS
    kinds = [1 + (each.vector(keys) > 1) for each in of_read] + [0] * MAX_OPERANDS
    return Launch(
        "attention/weighted.cu",
        "weighted",
        grid=(blocks[warps], 1, 1),
        block=32 * warps,
        args={
            **{"q": q, "k": k, "v": v, "y": y},
            **dict(zip(("a", "b"), (*read, None, None), strict=False)),
            **{"tiles": ceil_div(rows, 16 * warps), "across": across},
            "s": {"rows": rows, "keys": keys, "size_k": size_k, "size_v": size_v},
            "by": {
                **{"q_first": of_q.first, "k_first": of_k.first, "v_first": of_v.first},
                **{"q_row": of_q.line, "k_row": of_k.line, "v_row": of_v.line, "y_row": of_y.line},
                **{"a_row": of_a.line, "a_key": of_a.term, "b_row": of_b.line, "b_key": of_b.term},
            },
            **{"stack": stack, "of_q": of_q.batch, "of_k": of_k.batch, "of_v": of_v.batch},
            **{"of_y": of_y.batch, "of_a": of_a.batch, "of_b": of_b.batch},
        },
        types=(("T", q.dtype), ("A", types[0]), ("B", types[1]), ("R", y.dtype)),
        constants=(
            *(("SIZE_K", padded), ("SIZE_V", wide_v), ("KEYS", tile), ("WARPS", warps)),
            *(("STAGES", stages), ("VECTOR_K", vectors[0]), ("VECTOR_V", vectors[1])),
            *(("PAIRS", of_y.vector(size_v) > 1), ("WIDE", _is_wide(found))),
            *(("KIND_A", kinds[0]), ("KIND_B", kinds[1]), ("RANK", len(stack))),
        ),
        code="\n".join((atom_of(q.dtype).code(), TF32.mma(), _code(chain))),
        shared=2 * stages * tile * (padded + wide_v + 16),
        note=f"{prod(stack)} x {rows} x {keys} {chain.title}".rstrip(),
        pitched=(q, k, v),
    )


def _refusal(found: WeightedHeads, setting: Setting) -> str:
    """Return why the options or the GPU rule the kernel out; empty if they do not."""
    if setting.for_node(found.scores).asked or setting.for_node(found.product.product).asked:
        return "an algorithm that was asked for"
    if not setting.target.has_tf32:
        return f"{setting.target.arch} has no tensor cores for float32"
    if _is_wide(found) and setting.options.precision == "float32":
        return "weights of float32, which tf32 would round"
    return ""


def _is_wide(found: WeightedHeads) -> bool:
    """Return whether weights are float32."""
    return found.product.factors[0].x.tensor.dtype == float32


def _chain(found: WeightedHeads) -> ElementwiseChain | str:
    """Return the nodes between both products as a function of a score."""
    chain = chain_of(found.weights, "weigh", (found.scores.output,), rounds=False)
    if not isinstance(chain, str) and len(chain.operands) > 1 + MAX_OPERANDS:
        return f"{len(chain.operands) - 1} operands"
    return chain


def _code(chain: ElementwiseChain) -> str:
    arguments = ", ".join(("score", "a", "b")[: len(chain.operands)])
    head = "__device__ __forceinline__ float weight_of(float score, A a, B b)"
    return f"{chain.code}\n{head} {{ return weigh({arguments}); }}"


def _arranged(
    found: WeightedHeads, tensors: tuple[Tensor, Tensor, Tensor, Tensor], read: list[Tensor]
) -> tuple[Ints, list[_Matrices]] | str:
    """Return the sizes of the batch axes, and where the matrices of each tensor are."""
    q, k, v, _ = tensors
    result = found.product.result.tensor.dims
    scores, rank = found.scores.output.tensor.dims, len(result)
    of_y = landing(found.product)
    if of_y is None or len(scores) > rank:
        return "a result that is moved in parts"
    factors = (found.q, q), (found.k, k), (found.product.factors[1], v)
    found_axes = [factor.axes(x, rank) for factor, x in factors]
    placed = [axes for axes in found_axes if axes is not None]
    if len(placed) < len(found_axes):
        return "a factor whose places are in a table"
    placed[1][0][-2:] = reversed(placed[1][0][-2:])
    placed.append((of_y, 0))
    for x in read:
        strides = broadcast_strides(x.dims, x.format, (1,) * (rank - len(scores)) + scores, x.pitch)
        own = zip((*result[:-2], *scores[-2:]), strides, strict=True)
        placed.append(([[(size, stride)] for size, stride in own], 0))
    return _matrices(result[:-2], placed)


def _matrices(
    batch: Ints, placed: list[tuple[list[Factors], int]]
) -> tuple[Ints, list[_Matrices]] | str:
    shared: list[tuple[int, Ints]] = []
    for axis, size in enumerate(batch):
        common = common_factors(size, [axes[axis] for axes, _ in placed])
        if common is None:
            return "batches whose axes are cut differently"
        shared += common
    strides = [tuple(each[i] for _, each in shared) for i in range(len(placed))]
    sizes, strides = merge([size for size, _ in shared], strides)
    found: list[_Matrices] = []
    for (axes, first), own in zip(placed, strides, strict=True):
        line, term = (single_stride(axes[axis]) for axis in (-2, -1))
        if line is None or term is None:
            return "rows or columns in several parts"
        found.append(_Matrices(own, line, term, first))
    return sizes, found
