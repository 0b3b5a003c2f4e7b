"""From claims to rows: steps, copies, reformats and views, and shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..base.guard import check_time, planning
from ..errors import ModelError
from ..ir.graph import Graph
from ..ir.types import TensorType
from ..options import Options
from .alias_slices import share_slices
from .alias_transposes import demands
from .backend import Backend, Device
from .exchange import HOST_IO, IOPlacement
from .partition import Bars, Partition, partition
from .rows import Layout, Slot, lives_of
from .weights import WeightStore


def lay_out(
    graph: Graph,
    backends: Sequence[Backend],
    options: Options,
    stores: Mapping[Device, WeightStore],
    ends: IOPlacement = HOST_IO,
    nesting: Backend | None = None,
) -> tuple[Layout, Partition]:
    """Partition a static graph, build every step and insert the copies.

    A backend may still decline while building; its node is then offered to the others.
    `control.nested_control` claims control flow.

    Raises:
        UnsupportedError: no backend takes a node.
        ModelError: a tensor would extend beyond its memory.
    """
    bars = Bars()
    _settle_views(graph)
    while True:
        found = partition(graph, backends, options, bars, nesting)
        layout = Layout(graph, stores, ends, backends[0].device)
        asked = demands(graph, found.steps)
        for nodes, backend, assigned in ((s.nodes, s.backend, s) for s in found.steps):
            formats = asked.get(nodes[0].outputs[0], set())
            if backend is None:
                layout.view(nodes[0], formats)
            elif not layout.rename(nodes, backend.device, formats):
                wanted = {f for node in nodes for v in node.outputs for f in asked.get(v, ())}
                layout.step(assigned, wanted)
        layout.finish()
        share_slices(layout, bars.dense)
        if _build(layout, bars):
            _alias_in_place(layout)
            _check_places(layout.slots)
            return layout, found


#: `lay_out`, or what stands for it.
LayOut = Callable[
    [
        Graph,
        Sequence[Backend],
        Options,
        Mapping[Device, WeightStore],
        IOPlacement,
        Backend | None,
    ],
    tuple[Layout, Partition],
]


def _build(layout: Layout, bars: Bars) -> bool:
    """Build all steps; if a backend declines some, bar their claims and return False.

    The reason may be slices that it does not accept, so those are removed first. All declined
    claims are barred at once, since each attempt partitions the graph anew; but for those that read
    or share what an earlier one writes or slices, which may be other claims without it.
    """
    touched = set[Slot]()
    for row in layout.rows:
        check_time()
        with planning(f"step '{row.title}'"):
            declined = layout.build(row)
        if declined is None:
            continue
        slots = (*row.inputs, *row.outputs)
        if not touched.isdisjoint(slot.root for slot in slots):
            continue
        touched |= {slot.root for slot in slots if slot.pitch or slot in row.outputs}
        if any(slot.pitch for slot in slots):
            bars.dense.update(row.nodes)
        else:
            bars.add(row.backend, declined.node, declined.reason)
    return not touched


def _settle_views(graph: Graph) -> None:
    """Turn views of constants into constants, if no pass has; they have no slot."""
    for node in [node for node in graph.nodes if node.op.view]:
        source, result = node.inputs[0], node.output.type
        if source is None or source.data is None or not isinstance(result, TensorType):
            continue
        if result.is_static:
            graph.settle(node, [source.data.reshape(result.dims)])


def _alias_in_place(layout: Layout) -> None:
    """Give outputs the memory of inputs that end with the step, where the claim allows it."""
    lives = lives_of(layout)
    for number, row in enumerate(layout.rows):
        for out, source in row.claim.in_place if row.claim else ():
            target = next((s for s in row.outputs if s.value is out), None)
            origin = next((s for s in row.inputs if s.value is source), None)
            if target is None or origin is None or target.alias is not None:
                continue
            root = origin.root
            others = [s for s in row.inputs if s is not origin and s.root is root]
            taken = any(s is not target and s.root is root for s in row.outputs)
            if others or taken or lives[root][1] > number or target.nbytes != root.nbytes:
                continue
            target.alias = origin
            first, last = lives.pop(target)
            lives[root] = min(lives[root][0], first), max(lives[root][1], last)


def _check_places(slots: Iterable[Slot]) -> None:
    """Raise ModelError for tensors that extend beyond the memory of the tensor containing them.

    Backends write where they are told to, so this is checked here for all of them.
    """
    for slot in slots:
        root, end = slot.root, slot.offset_in_root + slot.extent
        if slot is root or end <= root.nbytes:
            continue
        node = slot.value.producer
        raise ModelError(
            f"'{slot.value.name}' {slot.type} would end {end} bytes after the start of "
            f"'{root.value.name}' {root.type}, in whose {root.nbytes} bytes it is",
            where=f"node '{node.name}' ({node.kind})" if node else None,
        )
