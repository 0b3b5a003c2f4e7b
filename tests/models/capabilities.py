"""Whether `inspect --capability` says before a run what the run then does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tercet.runtime.errors import UnsupportedError
from tercet.runtime.ir.infer import specialise
from tercet.runtime.ir.types import TensorType
from tercet.runtime.passes import STATIC_PASSES, optimise
from tercet.runtime.plan.layout import lay_out
from tercet.runtime.plan.partition import obstacle
from tercet.runtime.session.model import Model
from tercet.tools.inspect.capability import LATER, NOBODY, Nobody, capabilities_of


def nothing(*arguments: Any) -> None:
    """Fold no constants."""


def fates(model: Model, shapes: dict[str, tuple[int, ...]] | None) -> dict[str, str]:
    """Who ran the nodes of a model that has run, by the file's names."""
    rows = sorted(model.placement(shapes), key=lambda row: row.backend != "plan")
    return {name: row.backend for row in rows for name in row.nodes}


def check(model: Model, feeds: dict[str, Any]) -> None:
    """Ask for capabilities, then run, and compare node by node."""
    shapes = {name: np.shape(data) for name, data in feeds.items()}
    said = capabilities_of(model, shapes)
    assert all(row.ok for row in said)
    assert sum(row.nodes for row in said) == len(list(model.imported.walk()))
    model.run(feeds)
    ran = fates(model, None)
    by_number = {number: row.backend for row in said for number in numbers_of(row.where)}
    for number, node in enumerate(model.imported.walk(), 1):
        if by_number[number] not in (LATER, "passes"):
            assert by_number[number] == ran[node.name], node


def numbers_of(text: str) -> list[int]:
    parts = [part.split("-") for part in text.split(", ")]
    return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]


def check_recipes(model: Model, feeds: Mapping[str, Any]) -> bool:
    """Lay out a model for cuda without a GPU, with a fallback and without.

    What the one says no backend runs is what the other refuses. False if no plan holds the model.
    """
    dry = pytest.importorskip("tests.kernels.dry", reason="cuda.core is not installed")
    from tercet.backends.cuda.backend import CudaBackend

    types = {name: TensorType(data.dtype, data.shape) for name, data in feeds.items()}
    graph = specialise(model.graph, types)
    optimise(graph, STATIC_PASSES, model.options, nothing, model.rewrites.copy())
    if any(obstacle(node) for node in graph.nodes):
        return False
    device = dry.DryDevice()
    backend: Any = CudaBackend(device)
    layout, _ = lay_out(graph.clone(), [backend, Nobody()], model.options, dry.stores(device))
    left = {n.name for row in layout.rows if row.backend == NOBODY for n in row.nodes}
    try:
        dry.planned(graph.clone(), device)
        refused = set()
    except UnsupportedError as error:
        refused = {refusal.node for refusal in error.refusals}
    assert left == refused
    return True
