"""Attention that exporters spell out, found where it is one; see `test_not_attention`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, Cast, Div, IsNaN, Mul, Tanh, Where
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Expand, Slice, Split, Transpose
from tercet.runtime.ops.norm import Dropout, Softmax
from tercet.runtime.ops.shape import Reshape, Squeeze, Unsqueeze

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised, run

SIZE = 8


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def scalar(number: float) -> np.ndarray:
    return np.array(number, np.float32)


@dataclass(frozen=True)
class Spelling:
    """How an exporter writes the middle of an attention; each step takes and gives a value."""

    of_q: Callable[[Graph, Value], Value] = lambda g, x: x
    of_keys: Callable[[Graph, Value], Value] = lambda g, x: x
    of_scores: Callable[[Graph, Value], Value] = lambda g, x: x
    of_weights: Callable[[Graph, Value], Value] = lambda g, x: x


def times(number: float) -> Callable[[Graph, Value], Value]:
    return lambda g, x: apply(g, Mul(), x, scalar(number))


def over(number: float) -> Callable[[Graph, Value], Value]:
    return lambda g, x: apply(g, Div(), x, scalar(number))


def plus(mask: np.ndarray) -> Callable[[Graph, Value], Value]:
    return lambda g, x: apply(g, Add(), x, mask)


def hiding(shown: np.ndarray, fill: float) -> Callable[[Graph, Value], Value]:
    return lambda g, x: apply(g, Where(), shown, x, scalar(fill))


def masking(hidden: np.ndarray, fill: float) -> Callable[[Graph, Value], Value]:
    return lambda g, x: apply(g, Where(), hidden, scalar(fill), x)


def then(*steps: Callable[[Graph, Value], Value]) -> Callable[[Graph, Value], Value]:
    def all_of(graph: Graph, x: Value) -> Value:
        for step in steps:
            x = step(graph, x)
        return x

    return all_of


def capped(cap: float) -> Callable[[Graph, Value], Value]:
    return then(over(cap), lambda g, x: apply(g, Tanh(), x), times(cap))


def guarded(graph: Graph, x: Value) -> Value:
    return apply(graph, Where(), apply(graph, IsNaN(), x), scalar(0), x)


def by_head(graph: Graph, x: Value, heads: int, *perm: int) -> Value:
    """Return a linear layer of x [b, t, n] cut into heads, its axes in this order."""
    y = apply(graph, MatMul(), x, normal(24, heads * SIZE))
    y = apply(graph, Add(), normal(heads * SIZE), y)
    y = apply(graph, Reshape(), y, ints(0, -1, heads, SIZE))
    return apply(graph, Transpose(perm=perm), y)


def attend(graph: Graph, q: Value, keys: Value, v: Value, how: Spelling) -> Value:
    scores = apply(graph, MatMul(), how.of_q(graph, q), how.of_keys(graph, keys))
    weights = apply(graph, Softmax(axis=-1), how.of_scores(graph, scores))
    return apply(graph, MatMul(), how.of_weights(graph, weights), v)


def joined(graph: Graph, y: Value, width: int) -> Value:
    y = apply(graph, Transpose(perm=(0, 2, 1, 3)), y)
    return apply(graph, Reshape(), y, ints(0, -1, width))


def network(how: Spelling, shape: tuple[Dim, ...] = (2, 5, 24), heads: int = 3) -> Graph:
    """Return the attention of x [b, t, n] with three linear layers, as transformers have it."""

    def build(graph: Graph, x: Value) -> Value:
        q, v = (by_head(graph, x, heads, 0, 2, 1, 3) for _ in range(2))
        keys = by_head(graph, x, heads, 0, 2, 3, 1)
        return joined(graph, attend(graph, q, keys, v, how), heads * SIZE)

    return make(build, shape)


def by_rows(*shape: int) -> Callable[[Graph, Value], Value]:
    return lambda g, x: apply(g, Mul(), x, normal(*shape))


CAUSAL = np.tril(np.ones((5, 5), bool))
LOWEST = float(np.finfo(np.float32).min)
SPELLINGS = {
    "plain": Spelling(),
    "TorchScript": Spelling(of_scores=then(over(sqrt(SIZE)), plus(normal(2, 1, 1, 5)))),
    "dynamo": Spelling(times(SIZE**-0.25), times(SIZE**-0.25)),
    "q scaled": Spelling(of_q=over(3.0), of_scores=plus(normal(5, 5))),
    "capped": Spelling(of_scores=then(times(0.3), capped(2.0), plus(normal(1, 3, 5, 5)))),
    "Where": Spelling(of_scores=then(times(0.3), hiding(CAUSAL, -np.inf))),
    "lowest": Spelling(of_scores=then(times(0.3), masking(~CAUSAL, LOWEST))),
    "one number a head": Spelling(
        of_scores=lambda g, x: apply(g, Mul(), np.full((3, 1, 1), 0.7, np.float32), x)
    ),
    "guarded": Spelling(of_scores=plus(normal(5, 5)), of_weights=guarded),
    "dropout": Spelling(of_weights=lambda g, x: apply(g, Dropout(), x)),
}


def viewed(*shape: int) -> Callable[[Graph, Value], Value]:
    return lambda g, x: apply(g, Reshape(), x, ints(*shape))


def computed(graph: Graph, x: Value) -> Value:
    """Add what is computed of the scores' own input, as DeBERTa's positions are."""
    source = graph.inputs[0]
    rows = apply(graph, MatMul(), source, apply(graph, Transpose(perm=(0, 2, 1)), source))
    three = apply(graph, Concat(axis=1), *[apply(graph, Unsqueeze(), rows, ints(1))] * 3)
    return apply(graph, Add(), x, apply(graph, Reshape(), three, ints(6, 5, 5)))


#: Scores of stacks of heads and samples together (torch.bmm, torch.baddbmm), which have two axes
#: where masks are added, or only where values are multiplied.
STACKED = {
    "bmm": Spelling(of_scores=then(viewed(2, 3, 5, 5), plus(normal(2, 1, 1, 5)))),
    "baddbmm": Spelling(
        of_scores=then(
            times(0.3), plus(normal(6, 1, 5)), viewed(2, 3, 5, 5), hiding(CAUSAL, LOWEST)
        )
    ),
    "computed": Spelling(
        of_scores=then(over(2.0), computed, viewed(2, 3, 5, 5), masking(~CAUSAL, LOWEST))
    ),
    "weights": Spelling(of_scores=plus(normal(6, 1, 5)), of_weights=viewed(2, 3, 5, 5)),
    "computed, weights": Spelling(
        of_scores=then(over(2.0), computed), of_weights=viewed(2, 3, 5, 5)
    ),
}


@pytest.mark.parametrize("name", STACKED)
def test_a_product_may_count_heads_and_samples_by_one_axis(name: str) -> None:
    def build(graph: Graph, x: Value) -> Value:
        q, k, v = (by_head(graph, x, 3, 0, 2, 1, 3) for _ in range(3))
        rows, columns = (viewed(6, 5, SIZE)(graph, each) for each in (q, k))
        keys = times(0.5)(graph, apply(graph, Transpose(perm=(0, 2, 1)), columns))
        return joined(graph, attend(graph, rows, keys, v, STACKED[name]), 3 * SIZE)

    graph = make(build, (2, 5, 24))
    after, _ = optimised(graph)
    assert kinds(after).count("Attention") == 1
    assert "Softmax" not in kinds(after)
    assert not set(kinds(after)) & {"Transpose"} or "computed" in name
    assert_same(graph, after, 2, 5, 24)


def in_windows(*axes: int) -> Build:
    """Add positions in all windows, and a mask for some of the 2 x 4 windows of samples (Swin)."""
    hidden = np.where(normal(*axes, 1, 5, 5) > 0.5, np.float32(-100), np.float32(0))

    def edit(graph: Graph, scores: Value) -> Value:
        scores = apply(graph, Add(), scores, normal(3, 5, 5))
        scores = apply(graph, Add(), viewed(2, 4, 3, 5, 5)(graph, scores), hidden)
        return viewed(8, 3, 5, 5)(graph, scores)

    return edit


@pytest.mark.parametrize(
    ("axes", "limit", "nodes"),
    [((4,), 2400, []), ((4,), 1200, ["Tile"]), ((2, 1), 1200, ["Expand", "Reshape"])],
    ids=str,
)
def test_constant_masks_of_windows_are_one(
    axes: tuple[int, ...], limit: int, nodes: list[str]
) -> None:
    """It is repeated for all samples in each run if that is too large to be kept."""
    graph = network(Spelling(of_scores=in_windows(*axes)), (8, 5, 24))
    after, _ = optimised(graph, fold_bytes=limit)
    (attention,) = (node for node in after.nodes if isinstance(node.op, Attention))
    mask, found = attention.operands[3], list[str]()
    while (made := mask.producer) is not None:
        found.insert(0, made.kind)
        mask = made.operands[0]
    assert found == nodes
    assert mask.data is not None
    assert_same(graph, after, 8, 5, 24)


def the_attention(graph: Graph) -> Attention:
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, Attention))
    return op


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    graph = network(SPELLINGS[name])
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert log.counts["join_heads"] == 1
    assert log.counts["merge_products"] == 1
    assert the_attention(after).q_num_heads == 3
    found = [kind for kind in kinds(after) if kind != "Where"]
    assert found == ["MatMul", "Add", "Split", "Attention"]
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 5, 1)])
def test_numbers_of_heads_and_rows_are_those_of_queries(shape: tuple[int, ...]) -> None:
    """The cosine attention of Swin v2 learns a temperature for each head."""
    graph = network(Spelling(of_scores=then(times(0.3), by_rows(*shape), plus(normal(5, 5)))))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == log.counts["join_heads"] == 1
    assert the_attention(after).scale == pytest.approx(0.3)
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("name", ["plain", "Where", "dynamo"])
def test_symbolic_sizes(name: str) -> None:
    graph = network(SPELLINGS[name], ("batch", 5, 24))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == log.counts["join_heads"] == 1
    assert_same(graph, after, 3, 5, 24, rel=5e-6)


def test_a_row_that_sees_nothing_is_zero() -> None:
    shown = np.array([[True] * 5] * 4 + [[False] * 5])
    graph = network(Spelling(of_scores=hiding(shown, -np.inf), of_weights=guarded))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert_same(graph, after, rel=5e-6)


def test_a_row_of_lowest_numbers_is_a_mean() -> None:
    graph = network(Spelling(of_scores=plus(np.full((5, 5), LOWEST, np.float32))))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert_same(graph, after, rel=5e-6)


def unbound(cut: Callable[[Graph, Value, int], Value]) -> Graph:
    """Return the attention of timm's vision transformers: one product, cut into three."""

    def build(graph: Graph, x: Value) -> Value:
        y = apply(graph, MatMul(), x, normal(24, 3 * 24))
        y = apply(graph, Reshape(), y, ints(2, 5, 3, 3, SIZE))
        y = apply(graph, Transpose(perm=(2, 0, 3, 1, 4)), y)
        q, k, v = (cut(graph, y, i) for i in range(3))
        keys = apply(graph, Transpose(perm=(0, 1, 3, 2)), k)
        return joined(graph, attend(graph, q, keys, v, Spelling(of_scores=times(0.3))), 24)

    return make(build, (2, 5, 24))


