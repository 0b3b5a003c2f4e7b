"""Options of the tensorrt backend."""

from __future__ import annotations

from dataclasses import dataclass

#: Environment variable: the minimum number of nodes of a region.
MIN_NODES_VARIABLE = "TERCET_TENSORRT_MIN_NODES"


@dataclass(frozen=True, slots=True)
class TensorrtOptions:
    """Options of the tensorrt backend.

    Attributes:
        min_nodes: minimum number of nodes of a region without matrix products; 0 for the value of
            `MIN_NODES_VARIABLE`, or 4 if that is not set.
        strip_weights: whether to cache engines without their weights, which are added from the
            model when an engine is opened.
    """

    min_nodes: int = 0
    strip_weights: bool = False
