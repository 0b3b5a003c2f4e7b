"""Random graphs of an operator, and of what is read beside its results, on emulated GPUs.

$TERCET_SAMPLES says how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from random import Random

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.session.model import Model

from .emulator import needs_compiler
from .operand_drawing import Drawing
from .operand_graphs import FAMILIES, drawn

SAMPLES = int(os.environ.get("TERCET_SAMPLES", "16"))
#: Those of few multiprocessors have several tiles for each of their blocks.
TARGETS = A100, H200, Target("sm_90a", 2, H200.shared), Target("sm_90a", 24, H200.shared)
#: What would leave fewer operands beside results.
SKIPPED = ("fold_constants",), ("fold_constants", "merge_linear", "fold_affine")
#: What results may be off by, as a share of the greatest one, at least of 1.
ERROR = {float16: 6e-3, bfloat16: 5e-2, float32: 5e-5}


def results_of(each: Drawing, backend: Backend, skip: tuple[str, ...]) -> Mapping[str, Array]:
    with Model(each.graph, [backend], Options(skip=skip), evaluate) as model:
        return {name: np.asarray(data) for name, data in model.run(each.feeds).items()}


def limit_of(each: Drawing, stored: DType) -> float:
    rough = float16 in (stored, *(v.tensor.dtype for v in each.apart))
    return max(ERROR[each.dtype], ERROR[float16] if rough else 0.0)


def compare_drawn(seed: int, backend: Backend, skip: tuple[str, ...]) -> None:
    """Compare with float64, of the same rounded numbers."""
    (numpy,) = open_backends("numpy", Options())
    each, wide = drawn(seed), drawn(seed, wide=True)
    found = results_of(each, backend, skip)
    for name, want in results_of(wide, numpy, skip).items():
        got = found[name]
        limit = limit_of(each, got.dtype) * np.abs(want).max(initial=1.0)
        np.testing.assert_allclose(got.astype(float64), want, rtol=0, atol=limit, err_msg=str(each))


@needs_compiler
@pytest.mark.parametrize("seed", range(SAMPLES))
def test_results(seed: int, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(-seed)
    target, skip = dice.choice(TARGETS), dice.choice(SKIPPED)
    monkeypatch.setattr(emulated.device.compiler, "target", target)
    compare_drawn(seed, emulated, skip)


def test_all_families_are_drawn() -> None:
    families = {drawn(seed).said[0] for seed in range(200)}
    assert families == set(FAMILIES)


def test_a_seed_is_a_graph() -> None:
    """The wide one has the same nodes, but for weights of a few bits."""
    for seed in range(40):
        one, again, wide = drawn(seed), drawn(seed), drawn(seed, wide=True)
        kinds = [node.kind for node in one.graph.nodes]
        assert kinds == [node.kind for node in again.graph.nodes]
        plain = [kind.replace("com.microsoft::MatMulNBits", "MatMul") for kind in kinds]
        assert plain == [node.kind for node in wide.graph.nodes]
        assert all(np.array_equal(data, again.feeds[name]) for name, data in one.feeds.items())
        assert all((wide.feeds[name] == data).all() for name, data in one.feeds.items())