def by_split(graph: Graph, y: Value, i: int) -> Value:
    for reader in y.consumers:
        return apply(graph, Squeeze(), reader.outputs[i], ints(0))
    parts = graph.insert(Split(axis=0, num_outputs=3), [y], 3)
    return apply(graph, Squeeze(), parts.outputs[i], ints(0))


def by_gather(graph: Graph, y: Value, i: int) -> Value:
    return apply(graph, Gather(axis=0), y, np.array(i - 3 if i == 2 else i, np.int64))


def by_slice(graph: Graph, y: Value, i: int) -> Value:
    start, end = (ints(-1), ints(99)) if i == 2 else (ints(i), ints(i + 1))
    return apply(graph, Squeeze(), apply(graph, Slice(), y, start, end, ints(0)), ints(0))


@pytest.mark.parametrize("cut", [by_split, by_gather, by_slice])
def test_one_product_that_is_cut(cut: Callable[[Graph, Value, int], Value]) -> None:
    graph = unbound(cut)
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == log.counts["join_heads"] == 1
    assert kinds(after) == ["MatMul", "Split", "Attention"]
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize("batch", [2, "batch"])
def test_keys_that_are_transposed_as_a_stack_of_matrices(batch: Dim) -> None:
    """The scaled_dot_product_attention of torch.onnx, whose scale is a root on either side."""

    def build(graph: Graph, x: Value) -> Value:
        q, k, v = (by_head(graph, x, 3, 0, 2, 1, 3) for _ in range(3))
        flat = apply(graph, Reshape(), k, ints(-1, 5, SIZE))
        keys = apply(graph, Transpose(perm=(0, 2, 1)), flat)
        keys = apply(graph, Reshape(), keys, ints(-1, 3, SIZE, 5))
        how = Spelling(times(SIZE**-0.25), times(SIZE**-0.25))
        return joined(graph, attend(graph, q, keys, v, how), 24)

    graph = make(build, (batch, 5, 24))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == log.counts["join_heads"] == 1
    assert the_attention(after).scale == pytest.approx(SIZE**-0.5)
    assert not {"Transpose", "Mul"} & set(kinds(after))
    assert_same(graph, after, 2, 5, 24, rel=5e-6)


