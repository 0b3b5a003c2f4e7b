"""MoEGroupRouter: which experts compute a token, chosen by groups."""

from __future__ import annotations

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Float32, Results, T, contrib

#: The least score whose logarithm is taken.
_LEAST = 1e-20


@contrib("MoEGroupRouter", outputs=(0, 3))
def moe_group_router(
    b: NodeBuilder,
    logits: T,
    expert_bias: Float32,
    projection_weight: T | None = None,
    *,
    group_topk: int = 2,
    n_group: int = 1,
    router_sentinel: float = -10000.0,
    top_k: int,
    topk_group: int = 1,
) -> Results:
    """Logarithms of the sigmoids of the chosen experts, or all sigmoids without a choice."""
    experts = b.need_extent(expert_bias, 0)
    x = b.cast(logits, dtypes.float32)
    if projection_weight is not None:
        x = b.MatMul(x, b.transpose(b.cast(projection_weight, dtypes.float32), 1, 0))
    scores = b.Sigmoid(b.reshape(x, -1, experts))
    ranks = b.Add(scores, expert_bias)
    if not b.wants(0):
        return None, ranks, scores
    if b.wants(1) or b.wants(2) or projection_weight is not None:
        raise b.error("router_probs excludes projection_weight, selection_scores, router_weights")
    if n_group < 1 or experts % n_group or not 1 <= topk_group <= n_group:
        raise b.error(f"n_group={n_group}, topk_group={topk_group} of {experts} experts")
    if not 1 <= top_k <= topk_group * (experts // n_group) or group_topk < 1:
        raise b.error(f"top_k={top_k}, group_topk={group_topk} of {experts} experts")
    if topk_group < n_group:
        ranks = _within_groups(b, ranks, experts, n_group, topk_group, group_topk)
    chosen = _chosen(b, ranks, top_k)
    logs = b.Log(b.Max(scores, b.number(_LEAST, scores)))
    probs = b.Where(chosen, logs, b.number(router_sentinel, logs))
    return b.cast(probs, b.dtype(logits)), None, None


def _chosen(b: NodeBuilder, x: str, count: int) -> str:
    """Return where the greatest elements of each row are."""
    _, places = b.several("TopK", 2, x, b.ints(count), axis=-1)
    no, yes = (b.constant(np.array(each)) for each in (False, True))
    nothing, every = b.Expand(no, b.Shape(x)), b.Expand(yes, b.Shape(places))
    return b.ScatterElements(nothing, places, every, axis=-1)


def _within_groups(
    b: NodeBuilder, ranks: str, experts: int, groups: int, kept: int, counted: int
) -> str:
    """Return scores with -inf outside of the groups whose best scores have the greatest sums."""
    size = experts // groups
    by_group = b.reshape(ranks, -1, groups, size)
    best, _ = b.several("TopK", 2, by_group, b.ints(min(counted, size)), axis=-1)
    sums = b.ReduceSum(best, b.ints(-1), keepdims=0)
    inside = b.Unsqueeze(_chosen(b, sums, kept), b.ints(2))
    lowest = b.number(float("-inf"), by_group)
    return b.reshape(b.Where(inside, by_group, lowest), -1, experts)
