"""Masks that are windows become attributes of Attention; all others stay."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, And, GreaterOrEqual, Where
from tercet.runtime.ops.movement import Slice
from tercet.runtime.ops.reduce import ReduceMean

from .graphs import apply, assert_same, make, normal, optimised

HEADS, SIZE = 2, 4
LOWEST = float(np.finfo(np.float32).min)


def seen(queries: int, keys: int, left: int = -1, right: int = -1) -> np.ndarray:
    """Return which keys are seen, the last query standing at the last key."""
    distance = np.arange(keys) - (np.arange(queries) + keys - queries)[:, None]
    return ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right))


def added(shown: np.ndarray, fill: float = -np.inf) -> np.ndarray:
    return np.where(shown, 0, fill).astype(np.float32)


def network(mask: np.ndarray, past: int = 0, beside: bool = False, length: int = 6) -> Graph:
    """An Attention of the input with itself; `beside` it hides keys by their first element, too."""

    def build(g: Graph, x: Value) -> Value:
        whole = g.constant(mask)
        if beside:
            keys = apply(g, GreaterOrEqual(), g.constant(normal(1, 1, 1, length)), scores(g, x))
            whole = apply(g, And(), keys, whole)
        caches = [g.constant(normal(1, HEADS, past, SIZE)) for _ in range(2)] if past else []
        return apply(g, Attention(), x, x, x, whole, *caches)

    return make(build, (1, HEADS, length, SIZE))


def scores(g: Graph, x: Value) -> Value:
    return apply(g, ReduceMean(), x, np.array([0, 1, 2, 3]))


def found(graph: Graph) -> tuple[Attention, bool]:
    """Return the Attention, and whether it has a mask."""
    (node,) = (node for node in graph.nodes if isinstance(node.op, Attention))
    assert isinstance(node.op, Attention)
    return node.op, len(node.inputs) > 3 and node.inputs[3] is not None


WINDOWS = {
    "causal": (seen(6, 6, right=0), 0, Attention(is_causal=1)),
    "added": (added(seen(6, 6, right=0)), 0, Attention(is_causal=1)),
    "lowest": (added(seen(6, 6, right=0), LOWEST), 0, Attention(is_causal=1)),
    "of every head": (
        np.broadcast_to(seen(6, 6, right=0), (1, HEADS, 6, 6)).copy(),
        0,
        Attention(is_causal=1),
    ),
    "sliding": (seen(6, 6, 2, 0), 0, Attention(is_causal=1, left_window_size=2)),
    "both sides": (seen(6, 6, 1, 2), 0, Attention(left_window_size=1, right_window_size=2)),
    "one side": (seen(6, 6, left=3), 0, Attention(left_window_size=3)),
    "everything": (seen(6, 6), 0, Attention()),
    "behind a past": (seen(6, 9, 4, 0), 3, Attention(is_causal=1, left_window_size=4)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    mask, past, wanted = WINDOWS[name]
    graph = network(mask, past)
    after, log = optimised(graph)
    assert log.counts["lift_windows"] == 1
    assert found(after) == (wanted, False)
    assert_same(graph, after)


def test_what_is_hidden_besides_stays_a_mask() -> None:
    graph = network(seen(6, 6, right=0), beside=True)
    after, _ = optimised(graph)
    assert found(after) == (Attention(is_causal=1), True)
    assert_same(graph, after)


@pytest.mark.parametrize("fill", [-np.inf, LOWEST])
def test_a_window_that_is_added_to_padding(fill: float) -> None:
    """Query 0 sees no key but by both masks; with two great numbers it sees what one hides."""

    def build(g: Graph, x: Value) -> Value:
        first: np.ndarray = np.array([[[[9, -9, -9, -9, -9, 9]]]], np.float32)
        keys = apply(g, GreaterOrEqual(), g.constant(first), scores(g, x))
        padding = apply(g, Where(), keys, np.array(LOWEST, np.float32), np.zeros((), np.float32))
        mask = apply(g, Add(), padding, g.constant(added(seen(6, 6, right=0), fill)))
        return apply(g, Attention(), x, x, x, mask)

    graph = make(build, (1, HEADS, 6, SIZE))
    after, _ = optimised(graph)
    assert found(after) == (Attention(is_causal=int(fill == -np.inf)), True)
    assert_same(graph, after)


def test_a_bias_that_is_added_twice_stays_twice() -> None:
    def build(g: Graph, x: Value) -> Value:
        bias = apply(g, Add(), x, np.zeros((), np.float32))
        bias = apply(g, ReduceMean(), bias, np.array([3]))
        bias = apply(g, Add(), bias, normal(1, 1, 1, 6))
        twice = apply(g, Add(), bias, bias)
        mask = apply(g, Add(), twice, g.constant(added(seen(6, 6, right=0))))
        return apply(g, Attention(), x, x, x, mask)

    graph = make(build, (1, HEADS, 6, SIZE))
    after, _ = optimised(graph)
    assert found(after) == (Attention(is_causal=1), True)
    assert_same(graph, after)


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize(
    ("queries", "keys", "wanted"),
    [
        (6, 6, Attention(is_causal=1)),
        (4, 6, Attention(right_window_size=2)),
        (1, 6, Attention()),
        (6, 4, None),  # the last query is behind the last key
    ],
)
def test_queries_and_keys(queries: int, keys: int, wanted: Attention | None, past: int) -> None:
    """Attention counts positions from the past, wherever a mask has its diagonal."""

    def build(g: Graph, x: Value) -> Value:
        q, k = (
            apply(g, Slice(), x, *(np.array([n], np.int64) for n in (0, count, 2)))
            for count in (queries, keys)
        )
        mask = g.constant(seen(queries, past + keys, right=0))
        caches = [g.constant(normal(1, HEADS, past, SIZE)) for _ in range(2)] if past else []
        return apply(g, Attention(), q, k, k, mask, *caches)

    graph = make(build, (1, HEADS, 6, SIZE))
    after, _ = optimised(graph)
    assert found(after) == (wanted or Attention(), wanted is None)
    assert_same(graph, after)


MASKS = {
    "above the diagonal": seen(6, 6, right=0)[::-1].copy(),
    "a hole": seen(6, 6, right=0) & (np.arange(6) != 2),
    "rows that see nothing": np.tri(6, k=-1, dtype=bool),
    "a prefix that all see": seen(6, 6, right=0) | (np.arange(6) < 3),
    "another first row": np.tri(6, dtype=bool) | (np.arange(6) == 0)[:, None],
    "biases": normal(6, 6),
    "hidden by little": added(seen(6, 6, right=0), -1e4),
    "other heads": np.stack([seen(6, 6, right=0), seen(6, 6)])[None],
    "keys alone": np.array([[True] * 5 + [False]]),
}


@pytest.mark.parametrize("name", MASKS)
def test_other_masks_stay(name: str) -> None:
    graph = network(MASKS[name])
    after, log = optimised(graph)
    assert log.counts.get("lift_windows", 0) == 0
    assert found(after) == (Attention(), True)
    assert_same(graph, after)


def test_sums_of_masks() -> None:
    def build(g: Graph, x: Value) -> Value:
        bias = apply(g, Add(), scores(g, x), g.constant(normal(HEADS, 6, 6)))
        mask = apply(g, Add(), bias, g.constant(added(seen(6, 6, right=0))))
        return apply(g, Attention(), x, x, x, mask)

    graph = make(build, (1, HEADS, 6, SIZE))
    after, log = optimised(graph)
    assert log.counts["lift_windows"] == 1
    assert found(after) == (Attention(is_causal=1), True)
    assert_same(graph, after)