@pytest.mark.parametrize("spelling", [Spelling(), Spelling(of_scores=plus(normal(2, 5, 5)))])
def test_three_axes(spelling: Spelling) -> None:
    """A batch of heads, as nn.MultiheadAttention has it."""

    def build(graph: Graph, x: Value) -> Value:
        # Larger weights make scores by which rounding is magnified.
        q, k, v = (apply(graph, MatMul(), x, normal(24, SIZE) / 5) for _ in range(3))
        keys = apply(graph, Transpose(perm=(0, 2, 1)), k)
        return attend(graph, q, keys, v, spelling)

    graph = make(build, (2, 5, 24))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert the_attention(after).kv_num_heads == 1
    assert_same(graph, after, rel=5e-6)


@pytest.mark.parametrize(("axis", "fuses"), [(None, True), (3, True), (2, False)])
def test_scores_that_are_counted_by_other_axes(axis: int | None, fuses: bool) -> None:
    """Heads of unknown number are counted by the scores' shape, queries by nothing constant."""
    sizes: list[Dim] = [2, 1, 4, 3, SIZE]
    if axis is not None:
        sizes[axis] = "unknown"

    def build(graph: Graph, x: Value) -> Value:
        known = apply(graph, Reshape(), x, ints(2, 1, 4, 3, SIZE))
        q = apply(graph, Transpose(perm=(0, 1, 3, 2, 4)), x)
        keys = apply(graph, Transpose(perm=(0, 1, 3, 4, 2)), known)
        scores = apply(graph, MatMul(), q, keys)
        scores = apply(graph, Reshape(), scores, ints(2, 3, -1 if axis == 2 else 4, 4))
        v = apply(graph, Reshape(), known, ints(2, 3, 4, SIZE))
        return apply(graph, MatMul(), apply(graph, Softmax(), scores), v)

    graph = make(build, tuple(sizes))
    after, log = optimised(graph)
    assert log.counts.get("fuse_attention", 0) == fuses
    assert_same(graph, after, 2, 1, 4, 3, SIZE, rel=5e-6)


