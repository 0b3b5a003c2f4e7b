"""Control flow inside plans, on devices with conditional execution (`plan.device_control`).

An If, Loop or Scan whose bodies run on the device alone, with fixed shapes, is a step like any
other: a `Branches` or a `Repetition` whose bodies use its scratch memory. Other nodes are left to
the host, see `host_control`, with the reason. In plans of the host that is every If, as a branch
that is not taken shall cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from ..errors import ModelError, UnsupportedError
from ..ir.dtypes import string
from ..ir.graph import Graph, Node, Value
from ..ir.types import Array, TensorType, ValueType
from ..ops.control import If, Loop, Scan
from ..ops.shapes import normalize_axis
from ..options import Options
from ..plan.backend import Claim, Forking
from ..plan.device_control import Decisions, decisions_of
from ..plan.exchange import IOPlacement
from ..plan.format import Format
from ..plan.host import HOST
from ..plan.host_decisions import HostDecisions
from ..plan.layout import lay_out
from ..plan.partition import misfit, obstacle
from ..plan.rows import Layout
from .body import Body, opened, settled
from .if_step import Branches
from .loop_step import BodySignature, Elements, Repetition
from .resources import Resources

Held = Branches | Repetition


class Nesting:
    """Claims the control flow of one graph that its device can execute; implements `Backend`.

    Args:
        resources: what plans are made with.
        decisions: conditional execution of the first backend's device.
    """

    def __init__(self, resources: Resources, decisions: Decisions) -> None:
        self.device = resources.backends[0].device
        self._resources = resources
        self._decisions = decisions
        self._held: dict[str, Held] = {}

    @property
    def name(self) -> str:
        """The name of the device."""
        return self.device.name

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim]:
        """Yield a claim for each node that can be nested; see `Backend`."""
        for node in graph.nodes:
            held = self._held.get(node.name) if node in free else None
            if held is not None:
                yield Claim((node,), held.at)

    def hold(self, node: Node) -> str:
        """Lay out the bodies of a node; return why the host must run it, empty if it can be nested.

        Such nodes are identified by name from here on, as `Graph.cut` keeps names.
        """
        found = misfit(node) or self._hold(node)
        if isinstance(found, str):
            return found
        self._held[node.name] = found
        return ""

    def _hold(self, node: Node) -> Held | str:
        try:
            match node.op:
                case If() if self.device is HOST:
                    return "the host plans only the branch that it takes"
                case If():
                    return self._branches(node, node.op)
                case Loop():
                    return self._loop(node, node.op)
                case Scan():
                    return self._scan(node, node.op)
                case _:
                    return f"{node.kind} goes through a list"
        except (ModelError, UnsupportedError) as error:
            return str(error).splitlines()[0]

    # ── operators ────────────────────────────────────────────────────────────────────────────

    def _branches(self, node: Node, op: If) -> Held | str:
        results = [value.type for value in node.outputs]
        bodies: list[Body] = []
        for body in (op.then_branch, op.else_branch):
            found = self._body(node, body, (), {})
            if isinstance(found, str):
                return found
            types = [value.type for value in found.graph.outputs.values()]
            if types != results:
                return f"branch '{body.name}' gives {_texts(types)}; expected {_texts(results)}"
            bodies.append(found)
        then, other = bodies
        return Branches(then, other, self._decisions)

    def _loop(self, node: Node, op: Loop) -> Held | str:
        """Lay out a Loop.

        The condition is true whenever the body runs, so it is a constant there. Stacked results
        have a known size if only a known count ends the loop.
        """
        m, cond, *initial = (*node.inputs, *(None,) * (2 - len(node.inputs)))
        if m is not None and m.tensor.size != 1:
            return f"M is {m.type}"
        (types,) = _entering(node)
        condition, carried = types[1], len(initial)
        if not isinstance(condition, TensorType) or not condition.is_static:
            return f"the condition is {condition}"
        body = self._body(node, op.body, types, {1: np.ones(condition.dims, np.bool_)})
        if isinstance(body, str):
            return body
        going, *results = body.graph.outputs.values()
        if going.tensor.size != 1 or condition.size != 1:
            return f"the condition is {condition}, {going.type} after a round"
        count = None if m is None else _known_count(m)
        ends = going.data is None or not going.data.all() or not _is_true(cond)
        if not ends and m is None:
            return "nothing ends it"
        if len(results) > carried and (ends or count is None):
            return "how often it runs, and so the size of what it stacks, depends on the data"
        reason = _unequal(results, types[2:])
        stacked = (Elements(0),) * (len(results) - carried)
        is_fixed = not ends and count is not None
        found = BodySignature(carried, (), stacked, count, is_fixed, counts=True)
        return reason or Repetition(body, found, self._decisions)

    def _scan(self, node: Node, op: Scan) -> Held | str:
        (types,) = _entering(node)
        body = self._body(node, op.body, types, {})
        if isinstance(body, str):
            return body
        carried = len(node.inputs) - op.num_scan_inputs
        results = list(body.graph.outputs.values())
        sources = [value.tensor.dims for value in node.inputs[carried:] if value is not None]
        axes, backward = op.scan_input_axes, op.scan_input_directions
        scanned = _elements(axes, backward, [len(dims) for dims in sources])
        axes, backward = op.scan_output_axes, op.scan_output_directions
        stacked = _elements(axes, backward, [len(v.tensor.dims) + 1 for v in results[carried:]])
        count = sources[0][scanned[0].axis]
        found = BodySignature(carried, scanned, stacked, count)
        return _unequal(results, types[:carried]) or Repetition(body, found, self._decisions)

    # ── bodies ───────────────────────────────────────────────────────────────────────────────

    def _body(
        self,
        node: Node,
        body: Graph,
        types: tuple[ValueType | None, ...],
        known: dict[int, Array],
    ) -> Body | str:
        """Lay out a body; return why that is impossible.

        Args:
            node: its owner.
            body: one of the graphs of its operator.
            types: of the body's inputs.
            known: elements of inputs that are the same in every run, by position.
        """
        captured = _captured(node, body)
        graph = opened(body, [node.captures[i] for i in captured], self._resources, known)
        free = [i for i in captured if node.captures[i].data is None]
        entering = [type_ for place, type_ in enumerate(types) if place not in known]
        entering += [node.captures[i].type for i in free]
        graph = settled(graph, entering, self._resources)
        inner = Nesting(self._resources, self._decisions)
        for each in graph.nodes:
            reason = inner.hold(each) if each.op.graphs() else obstacle(each)
            if reason:
                return f"node '{each.name}' ({each.kind}) of body '{body.name}': {reason}"
        for value in (*graph.inputs, *graph.outputs.values()):
            if not isinstance(value.type, TensorType) or not value.type.is_static:
                return f"'{value.name}' of body '{body.name}' is {value.type or 'unknown'}"
            if value.type.dtype == string:
                return f"'{value.name}' of body '{body.name}' holds strings"
        layout = self._lay_out(graph, inner)
        if isinstance(layout, str):
            return f"body '{body.name}': {layout}"
        names = [value.name for value in graph.inputs]
        captures = dict(zip(names[len(names) - len(free) :], free, strict=True))
        can_fork = isinstance(self.device.stream(), Forking)
        return Body(layout, captures, self._resources.options.streams if can_fork else 1)

    def _lay_out(self, graph: Graph, inner: Nesting) -> Layout | str:
        resources = self._resources
        backends = [one for one in resources.backends if one.device is self.device]
        ends = IOPlacement(
            tuple((value.name, Format.CONTIGUOUS) for value in graph.inputs), on_device=True
        )
        try:
            layout, _ = lay_out(graph, backends, resources.options, resources.stores, ends, inner)
        except UnsupportedError as error:
            refusal = error.refusals[0]
            return (
                f"node '{refusal.node}' ({refusal.operator}): {refusal.backend}: {refusal.reason}"
            )
        for row in layout.rows:
            if row.step is None or isinstance(row.step, Branches | Repetition):
                continue
            is_recorded = self.device is not HOST
            reason = self._decisions.refusal(row.step)
            if is_recorded and not row.step.capturable:
                reason = "its work cannot be recorded"
            if reason:
                return f"{row.title} ({row.backend}, {row.kernel}): {reason}"
        return layout


def nesting_of(resources: Resources) -> Nesting | None:
    """Return what nests control flow in plans of the first backend's device; None if it cannot.

    With `Options.check_each` the host decides, so that every step has a row.
    """
    options, device = resources.options, resources.backends[0].device
    decisions = HostDecisions() if device is HOST else decisions_of(device)
    if decisions is None or options.check_each or options.control == "host":
        return None
    return Nesting(resources, decisions)


def _captured(node: Node, body: Graph) -> range:
    """Return the positions in `Node.captures` of the captures of one body."""
    end = 0
    for each in node.op.graphs():
        start, end = end, end + len(each.captures)
        if each is body:
            return range(start, end)
    raise ValueError(f"'{body.name}' is not a body of '{node.name}'")


def _entering(node: Node) -> tuple[tuple[ValueType | None, ...], ...]:
    """Return the types of the inputs of each of a node's bodies."""
    return node.op.body_inputs(*(None if v is None else v.type for v in node.inputs))


def _texts(types: list[ValueType | None]) -> str:
    return ", ".join(str(type_ or "?") for type_ in types)


def _known_count(m: Value) -> int | None:
    return None if m.known is None else max(int(m.known.reshape(())), 0)


def _is_true(cond: Value | None) -> bool:
    """Whether a condition is known to be true, as an omitted one is."""
    return cond is None or (cond.known is not None and bool(cond.known.all()))


def _unequal(results: list[Value], types: tuple[ValueType | None, ...]) -> str:
    """Return the loop-carried value whose type changes in an iteration; empty if none does."""
    for value, type_ in zip(results, types, strict=False):
        if value.type != type_:
            return f"'{value.name}' is {value.type or '?'} after a round, {type_ or '?'} before"
    return ""


def _elements(
    axes: tuple[int, ...] | None, backward: tuple[int, ...] | None, ranks: list[int]
) -> tuple[Elements, ...]:
    flags = zip(axes or (0,) * len(ranks), backward or (0,) * len(ranks), ranks, strict=True)
    return tuple(Elements(normalize_axis(axis, rank), bool(back)) for axis, back, rank in flags)
