"""Steps that follow each other are one sequence of calls, and errors name the step's nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from tercet.backends.numpy.engine.step import HostRun
from tercet.runtime.errors import DeviceError, DeviceOutOfMemory, LimitError, ModelError, ShapeError
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Relu


def _raise(error: BaseException) -> None:
    raise error


def _runs(*tapes: Sequence[Callable[[], object]]) -> list[HostRun]:
    graph = Graph("steps")
    x = graph.add_input("x", TensorType(np.dtype(np.float32), (2,)))
    nodes = [graph.insert(Relu(), [x], name=f"node{i}") for i in range(len(tapes))]
    return [HostRun([[list(tape)]], [node]) for tape, node in zip(tapes, nodes, strict=True)]


def test_calls_are_made_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a call for each step, which would take a third of the time of a small one."""
    monkeypatch.delattr(HostRun, "play")
    made: list[int] = []
    first, *others = _runs(
        *([partial(made.append, 2 * i), partial(made.append, 2 * i + 1)] for i in range(3))
    )
    joined = first.joined(others)
    assert joined is not None
    for _ in range(2):
        joined(None)  # pyright: ignore[reportArgumentType]
    assert made == [*range(6)] * 2


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ValueError("no"), DeviceError),
        (ShapeError("no"), ModelError),
        (LimitError("no"), LimitError),
        (MemoryError("no"), DeviceOutOfMemory),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_errors_name_their_step(place: int, error: Exception, found: type[Exception]) -> None:
    made: list[int] = []
    tapes: list[list[Callable[[], object]]] = [
        [partial(made.append, 0)],
        [],
        [partial(made.append, 1), partial(made.append, 2)],
        [partial(made.append, 3)],
    ]
    tapes[place].append(partial(_raise, error))
    runs = _runs(*tapes)
    joined = runs[0].joined(runs[1:])
    assert joined is not None
    with pytest.raises(found, match=f"'node{place}'") as caught:
        joined(None)  # pyright: ignore[reportArgumentType]
    assert caught.value.__cause__ is error
    assert made == [*range([1, 1, 3, 4][place])]


def test_other_errors_pass_through() -> None:
    first, second = _runs([partial(_raise, KeyboardInterrupt())], [])
    joined = first.joined([second])
    assert joined is not None
    with pytest.raises(KeyboardInterrupt):
        joined(None)  # pyright: ignore[reportArgumentType]
