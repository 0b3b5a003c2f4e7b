"""Slots of a plan: tensors that lie in other tensors."""

from __future__ import annotations

from itertools import pairwise

from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.plan.alias_transposes import renamed
from tercet.runtime.plan.format import Format
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.rows import Slot


def test_a_slot_in_a_slot_in_a_slot() -> None:
    """Thousands of steps in place are as deep a chain; roots may come to lie in other slots."""
    type_ = TensorType(float32, (4,))
    slots = [Slot(Value(f"s{i}"), HOST, Format.CONTIGUOUS, type_, i, i) for i in range(5000)]
    for below, above in pairwise(slots):
        below.alias, below.offset = above, 1
    assert (slots[0].root, slots[0].offset_in_root) == (slots[-1], 4999)
    whole = Slot(Value("whole"), HOST, Format.CONTIGUOUS, type_, 0, 0)
    slots[-1].alias, slots[-1].offset = whole, 64
    for i in (0, 10, 4999):
        assert (slots[i].root, slots[i].offset_in_root) == (whole, 64 + 4999 - i)
    assert (whole.root, whole.offset_in_root) == (whole, 0)


def test_single_pixels_are_channels_last_if_readers_want_any_format() -> None:
    """The same in every process: formats in a set have an order that changes."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1, 1, 1, 3)))
    node = graph.insert(Transpose(perm=(0, 3, 1, 2)), [x])
    infer(graph)
    both = Format.CONTIGUOUS, Format.CHANNELS_LAST
    assert renamed(node, [Format.CONTIGUOUS], set(both)) == both
