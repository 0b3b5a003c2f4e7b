"""Options of the tensorrt backend."""

from __future__ import annotations

from dataclasses import dataclass

#: Environment variable: the smallest number of nodes of a region that is worth an engine.
MIN_NODES_VARIABLE = "TERCET_TENSORRT_MIN_NODES"


@dataclass(frozen=True, slots=True)
class TensorrtOptions:
    """Options of the tensorrt backend.

    Attributes:
        min_nodes: the smallest number of nodes for which a region without matrix products becomes
            an engine; 0 for the value of `MIN_NODES_VARIABLE`, or 4 where that is not set.
        strip_weights: cache engines without their weights, which are put in again from the model
            when an engine is opened.
    """

    min_nodes: int = 0
    strip_weights: bool = False
