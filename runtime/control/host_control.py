"""Control flow on the host: the host decides which body runs and how often; programs run it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from ..base.budget import Budget
from ..base.guard import check_time, need
from ..errors import ShapeError
from ..ir.graph import Graph, Node
from ..ir.op import Op
from ..ir.types import Array, HostValue, TensorType
from ..ops.contrib_search import Search
from ..ops.control import If, Loop, Scan, SequenceMap
from .search import run_search
from .tally import Tally

Values = Sequence[HostValue]


class Bodies(Protocol):
    """The bodies of one node, prepared when they are first run."""

    @property
    def node(self) -> Node:
        """The node that owns them."""
        ...

    @property
    def budget(self) -> Budget:
        """The memory budget of all results."""
        ...

    def run(self, body: Graph, inputs: Values) -> list[HostValue]:
        """Run a body on its inputs; captures are added."""
        ...


def run_if(op: If, bodies: Bodies, values: Values) -> list[HostValue]:
    """Run the branch that the condition selects."""
    (cond,) = values
    return bodies.run(op.then_branch if bool(_element(cond, "cond")) else op.else_branch, ())


def run_loop(op: Loop, bodies: Bodies, values: Values, tally: Tally) -> list[HostValue]:
    """Run the body until the trip count is reached or the condition is false."""
    m, cond, *carried = (*values, *(None,) * (2 - len(values)))
    count = None if m is None else int(_element(m, "M"))
    going: HostValue = np.array(True) if cond is None else cond
    stacks = _Stacks(len(bodies.node.outputs) - len(carried), bodies, tally)
    number = 0
    while bool(_element(going, "cond")) and (count is None or number < count):
        check_time()
        going, *results = bodies.run(op.body, (np.array(number), going, *carried))
        carried = _replaced(carried, results[: len(carried)], tally)
        stacks.add(results[len(carried) :])
        number += 1
    return [*carried, *stacks.results((0,) * len(stacks))]


def run_scan(op: Scan, bodies: Bodies, values: Values, tally: Tally) -> list[HostValue]:
    """Run the body for every element of the scanned inputs."""
    at = len(values) - op.num_scan_inputs
    state, scanned = list(values[:at]), [_tensor(v, "a scanned input") for v in values[at:]]
    axes = op.scan_input_axes or (0,) * len(scanned)
    rows = [np.moveaxis(x, axis, 0) for x, axis in zip(scanned, axes, strict=True)]
    backward = op.scan_input_directions or (0,) * len(rows)
    rows = [x[::-1] if back else x for x, back in zip(rows, backward, strict=True)]
    counts = {len(x) for x in rows}
    if len(counts) != 1:
        shapes = ", ".join(str(list(x.shape)) for x in scanned)
        raise ShapeError(f"the scanned inputs have different lengths: {shapes}")
    (count,) = counts
    stacks = _Stacks(len(op.body.outputs) - len(state), bodies, tally)
    for i in range(count):
        check_time()
        results = bodies.run(op.body, (*state, *(x[i, ...] for x in rows)))
        state = _replaced(state, results[: len(state)], tally)
        stacks.add(results[len(state) :])
    backward = op.scan_output_directions or (0,) * len(stacks)
    made = stacks.results(op.scan_output_axes or (0,) * len(stacks), backward)
    return [*state, *made]


def run_sequence_map(
    op: SequenceMap, bodies: Bodies, values: Values, tally: Tally
) -> list[HostValue]:
    """Run the body for every element of the sequences."""
    first, *rest = values
    if not isinstance(first, list):
        raise ShapeError("input_sequence is not a sequence")
    lists: list[list[HostValue]] = [[] for _ in op.body.outputs]
    for i in range(len(first)):
        check_time()
        inputs = (first[i], *(v[i] if isinstance(v, list) else v for v in rest))
        for made, result in zip(lists, bodies.run(op.body, inputs), strict=True):
            made.append(result)
            tally.add(result, f"the results of {i + 1} elements")
    return list(lists)


def _replaced(old: Sequence[HostValue], new: list[HostValue], tally: Tally) -> list[HostValue]:
    """Replace the state of a loop in the tally, and return the new state."""
    for before, after in zip(old, new, strict=True):
        tally.replace(before, after, "the state of the loop")
    return new


def run_control(op: Op, bodies: Bodies, values: Values) -> list[HostValue]:
    """Run a node with bodies.

    Args:
        op: its operator.
        bodies: runs them.
        values: its inputs, None for omitted ones.

    Raises:
        ShapeError: the values contradict each other.
        LimitError: the results exceed `Options.max_bytes`.
    """
    tally = Tally(bodies.budget)
    tally.lend(values)
    try:
        match op:
            case If():
                return run_if(op, bodies, values)
            case Loop():
                return run_loop(op, bodies, values, tally)
            case Scan():
                return run_scan(op, bodies, values, tally)
            case SequenceMap():
                return run_sequence_map(op, bodies, values, tally)
            case Search():
                return run_search(op, bodies.run, values)
            case _:
                raise ShapeError(f"{type(op).__name__} has bodies that no backend runs")
    finally:
        tally.close()


class _Stacks:
    """Scan outputs: one result per iteration, stacked into one tensor each."""

    def __init__(self, count: int, bodies: Bodies, tally: Tally) -> None:
        self._rows: list[list[Array]] = [[] for _ in range(count)]
        self._bodies = bodies
        self._tally = tally
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, results: Iterable[HostValue]) -> None:
        """Add the results of one iteration.

        Raises:
            ShapeError: a result is not a tensor, or its shape differs from those before.
            LimitError: together they are too large.
        """
        for number, (rows, value) in enumerate(zip(self._rows, results, strict=True)):
            row = _tensor(value, f"result {number} of the body")
            if rows and rows[0].shape != row.shape:
                raise ShapeError(
                    f"result {number} of the body has shape {list(row.shape)} in iteration "
                    f"{len(rows)}, {list(rows[0].shape)} before; stacked results must have one"
                )
            rows.append(row)
            self._tally.add(row, f"the results stacked in {len(rows)} iterations")
            self._nbytes += row.nbytes

    def results(self, axes: Sequence[int], backward: Sequence[int] = ()) -> list[Array]:
        """Return the tensors stacked along `axes`, in reverse where `backward` is set."""
        outputs = self._bodies.node.outputs[len(self._bodies.node.outputs) - len(self) :]
        need(self._nbytes, "the stacked results")
        made: list[Array] = []
        for i, (rows, axis, output) in enumerate(zip(self._rows, axes, outputs, strict=True)):
            if rows:
                ordered = rows[::-1] if backward and backward[i] else rows
                made.append(np.stack(ordered, axis))
            else:
                made.append(_nothing(output.type, axis))
        return made


def _nothing(type_: object, axis: int) -> Array:
    """Return the result of zero iterations: a tensor of length 0 along `axis`."""
    if not isinstance(type_, TensorType):
        raise ShapeError("the body never ran, and the type of what it stacks is not known")
    shape = [d if isinstance(d, int) else 0 for d in type_.shape or (0,)]
    shape[axis] = 0
    return np.zeros(shape, type_.dtype)


def _tensor(value: HostValue, what: str) -> Array:
    if not isinstance(value, np.ndarray):
        raise ShapeError(f"{what} is {type(value).__name__}; expected a tensor")
    return value


def _element(value: HostValue, name: str) -> Array:
    """Return a tensor of one element as a scalar."""
    data = _tensor(value, name)
    if data.size != 1:
        raise ShapeError(f"{name} has shape {list(data.shape)}; expected one element")
    return data.reshape(())
