"""Seeded random numbers are the same on every backend, and are those of Philox as published."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy.numerics import philox
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64

from .cubins import assert_plans_compile
from .dry import launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, results_of, sample, scalar

COMPILES = {"elementwise/random.cu"}
#: Known answers of Random123 (philox4x32, 10 rounds): four words of the counter, two of the key,
#: and four that come out.
KNOWN = (
    "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
)


@pytest.mark.parametrize("known", KNOWN)
def test_known_answers(known: str) -> None:
    *counter, k0, k1, a, b, c, d = (int(word, 16) for word in known.split())
    given: Any = tuple(np.array([word], np.uint64) for word in counter)
    assert [int(word[0]) for word in philox.philox(given, (k0, k1))] == [a, b, c, d]


def test_more_numbers_than_32_bits_count() -> None:
    """Every pair of them has a thread, and a counter of 64 bits."""
    graph = single("RandomUniform", [], shape=(2**33 + 1,), dtype=float16, seed=0.0)
    (launch,) = launches(planned(graph))
    assert launch.grid[0] * launch.block >= 2**32 + 1
    assert launch.arguments["count"] == 2**33 + 1


def test_numbers_depend_on_their_position_alone() -> None:
    whole = philox.uniform(5, (3 * philox.BLOCK,))
    np.testing.assert_array_equal(philox.uniform(5, (7, 11)).reshape(-1), whole[:77])
    assert len(np.unique(whole)) == whole.size
    assert 0 <= whole.min() < 1e-3 < 1 - 1e-3 < whole.max() < 1
    drawn = philox.normal(5, whole.shape)
    assert abs(drawn.mean()) < 0.02
    assert abs(drawn.std() - 1) < 0.02


def samples() -> list[Sample]:
    """Return every operator that draws, with a seed."""
    found = [
        sample(kind, [normal(3, 67)], dtype=dtype, seed=seed)
        for kind, dtype, seed in product(
            ("RandomUniformLike", "RandomNormalLike"),
            (float16, bfloat16, float32, float64),
            (0.0, 2.5),
        )
    ]
    found += [
        sample("RandomUniform", [], shape=(5, 7), low=-3.0, high=0.7, seed=1.0),
        sample("RandomNormal", [], shape=(5, 7), mean=0.3, scale=2.0, seed=1.0),
        sample("Bernoulli", [np.abs(normal(301)) % 1], seed=3.0),
        sample("Multinomial", [normal(3, 1000)], sample_size=40, seed=3.0),
        sample("Multinomial", [normal(4, 3).astype(float16)], sample_size=301, seed=4.0),
        sample("Dropout", [normal(1000), scalar(0.3), scalar(1, bool)], outputs=2, seed=7),
        sample("Dropout", [normal(9).astype(float16), None, scalar(1, bool)], outputs=2, seed=0),
        sample("Dropout", [normal(9), scalar(1.0), scalar(1, bool)], outputs=2, seed=-1),
    ]
    return found


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    assert_plans_compile([each.graph for each in samples()], target, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("each", samples(), ids=str)
def test_numbers_are_those_of_numpy(each: Sample, emulated: CudaBackend) -> None:
    same(each, emulated)


def same(each: Sample, backend: Any) -> None:
    """Hold a backend's numbers against numpy's: bit by bit, but for logarithms and cosines."""
    is_normal = each.graph.nodes[0].kind.startswith("RandomNormal")
    wanted = results_of(each, open_backends("numpy", OPTIONS))
    for mine, theirs in zip(results_of(each, [backend]), wanted, strict=True):
        assert mine.dtype == theirs.dtype
        if is_normal:
            near(mine, theirs)
        else:
            np.testing.assert_array_equal(mine.view(np.uint8), theirs.view(np.uint8))


def near(mine: Any, theirs: Any) -> None:
    eps: dict[DType, float] = {float16: 2**-10, bfloat16: 2**-7, float32: 2**-23, float64: 1e-14}
    np.testing.assert_allclose(
        mine.astype(float64), theirs.astype(float64), rtol=eps[mine.dtype], atol=1e-15
    )
