"""A graph of fixed sizes in the place of one whose sizes grow."""

from __future__ import annotations

from collections.abc import Mapping

from ...base.record import record
from ...ir.graph import Graph
from ...ir.types import TensorType


@record
class Bucket:
    """A graph of fixed sizes for a graph whose sizes grow.

    Attributes:
        graph: its inputs and results have room along growing axes.
        count: name of the input, int64 [1], with the number of growth steps.
        most: maximum number of growth steps.
        least: minimum number; with fewer, an index is outside of its axis.
        inputs: types of the other inputs, with growing sizes.
        outputs: types of the results, with growing sizes.
    """

    graph: Graph
    count: str
    most: int
    least: int
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