def test_repeated_heads() -> None:
    """Llama's repeat_kv: a head of keys and values for two of the queries."""

    def repeated(graph: Graph, x: Value) -> Value:
        wide = apply(graph, Unsqueeze(), x, ints(2))
        wide = apply(graph, Expand(), wide, ints(2, 2, 2, 5, SIZE))
        return apply(graph, Reshape(), wide, ints(2, 4, 5, SIZE))

    def build(graph: Graph, x: Value) -> Value:
        q = by_head(graph, x, 4, 0, 2, 1, 3)
        k, v = (repeated(graph, by_head(graph, x, 2, 0, 2, 1, 3)) for _ in range(2))
        keys = apply(graph, Transpose(perm=(0, 1, 3, 2)), k)
        return joined(graph, attend(graph, q, keys, v, Spelling()), 4 * SIZE)

    graph = make(build, (2, 5, 24))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == log.counts["join_heads"] == 1
    op = the_attention(after)
    assert (op.q_num_heads, op.kv_num_heads) == (4, 2)
    assert "Expand" not in kinds(after)
    assert_same(graph, after, rel=5e-6)


def widened(graph: Graph, x: Value) -> Value:
    return apply(graph, Cast(to=float32), x)


WIDENED = {
    "": widened,
    "mask behind": then(widened, plus(normal(5, 5))),
    "masks on both sides": then(
        plus(normal(1, 5).astype(np.float16)), widened, plus(np.float32(9) * CAUSAL)
    ),
    "scale and fill": then(widened, times(0.5), hiding(CAUSAL, -1e38)),
}


@pytest.mark.parametrize("guards", [False, True])
@pytest.mark.parametrize("of_scores", WIDENED.values(), ids=WIDENED)
def test_softmax_in_float32_of_half_floats(
    of_scores: Callable[[Graph, Value], Value], guards: bool
) -> None:
    def narrowed(graph: Graph, x: Value) -> Value:
        return apply(graph, Cast(to=float16), guarded(graph, x) if guards else x)

    def build(graph: Graph, x: Value) -> Value:
        half = apply(graph, Cast(to=float16), x)
        keys = apply(graph, Transpose(perm=(0, 2, 1)), half)
        how = Spelling(of_scores=of_scores, of_weights=narrowed)
        return apply(graph, Cast(to=float32), attend(graph, half, keys, half, how))

    graph = make(build, (2, 5, 8))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert "Softmax" not in kinds(after)
    assert kinds(after).count("Cast") == 2
    x = normal(2, 5, 8)
    found, wanted = (run(each, x, np.float32) for each in (after, graph))
    assert np.linalg.norm(found - wanted) <= 2e-3 * np.linalg.norm(wanted)
