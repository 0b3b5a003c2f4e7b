"""What is tuned in tests: a convolution, and the tasks of its nodes."""

from __future__ import annotations

from typing import Any

from tercet.backends.cuda.algorithms.registry import Setting
from tercet.backends.cuda.algorithms.selection import TuningTask
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.cuda.tuning.tuner import works_of
from tercet.runtime.ir.graph import Graph
from tercet.runtime.options import Options

from .dry import normal, single


def graph(channels: int = 16, size: int = 20) -> Graph:
    arrays = [normal(1, channels, size, size), normal(16, channels, 3, 3)]
    return single("Conv", arrays, (1,), pads=(1,) * 4)


def works(*graphs: Graph, **options: Any) -> list[TuningTask]:
    setting = Setting(H200, Options(**options))
    return [work for one in graphs for work in works_of(one.nodes, setting)]
