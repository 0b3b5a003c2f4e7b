"""Sampling in a graph: the tokens of `SamplingSettings`, which has the formulas of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import int64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.options import Options
from tercet.runtime.session.bans import NO_BANS, TokenBans
from tercet.runtime.session.model import Model
from tercet.runtime.session.node_writer import NodeWriter
from tercet.runtime.session.sampling import NOT_FINITE, Following, SamplingSettings
from tercet.runtime.session.sampling_graph import SamplingGraph

from ..generation.draws import DRAWS

HOWS = [SamplingSettings(0.0, repetition_penalty=1.7), *DRAWS]
BATCH, ROOM, VOCABULARY, READ = 3, 20, 700, 12
BANS = TokenBans(tuple(range(0, 700, 2)), ((1,), (700,)), 3, tuple(range(1, 400, 4)))
CASES = [
    *((how, NO_BANS) for how in HOWS),
    *((how, BANS) for how in (SamplingSettings(), HOWS[-1])),
]


def graph_of(
    chooses: SamplingGraph, dtype: Any, batch: int = BATCH, vocabulary: int = VOCABULARY
) -> Graph:
    graph = Graph("sampling")
    logits = graph.add_input("logits", TensorType(np.dtype(dtype), (batch, vocabulary)))
    tokens = graph.add_input("tokens", TensorType(int64, (batch, ROOM + 1)))
    count = graph.add_input("count", TensorType(int64, (1,)))
    last = graph.add_input("last", TensorType(int64, (batch, 1)))
    types = chooses.types(batch, ROOM).items()
    state = {name: graph.add_input(name, type_) for name, type_ in types}
    add = NodeWriter(graph)
    token, greatest = chooses(add, logits, state, tokens, last, count)
    graph.set_outputs({"token": token, "greatest": greatest})
    graph.sweep()
    for value in graph.inputs:
        if not value.consumers:
            graph.drop_input(value)
    infer(graph)
    return graph


def logits_of(
    dtype: Any, spread: float, seed: int, batch: int = BATCH, vocabulary: int = VOCABULARY
) -> Array:
    """Logits of which many are equal, and some impossible."""
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal((batch, vocabulary)) * spread, 1).astype(dtype)
    logits[:, rng.integers(0, vocabulary, 40)] = -np.inf
    return logits


def sampled(
    model: Model,
    how: SamplingSettings,
    logits: Array,
    seed: int,
    bans: TokenBans = NO_BANS,
    least: tuple[int, ...] = (),
) -> tuple[Array, Array]:
    """Return the tokens of a model of `graph_of`, and those of the host, [batch]."""
    batch, vocabulary = logits.shape
    tokens = np.random.default_rng(seed).integers(0, vocabulary, (batch, ROOM + 1))
    tokens[:, READ - 3 : READ + 1] = tokens[:, 1:5]
    least = least or tuple(range(READ, READ + batch))
    following = Following(how, seed, bans=bans, least=least)
    state = SamplingGraph.of(how, bans).state(following, batch, ROOM, READ)
    feeds = {"logits": logits, "tokens": tokens, "count": np.array([READ]), **state}
    feeds["last"] = np.full((batch, 1), READ)
    found = model.run({info.name: feeds[info.name] for info in model.inputs})
    token, greatest = (np.asarray(found[name]) for name in ("token", "greatest"))
    seen = tokens[:, : READ + 1].tolist()
    wanted = following.tokens(logits, seen, how.draws(batch, seed, 1)[:, 0])
    return np.where(np.isfinite(greatest), token, NOT_FINITE)[:, 0], wanted


@pytest.mark.parametrize("backend", ["numpy", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize(("how", "bans"), CASES, ids=str)
def test_tokens_are_those_of_the_host(
    how: SamplingSettings, bans: TokenBans, dtype: Any, backend: str
) -> None:
    backends = open_backends(backend, Options())
    graph = graph_of(SamplingGraph.of(how, bans), dtype)
    with Model(graph, backends, Options(), evaluate) as model:
        for seed, spread in enumerate((0.0, 0.05, 1.0, 3.0)):
            logits = logits_of(dtype, spread, seed)
            np.testing.assert_array_equal(*sampled(model, how, logits, seed, bans))


@pytest.mark.parametrize(
    ("bans", "least"),
    [
        (TokenBans(words=((2**63, 3), (5, 2**70))), 0),
        (TokenBans(ends=(3, 2**70)), 2**70),
        (TokenBans(always=(2**70, 3)), 0),
        (TokenBans(repeated=2**70), 0),
        (TokenBans(always=tuple(range(9))), 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("forbidden", [0.0, np.inf, np.nan])
def test_extremes_are_those_of_the_host(bans: TokenBans, least: int, forbidden: float) -> None:
    """Numbers that no token has; forbidden tokens with infinite scores, or with none."""
    logits = np.arange(18, dtype=np.float32).reshape(2, 9)
    logits[0, 3] = forbidden
    graph = graph_of(SamplingGraph.of(SamplingSettings(), bans), np.float32, 2, 9)
    with Model(graph, open_backends("numpy", Options()), Options(), evaluate) as model:
        found, wanted = sampled(model, SamplingSettings(), logits, 0, bans, (least, least))
    np.testing.assert_array_equal(found, wanted)


def test_settings_are_data() -> None:
    """Two settings with the same filters have one plan."""
    first, second = (
        SamplingSettings(0.7, top_k=33, top_p=0.9),
        SamplingSettings(1.2, top_k=64, top_p=0.5, seed=4),
    )
    assert SamplingGraph.of(first) == SamplingGraph.of(second)
    assert SamplingGraph.of(first) != SamplingGraph.of(SamplingSettings(0.7, top_k=65, top_p=0.9))
    assert SamplingGraph.of(SamplingSettings(seed=8)) == SamplingGraph()
