"""The work of a row: the arithmetic, traffic and launches that no kernel for it avoids.

Traffic is that of its inputs, constants and results, each once; tensors between its nodes need
none. Operators that select elements read only those, experts only the weights of the chosen ones,
and a scatter in place moves its updates only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..base.record import record
from ..ir.dtypes import int8, name_of, uint8
from ..ir.graph import Node, Value
from ..ir.op import Op
from ..ops.experts import Mixture
from ..ops.gather import Gather, GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter
from ..ops.movement import Slice
from .backend import Launching, knows
from .host import HOST
from .macs import macs
from .rows import Row, Slot

_SELECTS = (Gather, GatherElements, GatherND, Slice)
#: Operators that replace elements of their first input, with the position of the new ones.
_SCATTERS: dict[type[Op], int] = {ScatterElements: 2, ScatterND: 2, TensorScatter: 1}


@record
class Work:
    """What one call of a row has to do.

    Attributes:
        macs: multiply-accumulates by dtype of the factors, ``int8`` for both kinds of bytes; None
            if unknown.
        nbytes: bytes to read and to write.
        launches: kernels, one after another; 0 on the host.
    """

    macs: Mapping[str, int] | None
    nbytes: int
    launches: int

    @property
    def total_macs(self) -> int | None:
        """Multiply-accumulates of all dtypes; None if unknown."""
        return None if self.macs is None else sum(self.macs.values())


def macs_by_dtype(nodes: Iterable[Node]) -> dict[str, int] | None:
    """Return the multiply-accumulates of nodes by dtype of their first factor; None if unknown."""
    found: dict[str, int] = {}
    for node in nodes:
        count = macs(node)
        if count is None:
            return None
        first = node.inputs[0] if count else None
        if first is not None:
            dtype = first.tensor.dtype
            name = "int8" if dtype in (int8, uint8) else name_of(dtype)
            found[name] = found.get(name, 0) + count
    return found


def work_of(row: Row) -> Work:
    """Return the work of a row of a plan."""
    if row.kind == "view":
        return Work({}, 0, 0)
    step = row.step
    launches = 0
    if row.device is not HOST and row.kind != "copy":
        launches = step.fewest_launches if knows(step, Launching) else 1
    return Work(macs_by_dtype(row.nodes), _read(row) + _written(row), launches)


def _read(row: Row) -> int:
    if not row.nodes:
        return sum(slot.nbytes for slot in row.inputs)
    places = {slot.value: slot.nbytes for slot in row.inputs}
    kept = {_updated(row, slot) for slot in row.outputs}
    made = {value for node in row.nodes for value in node.outputs}
    needs: dict[Value, int] = {}
    for node in row.nodes:
        for place, value in enumerate((*node.inputs, *node.captures)):
            if value is None or value in made or (node in kept and place == 0):
                continue
            nbytes = min(_needed(node, place, value), places.get(value, value.tensor.nbytes))
            needs[value] = max(needs.get(value, 0), nbytes)
    return sum(needs.values())


def _needed(node: Node, place: int, value: Value) -> int:
    """Return the bytes of an input that a node cannot do without."""
    type_, op = value.tensor, node.op
    if place == 0 and isinstance(op, _SELECTS):
        return node.output.tensor.size * type_.nbytes // max(1, type_.size)
    if isinstance(op, Mixture) and place > 1:
        return type_.nbytes * min(_tokens(node) * op.k, type_.dims[0]) // max(1, type_.dims[0])
    return type_.nbytes


def _tokens(node: Node) -> int:
    x = node.inputs[0]
    return x.tensor.size // max(1, x.tensor.dims[-1]) if x is not None else 0


def _written(row: Row) -> int:
    total = 0
    for slot in row.outputs:
        node = _updated(row, slot)
        new = None if node is None else node.inputs[_SCATTERS[type(node.op)]]
        total += slot.nbytes if new is None else new.tensor.nbytes
    return total


def _updated(row: Row, slot: Slot) -> Node | None:
    """Return the scatter whose result is a slot and whose first input has the same memory."""
    for node in row.nodes:
        if type(node.op) in _SCATTERS and node.output is slot.value:
            same = (each for each in row.inputs if each.value is node.inputs[0])
            return node if any(each.root is slot.root for each in same) else None
    return None
