"""Draws: formulas of transformers' processors in float64, and what a seed decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from tercet.generation.settings import generate as settings
from tercet.runtime.ir.types import Array
from tercet.runtime.session.sampling import MAX_DRAW, SamplingSettings

from .draws import DRAWS

DECODERS = Path(__file__).parents[1] / "producers" / "decoders"


def softmax(x: Array) -> Array:
    e = np.exp(x - x[np.isfinite(x)].max())
    return e / e.sum()


def warped(logits: Array, seen: list[int], how: SamplingSettings) -> Array:
    """The formulas, one token after the other, in the order that transformers applies them in."""
    x = [float(v) for v in logits]
    for token in set(seen):
        penalty = how.repetition_penalty
        x[token] = x[token] * penalty if x[token] < 0 else x[token] / penalty
    x = [v / how.temperature for v in x]
    if how.top_k:
        least = sorted(x, reverse=True)[min(how.top_k, len(x)) - 1]
        x = [v if v >= least else -np.inf for v in x]
    p = softmax(np.array(x))
    if how.top_p < 1:
        mass, kept = 0.0, set()
        for token in sorted(range(len(x)), key=lambda i: (-p[i], i)):
            if mass < how.top_p:
                kept.add(token)
            mass += p[token]
        x = [v if i in kept else -np.inf for i, v in enumerate(x)]
        p = softmax(np.array(x))
    x = [v if p[i] >= how.min_p * p.max() else -np.inf for i, v in enumerate(x)]
    return softmax(np.array(x))


@pytest.mark.parametrize("how", DRAWS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_probabilities_are_those_of_the_formulas(how: SamplingSettings, dtype: type) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        logits = (rng.standard_normal(60) * 3).astype(dtype)
        seen = rng.integers(0, 60, 10).tolist()
        found = how.probabilities(logits, seen)
        np.testing.assert_allclose(found, warped(logits, seen, how), 1e-12, 1e-15)


@pytest.mark.parametrize("how", DRAWS, ids=str)
@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0], ids="spread={}".format)
def test_large_vocabularies_are_drawn_from_by_the_same_formulas(
    how: SamplingSettings, spread: float
) -> None:
    """The greatest are found without sorting all: many are equal, few, or the last of a block."""
    rng = np.random.default_rng(2)
    logits = np.round(rng.standard_normal(9001) * spread, 2).astype(np.float32)
    logits[[0, 700, 8999, 9000]] += np.float32(4 * spread)
    seen = rng.integers(0, 9001, 50).tolist()
    wanted = warped(logits, seen, how)
    found = how.probabilities(logits, seen)
    np.testing.assert_array_equal(found > 0, wanted > 0)
    np.testing.assert_allclose(found, wanted, 1e-11, 1e-15)


@pytest.mark.parametrize("name", ["optimum_llama", "optimum_gpt2", "optimum_qwen3"])
def test_probabilities_are_those_of_transformers(name: str) -> None:
    """Which has float64 logits of its own network: those of the file differ by rounding."""
    told = json.loads((DECODERS / name / "expected.json").read_text())
    how = settings({}, None, **told["warped"]).sampling
    with tercet.load(DECODERS / name / "model.onnx") as model:
        ids = np.array([told["ids"][0]], np.int64)
        feeds: dict[str, Array] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        feeds["position_ids"] = np.arange(ids.shape[1])[None]
        for each in model.inputs:
            if each.name.startswith("past"):
                shape = [0 if isinstance(size, str) else size or 0 for size in each.shape or ()]
                feeds[each.name] = np.zeros((1, *shape[1:]), np.float32)
        logits = model.run(feeds)["logits"][0, -1]
    found = how.probabilities(logits, told["ids"][0])
    wanted = np.array(told["probabilities"])
    np.testing.assert_array_equal(found > 0, wanted > 0)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-7)


def test_ties_of_the_last_of_top_k_stay() -> None:
    found = SamplingSettings(1.0, top_k=2).probabilities(np.array([1.0, 3.0, 2.0, 2.0, 0.0]))
    assert (found > 0).tolist() == [False, True, True, True, False]


def test_impossible_tokens_are_never_drawn() -> None:
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    draws = [0.0, MAX_DRAW, *SamplingSettings(1.0).draws(1, 0, 200)[0]]
    assert {SamplingSettings(1.0).choose(logits, (), draw) for draw in draws} == {1, 3}


def test_the_greatest_draw_takes_the_last_token_that_can_be() -> None:
    rng = np.random.default_rng(3)
    for size in range(1, 200):
        logits = np.append(rng.standard_normal(size), -np.inf)
        assert SamplingSettings(1.0).choose(logits, (), MAX_DRAW) == size - 1


def test_draws_have_the_probabilities() -> None:
    """Pearson's chi-squared over 20,000 draws of a fixed seed."""
    how = SamplingSettings(1.0, seed=5)
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5])
    draws = how.draws(1, 0, 20000)[0]
    counts = np.bincount([how.choose(logits, (), draw) for draw in draws], minlength=5)
    wanted = how.probabilities(logits) * 20000
    assert ((counts - wanted) ** 2 / wanted).sum() < 18.5  # 0.1 % of four degrees of freedom


