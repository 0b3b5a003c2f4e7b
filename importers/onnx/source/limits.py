"""Resource limits of an import."""

from __future__ import annotations

from ....runtime.base.record import record
from ....runtime.ops.shapes import MAX_RANK


@record
class Limits:
    """Budgets of one import; exceeding one raises a `LimitError` before anything is allocated.

    Attributes:
        file_bytes: size of the file without external data; protobuf's own limit.
        nodes: nodes of the whole model, bodies and inlined functions included.
        depth: nesting of control-flow bodies and function calls.
        rank: number of axes; the limit of numpy's iterators.
        name: length of names of values, nodes, operators and attributes.
        copied_bytes: size of one tensor that must be converted, such as int4.
        sparse_bytes: size of one sparse tensor in dense form.
    """

    file_bytes: int = (2 << 30) - 1
    nodes: int = 1_000_000
    depth: int = 64
    rank: int = MAX_RANK
    name: int = 1 << 16
    copied_bytes: int = 4 << 30
    sparse_bytes: int = 1 << 30
