"""What scatters into a tensor without other readers changes it in place, and copies nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver import step as stepping
from tercet.backends.cuda.recipe.launch import Launch
from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.gather import ScatterElements, ScatterND, TensorScatter

from .dry import normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

CACHE = normal(2, 3, 8, 4).astype(float16)
SCATTERS: list[tuple[Op, list[Any]]] = [
    (TensorScatter(), [normal(2, 3, 2, 4).astype(float16), np.array([5, 0])]),
    (TensorScatter(mode="circular"), [normal(2, 3, 3, 4).astype(float16), np.array([6, 2])]),
    (ScatterND(), [np.array([[1, 2], [0, 1]]), normal(2, 8, 4).astype(float16)]),
    (ScatterElements(axis=2), [np.zeros((2, 3, 1, 4), np.int64), CACHE[:, :, 3:4]]),
]


def scattered(op: Op, inputs: list[Any], *, kept: bool) -> Sample:
    """Return (x + 1) with updates scattered into it, times itself as it was if that is kept."""
    graph = Graph("g")
    values = [
        graph.add_input(f"x{i}", TensorType(a.dtype, a.shape))
        for i, a in enumerate([CACHE, *inputs])
    ]
    one = graph.constant(np.ones((), float16))
    before = graph.insert(Add(), [values[0], one]).output
    after = graph.insert(op, [before, *values[1:]]).output
    if kept:
        after = graph.insert(Mul(), [after, before]).output
    graph.set_outputs({"y": after})
    infer(graph)
    return Sample(graph, {f"x{i}": a for i, a in enumerate([CACHE, *inputs])})


def identity(case: tuple[Op, list[Any]]) -> str:
    return str(case[0])


@pytest.mark.parametrize("case", SCATTERS, ids=identity)
@pytest.mark.parametrize("kept", [False, True], ids=["dies", "is kept"])
def test_memory(case: tuple[Op, list[Any]], kept: bool) -> None:
    layout = planned(scattered(*case, kept=kept).graph)
    (row,) = (
        row for row in layout.rows if row.claim and type(case[0]) is type(row.claim.nodes[0].op)
    )
    (target,) = row.outputs
    assert (target.root is row.inputs[0].root) is not kept


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("case", SCATTERS, ids=identity)
@pytest.mark.parametrize("kept", [False, True], ids=["dies", "is kept"])
def test_results(
    case: tuple[Op, list[Any]],
    kept: bool,
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[str] = []
    bound: Callable[..., Any] = stepping.bind_launch

    def noted(device: Any, launch: Launch, *rest: Any) -> Any:
        launched.append(launch.entry)
        return bound(device, launch, *rest)

    monkeypatch.setattr(stepping, "bind_launch", noted)
    compare(scattered(*case, kept=kept), emulated)
    assert ("copy_strided" in launched) is kept


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("op", [ScatterElements(), ScatterND()], ids=str)
def test_updates_that_are_the_tensor_itself_are_not_overwritten(
    op: Op, emulated: CudaBackend
) -> None:
    """Rows in another order: each is read after another one has been written."""
    data, rows = CACHE[0, 0], np.arange(8)[::-1]
    graph = Graph("transposed")
    x = graph.add_input("x", TensorType(data.dtype, data.shape))
    one = graph.insert(Add(), [x, graph.constant(np.ones((), float16))]).output
    places = rows[:, None].repeat(1 if isinstance(op, ScatterND) else 4, axis=1)
    indices = graph.add_input("i", TensorType(places.dtype, places.shape))
    graph.set_outputs({"y": graph.insert(op, [one, indices, one]).output})
    infer(graph)
    (*_, row) = (row for row in planned(graph).rows if row.kind == "step")
    assert row.outputs[0].root is not row.inputs[0].root
    compare(Sample(graph, {"x": data, "i": places}), emulated)