def test_greedy_takes_the_first_of_the_highest() -> None:
    assert SamplingSettings().choose(np.array([1.0, 5.0, 5.0]), ()) == 1
    assert SamplingSettings(repetition_penalty=2.0).choose(np.array([3.0, 4.0]), [1]) == 0


def test_draws_are_the_numbers_of_philox_wherever_they_begin() -> None:
    how = SamplingSettings(1.0, seed=2**63 - 1)
    wanted = [
        np.random.Generator(np.random.Philox(key=[how.seed, row])).random(300) for row in range(3)
    ]
    np.testing.assert_array_equal(how.draws(3, 0, 300), wanted)
    for first in (1, 2, 3, 4, 7, 150):
        np.testing.assert_array_equal(
            how.draws(3, first, 30), how.draws(3, 0, 300)[:, first:][:, :30]
        )
    steps = how.each_draw(3, 5)
    for number in range(5, 200):
        np.testing.assert_array_equal(next(steps), how.draws(3, number, 1)[:, 0])


def test_sequences_draw_from_streams_of_their_own() -> None:
    first, second = SamplingSettings(1.0, seed=3).draws(2, 0, 4)
    assert first.tolist() != second.tolist()
    assert first.tolist() == SamplingSettings(1.0, seed=3).draws(1, 0, 4)[0].tolist()


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("search", "given", "temperature"),
    [
        ({}, {}, 0.0),
        ({}, {"top_p": 0.9}, 1.0),
        ({}, {"repetition_penalty": 1.1}, 0.0),
        ({"temperature": 0.6}, {}, 0.6),
        ({"temperature": 0.6}, {"temperature": 0}, 0.0),
        ({"temperature": 0.6}, {"top_k": 5}, 0.6),
    ],
)
def test_who_asks_for_draws(
    search: dict[str, float], given: dict[str, Any], temperature: float
) -> None:
    assert settings(search, None, **given).sampling.temperature == temperature


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"temprature": 1}, "there is no option 'temprature'; did you mean 'temperature'"),
        ({"temperature": -1}, "temperature=-1: expected 0, or a number from 1e-30"),
        ({"top_p": 1.5}, "top_p=1.5: expected a number from 0 to 1"),
        ({"top_p": 0}, "top_p=0"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"num_return_sequences": 0}, "num_return_sequences=0"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"seed": -1}, "seed=-1"),
        ({"stop": ""}, "stop"),
        ({"stop": 5}, "stop=5"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, Any], text: str) -> None:
    with pytest.raises(tercet.UsageError) as caught:
        settings({}, None, **given)
    assert text in str(caught.value)
