"""Attention whose heads become rows behind it: they are stored as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.session.model import Model

from .dry import DryCompiler, DryDevice, launches, normal, planned
from .emulator import needs_compiler


@dataclass(frozen=True)
class Joined:
    """Queries of a prompt, and keys of it and what was before.

    Attributes:
        queries, keys: how many.
        heads: of queries, and of keys and values.
        size: of a head.
        dtype: of everything.
        perm: of the Transpose.
        read: whether something else reads the heads.
    """

    queries: int = 20
    keys: int = 40
    heads: tuple[int, int] = (4, 2)
    size: int = 16
    dtype: Any = float16
    perm: tuple[int, ...] = (0, 2, 1, 3)
    read: bool = False

    def feeds(self) -> dict[str, Array]:
        of_q, of_k = self.heads
        past = (2, of_k, self.keys, self.size)
        dims = {"q": (2, of_q, self.queries, self.size), "k": past, "v": past}
        return {name: normal(*each).astype(self.dtype) for name, each in dims.items()}

    def graph(self) -> Graph:
        graph = Graph("joined")
        inputs = [
            graph.add_input(name, TensorType(data.dtype, data.shape))
            for name, data in self.feeds().items()
        ]
        y = graph.insert(Attention(is_causal=1), inputs).output
        moved = graph.insert(Transpose(perm=self.perm), [y]).output
        shape = graph.constant(np.array([2, -1, self.heads[0] * self.size]))
        rows = graph.insert(Reshape(), [moved, shape]).output
        graph.set_outputs({"y": rows, **({"heads": y} if self.read else {})})
        infer(graph)
        return graph


CASES = {
    "tiles": Joined(),
    "tiles of bfloat16": Joined(queries=70, keys=70, size=40, dtype=bfloat16),
    "few queries": Joined(queries=3, keys=200, heads=(6, 3)),
    "few keys": Joined(queries=5, keys=9),
}
OTHERS = {
    "float32": Joined(dtype=float32),
    "another order": Joined(perm=(0, 1, 3, 2)),
    "other readers": Joined(read=True),
}


def entries(case: Joined, target: Target) -> list[str]:
    device = DryDevice(compiler=DryCompiler(target=target))
    return [launch.entry for launch in launches(planned(case.graph(), device))]


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_heads_are_stored_as_rows(case: Joined, target: Target) -> None:
    assert all(entry.startswith("attention") for entry in entries(case, target))


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_others_are_copied(case: Joined) -> None:
    assert not all(entry.startswith("attention") for entry in entries(case, H200))


def check(case: Joined, backend: Backend) -> None:
    """Compare results with float64."""
    feeds = case.feeds()
    with Model(case.graph(), [backend], Options(stop_at=0), evaluate) as model:
        found = np.asarray(model.run(feeds)["y"]).astype(np.float64)
    exact = evaluate(Attention(is_causal=1), [data.astype(float64) for data in feeds.values()], 1)
    assert exact is not None
    wanted = exact[0].swapaxes(1, 2).reshape(found.shape)
    bound = 2e-2 if case.dtype == bfloat16 else 2e-3
    assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results(case: Joined, emulated: CudaBackend) -> None:
    check(case, emulated)
