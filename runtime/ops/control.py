"""Control flow: operators with graphs as attributes.

`Op.body_inputs` gives the input types of a body; `infer` reads the types that inference found for
its outputs.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import ShapeError
from ..ir.dtypes import bool_, int64
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op, op
from ..ir.types import Dim, MapType, OptionalType, SequenceType, TensorType, ValueType
from .shape import Identity
from .shapes import checked, common_type, need_one, normalize_axis, same_dim

Types = tuple[ValueType | None, ...]


def _results(body: Graph) -> Types:
    """Return the output types of a body, without known elements."""
    return tuple(_without_value(value.type) for value in body.outputs.values())


def _need(count: int, expected: int, what: str, body: Graph) -> None:
    if count != expected:
        raise ShapeError(f"body '{body.name}' has {count} {what}; expected {expected}")


def _without_value(type_: ValueType | None) -> ValueType | None:
    return type_.without_value() if isinstance(type_, TensorType) else type_


def _without_shape(type_: ValueType | None) -> ValueType | None:
    if isinstance(type_, TensorType):
        return type_.with_shape(None)
    if isinstance(type_, SequenceType | OptionalType | MapType):
        return replace(type_, element=_without_shape(type_.element))
    return type_


@op
class If(Op):
    """The results of `then_branch` if the condition holds, else those of `else_branch`."""

    outputs = (1, None)
    else_branch: Graph
    then_branch: Graph

    def may_skip(self, cond: TensorType) -> bool:
        return True

    def result_count(self) -> int:
        return len(self.then_branch.outputs)

    def infer(self, cond: TensorType) -> Types:
        if cond.dtype != bool_:
            raise ShapeError(f"cond is {cond}; expected bool")
        need_one(cond, "cond")
        for branch in self.graphs():
            _need(len(branch.inputs), 0, "inputs", branch)
        then, other = _results(self.then_branch), _results(self.else_branch)
        if len(then) != len(other):
            raise ShapeError(f"the branches have {len(then)} and {len(other)} outputs")
        if cond.known is not None and cond.known.size == 1:
            return then if cond.known.item() else other
        pairs = enumerate(zip(then, other, strict=True))
        return tuple(common_type(a, b, f"output {i} of the branches") for i, (a, b) in pairs)


@op
class Loop(Op):
    """`body` at most `m` times, as long as the condition holds.

    The body takes the iteration, the condition and the carried values, and gives the condition,
    the carried values and elements that are stacked along a new first axis. Carried values may
    change their shape from one iteration to the next.
    """

    outputs = (1, None)
    body: Graph

    def result_count(self) -> int:
        return len(self.body.outputs) - 1

    def body_inputs(
        self, m: TensorType | None, cond: TensorType | None, *v_initial: ValueType
    ) -> tuple[Types, ...]:
        first = TensorType(bool_, ()) if cond is None else cond.without_value()
        return ((TensorType(int64, ()), first, *map(_without_value, v_initial)),)

    def may_skip(
        self, m: TensorType | None, cond: TensorType | None, *v_initial: ValueType
    ) -> bool:
        return not (_is_positive(m) and _is_positive(cond))

    def widened(self, body: Graph, inputs: Types) -> Types:
        number, *before = inputs
        after = _results(body)
        pairs = enumerate(zip(before, after, strict=False), -1)
        return (
            number,
            *(
                _without_shape(a) if b is None else common_type(a, b, f"value {i}")
                for i, (a, b) in pairs
            ),
        )

    def infer(self, m: TensorType | None, cond: TensorType | None, *v_initial: ValueType) -> Types:
        carried, results = len(v_initial), _results(self.body)
        _need(len(self.body.inputs), 2 + carried, "inputs", self.body)
        if len(results) < 1 + carried:
            raise ShapeError(
                f"body '{self.body.name}' has {len(results)} outputs; "
                f"expected a condition and {carried} carried values"
            )
        final = [
            _without_shape(before) if after is None else common_type(before, after, f"value {i}")
            for i, (before, after) in enumerate(zip(v_initial, results[1:], strict=False))
        ]
        count = self._count(m, cond)
        return (*final, *(_stacked(r, count, 0) for r in results[1 + carried :]))

    def _count(self, m: TensorType | None, cond: TensorType | None) -> Dim:
        """Return the number of iterations, if it is known and only the count ends the loop."""
        going: Value | None = next(iter(self.body.outputs.values()))
        while going is not None and going.producer is not None and _is_identity(going.producer):
            going = going.producer.inputs[0]
        holds = cond is None or (cond.known is not None and bool(cond.known.all()))
        stays = going is self.body.inputs[1] or (
            going is not None and going.data is not None and bool(going.data.all())
        )
        if not holds or not stays or m is None or m.known is None or m.known.size != 1:
            return None
        return max(int(m.known.item()), 0)


def _is_positive(limit: TensorType | None) -> bool:
    """Whether a count or a condition, where there is one, is known to let a loop begin."""
    return limit is None or (limit.known is not None and bool((limit.known > 0).all()))


def _is_identity(node: Node) -> bool:
    return isinstance(node.op, Identity)


def _stacked(element: ValueType | None, count: Dim, axis: int) -> TensorType | None:
    """Return the type of `count` results of a body stacked along a new axis."""
    if element is None:
        return None
    if not isinstance(element, TensorType):
        raise ShapeError(f"a body gives {element} to be stacked; expected a tensor")
    if element.shape is None:
        return element
    shape = list(element.shape)
    shape.insert(normalize_axis(axis, len(shape) + 1), count)
    return element.with_shape(checked(shape))


@op
class Scan(Op):
    """`body` once for every element of the last `num_scan_inputs` inputs, along an axis of each.

    The body takes the state and one element of each, and gives the state and elements that are
    stacked. Directions are 0 for forward and 1 for backward; axes and directions default to 0.
    """

    outputs = (1, None)
    body: Graph
    num_scan_inputs: int
    scan_input_axes: tuple[int, ...] | None = None
    scan_input_directions: tuple[int, ...] | None = None
    scan_output_axes: tuple[int, ...] | None = None
    scan_output_directions: tuple[int, ...] | None = None

    def result_count(self) -> int:
        return len(self.body.outputs)

    def body_inputs(
        self, initial_state_and_scan_inputs: ValueType, *rest: ValueType
    ) -> tuple[Types, ...]:
        state, scanned = self._split((initial_state_and_scan_inputs, *rest))
        axes = self._flags(self.scan_input_axes, "scan_input_axes", len(scanned))
        elements = (_element(x, axis) for x, axis in zip(scanned, axes, strict=True))
        return ((*map(_without_value, state), *elements),)

    def infer(self, initial_state_and_scan_inputs: ValueType, *rest: ValueType) -> Types:
        state, scanned = self._split((initial_state_and_scan_inputs, *rest))
        results = _results(self.body)
        _need(len(self.body.inputs), len(state) + len(scanned), "inputs", self.body)
        if len(results) < len(state):
            raise ShapeError(f"body '{self.body.name}' gives fewer results than the state has")
        count: Dim = None
        axes = self._flags(self.scan_input_axes, "scan_input_axes", len(scanned))
        self._flags(self.scan_input_directions, "scan_input_directions", len(scanned))
        for x, axis in zip(scanned, axes, strict=True):
            if x.shape is not None:
                size = x.shape[normalize_axis(axis, len(x.shape))]
                count = same_dim(count, size, "the lengths of the scanned inputs")
        final = [
            _without_shape(before) if after is None else common_type(before, after, f"state {i}")
            for i, (before, after) in enumerate(zip(state, results, strict=False))
        ]
        made = results[len(state) :]
        axes = self._flags(self.scan_output_axes, "scan_output_axes", len(made))
        self._flags(self.scan_output_directions, "scan_output_directions", len(made))
        stacked = (_stacked(r, count, axis) for r, axis in zip(made, axes, strict=True))
        return (*final, *stacked)

    def _split(self, types: tuple[ValueType, ...]) -> tuple[Types, tuple[TensorType, ...]]:
        """Return the types of the state variables, and those of the scanned inputs."""
        if not 1 <= self.num_scan_inputs <= len(types):
            raise ShapeError(f"num_scan_inputs={self.num_scan_inputs} of {len(types)} inputs")
        at = len(types) - self.num_scan_inputs
        scanned = tuple(t for t in types[at:] if isinstance(t, TensorType))
        if len(scanned) != self.num_scan_inputs:
            raise ShapeError("a scanned input is not a tensor")
        return types[:at], scanned

    def _flags(self, given: tuple[int, ...] | None, name: str, count: int) -> tuple[int, ...]:
        if given and len(given) != count:
            raise ShapeError(f"{name} has {len(given)} entries; expected {count}")
        return given or (0,) * count


def _element(x: TensorType, axis: int) -> TensorType:
    if x.shape is None:
        return x.without_value()
    at = normalize_axis(axis, len(x.shape))
    return x.with_shape(x.shape[:at] + x.shape[at + 1 :])


@op
class SequenceMap(Op):
    """`body` applied to every element of a list; tensors are passed as they are."""

    outputs = (1, None)
    body: Graph

    def result_count(self) -> int:
        return len(self.body.outputs)

    def body_inputs(
        self, input_sequence: SequenceType, *additional_inputs: ValueType
    ) -> tuple[Types, ...]:
        given = (input_sequence, *additional_inputs)
        return (tuple(t.element if isinstance(t, SequenceType) else t for t in given),)

    def infer(self, input_sequence: SequenceType, *additional_inputs: ValueType) -> Types:
        _need(len(self.body.inputs), 1 + len(additional_inputs), "inputs", self.body)
        results = _results(self.body)
        if any(isinstance(r, SequenceType) for r in results):
            raise ShapeError(f"body '{self.body.name}' gives a sequence; expected tensors")
        return tuple(SequenceType(r if isinstance(r, TensorType) else None) for r in results)
