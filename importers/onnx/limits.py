"""What a model may ask for before it is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one import; what exceeds them ends in a `LimitError` before it is allocated.

    Attributes:
        file_bytes: size of the file, without external data; protobuf cannot hold more.
        nodes: nodes of the whole model, control-flow bodies and inlined functions included.
        depth: control-flow bodies and function calls inside one another.
        rank: axes of a tensor; numpy cannot hold more.
        sparse_bytes: size of one sparse tensor after it is made dense.
    """

    file_bytes: int = (2 << 30) - 1
    nodes: int = 1_000_000
    depth: int = 64
    rank: int = 64
    sparse_bytes: int = 1 << 30
