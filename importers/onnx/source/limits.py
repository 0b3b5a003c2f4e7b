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
        name: characters of the name of a value, node, operator or attribute.
        copied_bytes: size of one tensor that cannot be used as it lies in the file, such as int4.
        sparse_bytes: size of one sparse tensor after it is made dense.
    """

    file_bytes: int = (2 << 30) - 1
    nodes: int = 1_000_000
    depth: int = 64
    rank: int = 64
    name: int = 1 << 16
    copied_bytes: int = 4 << 30
    sparse_bytes: int = 1 << 30
