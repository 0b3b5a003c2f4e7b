"""A program: plans, and between them what the host runs to determine data-dependent shapes.

Most graphs are one plan. A plan cannot hold sequences, strings, tensors with data-dependent shapes,
or control flow that its device cannot decide (`nested_control`). Such nodes split the graph into
*stages*: a plan, then nodes that run one by one. Where enough work depends on data-dependent
shapes, that part of the graph becomes a *tail*: a separate graph, with a program for every set of
types it encounters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from ..base.budget import Budget
from ..base.guard import check_time
from ..errors import (
    FAILURES,
    DeviceError,
    LimitError,
    ModelError,
    NodeRefusal,
    ShapeError,
    UnsupportedError,
    out_of_memory,
)
from ..ir.graph import Graph, Node, Value
from ..ir.infer import specialise
from ..ir.op import Op
from ..ir.types import Array, HostValue, TensorType, type_of
from ..ops.control import Loop
from ..plan.backend import Interpreter
from ..plan.device_io import Resident
from ..plan.exchange import HOST_IO, IOPlacement, exchange_of
from ..plan.host import HOST
from ..plan.layout import LayOut, lay_out
from ..plan.plan import Memory, Plan
from ..plan.rows import Row
from .body import opened, settled
from .bounded_outputs import Counting, counting
from .resources import Keys, Resources, Types
from .stages import Stage, is_plannable, last_reads, late_nodes, levels_of, nesting_of
from .tally import Tally, check_sizes


class Program:
    """A graph with known input types that runs repeatedly, for one caller at a time.

    Args:
        graph: the graph it runs.
        resources: what it is made with.
        is_body: whether its input types may differ between runs, as in a loop.
        ends: where inputs and results are; on the host, unless it is one plan.
        laying: lays out the plan, if it is one; see `plan.layout.lay_out`.

    Attributes:
        graph: what it runs.
        stages: in order.
        tail: the programs of the part with data-dependent shapes, or None.
        resident: runs it on device arrays of callers, if it is one plan on a device that exchanges
            arrays; else None.
        is_general: whether it is a loop body whose input types hold in every iteration.
        on_closed: called once, when it has been closed, with the graphs that it has run.
    """

    def __init__(
        self,
        graph: Graph,
        resources: Resources,
        *,
        is_body: bool = False,
        ends: IOPlacement = HOST_IO,
        laying: LayOut = lay_out,
    ) -> None:
        self.graph = graph
        self.stages: list[Stage] = []
        self.tail: Programs | None = None
        self.resident: Resident | None = None
        self.is_general = True
        self.on_closed: Callable[[Sequence[Graph]], None] | None = None
        self._resources = resources
        self._is_body = is_body
        self._bodies: dict[Node, _Bodies] = {}
        self._counted: dict[Node, Counting] = {}
        self._nesting = nesting_of(graph, resources)
        self._on_host: dict[Node, str] = {}
        self._interpreter: Interpreter | None = None
        self._only: Plan | None = None
        self._tail_inputs: tuple[Value, ...] = ()
        self._dying: dict[Node, list[Value]] = {}
        try:
            self._build(ends, laying)
        except BaseException:
            self.close()
            raise

    # ── building ─────────────────────────────────────────────────────────────────────────────

    def _build(self, ends: IOPlacement, laying: LayOut) -> None:
        check_sizes(self.graph, self._resources.budget, self._resources.on_host)
        late = late_nodes(self.graph, self._resources, is_body=self._is_body)
        early = [node for node in self.graph.nodes if node not in late]
        for node in early:
            if (found := counting(node, self._resources)) is not None:
                self._counted[node] = found
        self._on_host = self._not_held(early)
        levels = levels_of(early, {*self._counted, *self._on_host})
        eager = [node for _, nodes in levels for node in nodes]
        lonely = [node for node in eager if node not in self._counted]
        self._interpreter = self._resources.interpreter(lonely)
        values = (*self.graph.inputs, *self.graph.outputs.values())
        if not late and not eager and all(map(is_plannable, values)):
            self._only = self._plan(self.graph, ends, laying)
            self.stages.append(Stage(self._only))
            exchange = exchange_of(self._only.device)
            self.resident = Resident(self._only, exchange) if exchange else None
            return
        wanted = {value for value in self.graph.outputs.values() if value.data is None}
        if late:
            wanted.update(self._cut_tail(late))
        for planned, nodes in levels:
            self.stages.append(self._stage(planned, nodes, wanted))
        kept = {*self.graph.outputs.values(), *self._tail_inputs}
        self._dying = last_reads(self.stages, kept)

    def _not_held(self, nodes: Iterable[Node]) -> dict[Node, str]:
        """Return the nodes with bodies that the host runs, each with the reason, if any."""
        deciding = [node for node in nodes if node.op.graphs()]
        if self._nesting is None:
            return dict.fromkeys(deciding, "")
        reasons = {node: self._nesting.hold(node) for node in deciding}
        on_host = self._nesting.device is HOST
        return {n: "" if on_host else reason for n, reason in reasons.items() if reason}

    def _cut_tail(self, late: set[Node]) -> Sequence[Value]:
        """Move the late nodes to the tail; return the values that it reads."""
        made = {value for node in late for value in node.outputs}
        nodes = (node for node in self.graph.nodes if node in late)
        reads = dict.fromkeys(value for node in nodes for value in node.distinct_reads)
        inputs = tuple(v for v in reads if v not in made and v.data is None)
        outputs = {name: v for name, v in self.graph.outputs.items() if v in made}
        tail = Programs(self.graph.cut(inputs, outputs), self._resources)
        self.tail, self._tail_inputs = tail, inputs
        return inputs

    def _stage(self, planned: Sequence[Node], eager: list[Node], wanted: Set[Value]) -> Stage:
        for node in eager:
            if node.op.graphs():
                self._bodies[node] = _Bodies(node, self._resources)
        if not planned:
            return Stage(nodes=eager)
        inside = set(planned)
        made = (value for node in planned for value in node.outputs)
        outputs = [v for v in made if v in wanted or any(c not in inside for c in v.consumers)]
        reads = dict.fromkeys(v for node in planned for v in node.distinct_reads if v.data is None)
        inputs = [v for v in reads if v.producer not in inside]
        part = self.graph.cut(inputs, {v.name: v for v in outputs})
        return Stage(self._plan(part), tuple(inputs), tuple(outputs), eager)

    @property
    def is_plan(self) -> bool:
        """Whether it is a single plan whose results are separate arrays."""
        return self._only is not None

    def _plan(self, graph: Graph, ends: IOPlacement = HOST_IO, laying: LayOut = lay_out) -> Plan:
        resources = self._resources
        options, stores = resources.options, resources.stores
        budget = resources.budget
        backends = resources.backends
        return Plan(graph, backends, options, stores, ends, self._nesting, budget, laying)

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def run(self, feeds: Mapping[str, HostValue]) -> dict[str, HostValue]:
        """Run once.

        Args:
            feeds: a value of the program's type for every input.

        Returns:
            The results by output name; they may be arrays of `feeds` or views of them.

        Raises:
            ModelError, DeviceError: a node fails on its data; the message names the node.
            LimitError: a result would exceed `Options.max_bytes`.
        """
        if self._only is not None:
            return {**self._only.run(_arrays(feeds))}
        tally = Tally(self._resources.budget)
        try:
            return self._run_stages(feeds, tally)
        finally:
            tally.close()

    def _run_stages(self, feeds: Mapping[str, HostValue], tally: Tally) -> dict[str, HostValue]:
        values: dict[Value, HostValue] = {v: feeds[v.name] for v in self.graph.inputs}
        tally.lend(values.values())
        for stage in self.stages:
            if stage.plan is not None:
                found = stage.plan.run(_arrays({v.name: values[v] for v in stage.inputs}))
                for value in stage.outputs:
                    values[value] = found[value.name]
                    tally.add(values[value], f"the result '{value.name}'")
            for node in stage.nodes:
                check_time()
                values.update(zip(node.outputs, self._run_node(node, values, tally), strict=False))
                for value in self._dying.get(node, ()):
                    tally.drop(values.pop(value))
        results: dict[str, HostValue] = {}
        if self.tail is not None:
            results = self.tail.run([values[v] for v in self._tail_inputs])
        for name, value in self.graph.outputs.items():
            if name not in results:
                results[name] = values[value] if value.data is None else value.data
        return {name: results[name] for name in self.graph.outputs}

    def _run_node(
        self, node: Node, values: Mapping[Value, HostValue], tally: Tally
    ) -> Sequence[HostValue]:
        inputs = [None if v is None else _value_of(v, values) for v in node.inputs]
        try:
            if node in self._bodies:
                bodies = self._bodies[node]
                bodies.enter(values)
                from .host_control import run_control

                results: Sequence[HostValue] = run_control(node.op, bodies, inputs)
            elif node in self._counted:
                results = self._counted[node].run(inputs)
            elif self._interpreter is not None:
                results = self._interpreter.evaluate(node, inputs, self._resources.stores[HOST])
            else:
                raise RuntimeError(f"{_where(node)} has no backend that runs it")
            for value, data in zip(node.outputs, results, strict=False):
                tally.add(data, f"the result '{value.name}'")
        except ShapeError as error:
            raise ModelError(f"{error}; inputs: {_texts(inputs)}", where=_where(node)) from error
        except LimitError as error:
            raise LimitError(f"{_where(node)}: {error}") from error
        except MemoryError as error:
            raise out_of_memory(_where(node), error) from error
        except FAILURES as error:
            raise DeviceError(f"{_where(node)}: {error}; inputs: {_texts(inputs)}") from error
        for value, data in zip(node.outputs, results, strict=False):
            _check_type(node, value, data)
            if value.declared is not None:
                self._resources.doubts.meet(value, type_of(data, value.type))
        return results

    # ── description ──────────────────────────────────────────────────────────────────────────

    def walk(self) -> Iterator[Program]:
        """Yield this program, then those of its bodies and tail that exist already."""
        yield self
        for bodies in self._bodies.values():
            yield from bodies.walk()
        if self.tail is not None:
            yield from self.tail.walk()

    def bodies_of(self, node: Node) -> Iterator[Program]:
        """Yield the programs of a node's bodies that have run."""
        return iter(self._bodies[node]) if node in self._bodies else iter(())

    def why_on_host(self, node: Node) -> str:
        """Return why the host runs a node with bodies; empty if no device could."""
        return self._on_host.get(node, "")

    def plan_of(self, node: Node) -> Plan | None:
        """Return the plan that runs a node with upper bounds on a device; None for other nodes."""
        return self._counted[node].plan if node in self._counted else None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Its plans in execution order, without those of bodies and tails."""
        found: list[Plan | None] = []
        for stage in self.stages:
            found += [stage.plan, *map(self.plan_of, stage.nodes)]
        return tuple(plan for plan in found if plan is not None)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of its plans in execution order."""
        return tuple(row for plan in self.plans for row in plan.rows)

    @property
    def refusals(self) -> tuple[NodeRefusal, ...]:
        """What backends declined."""
        return tuple(refusal for plan in self.plans for refusal in plan.refusals)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the placement that concern all rows."""
        return ()

    @property
    def memory(self) -> Memory:
        """Bytes that it holds, bodies and tail included."""
        parts = [plan.memory for program in self.walk() for plan in program.plans]
        weights = {d.name: s.nbytes for d, s in self._resources.stores.items()}
        return Memory.total(parts, weights)

    def taken(self, budget: Budget) -> int:
        """Return the bytes of a budget held by its plans, bodies and tail included."""
        plans = (plan for program in self.walk() for plan in program.plans)
        return sum(plan.taken.get(budget, 0) for plan in plans)

    def close(self) -> None:
        """Release all memory; the program cannot run afterwards, and its graphs are empty."""
        told, self.on_closed = self.on_closed, None
        ran = list[Graph]()
        if told is not None:
            for program in self.walk():
                ran += (program.graph, *(plan.graph for plan in program.plans))
        self._only = None
        if self.resident is not None:
            self.resident.close()
        for stage in self.stages:
            if stage.plan is not None:
                stage.plan.close()
        for counted in self._counted.values():
            counted.plan.close()
        for bodies in self._bodies.values():
            bodies.close()
        if self.tail is not None:
            self.tail.close()
        if told is not None:
            told(ran)


class Programs:
    """The programs of one graph, one for every set of input types; the most recent are kept.

    Args:
        graph: a graph whose input types are not all known.
        resources: what programs are made with.
        owner: the node whose body it is, if any.
    """

    def __init__(self, graph: Graph, resources: Resources, owner: Op | None = None) -> None:
        self.graph = graph
        self._resources = resources
        self._owner = owner
        self._keys = Keys()
        self._found: OrderedDict[Hashable, Program] = OrderedDict()

    def run(self, values: Sequence[HostValue]) -> dict[str, HostValue]:
        """Run on values of the graph's inputs; see `Program.run`."""
        return self.find(values).run(self.feeds(values))

    def feeds(self, values: Sequence[HostValue]) -> dict[str, HostValue]:
        """Return the values by name of the graph's inputs."""
        return {v.name: data for v, data in zip(self.graph.inputs, values, strict=True)}

    def find(self, values: Sequence[HostValue]) -> Program:
        """Return the program for values of these types; it is made if missing."""
        pairs = zip(values, self.graph.inputs, strict=True)
        types = tuple(type_of(data, formal.type) for data, formal in pairs)
        key, known = self._keys.find(types, values)
        program = self._found.get(key)
        if program is None:
            try:
                with self._resources.lock:
                    is_body = self._owner is not None
                    graph, is_general = self._bound(known)
                    program = Program(graph, self._resources, is_body=is_body)
                    program.is_general = is_general
            except UnsupportedError:
                # The inputs of a body differ between iterations.
                if self._owner is not None or not self._keys.learn(types, values):
                    raise
                return self.find(values)
            self._found[key] = program
            if len(self._found) > self._resources.options.max_plans:
                self._found.popitem(last=False)[1].close()
        self._found.move_to_end(key)
        return program

    def _bound(self, types: Types) -> tuple[Graph, bool]:
        """Return the graph for these input types, and whether they hold in every iteration.

        Types are generalised to hold in every iteration, unless the file declares exactly these
        types.
        """
        general = self._widened(types)
        pairs = zip(self.graph.inputs, types, general, strict=True)
        changing = [(value, one) for value, one, wide in pairs if one != wide]
        if changing and all(one == value.declared for value, one in changing):
            return settled(self.graph, types, self._resources), False
        return settled(self.graph, general, self._resources), True

    def _widened(self, types: Types) -> Types:
        """Return types of a loop body's inputs that hold in every iteration."""
        count = len(self._owner.graphs()[0].inputs) if isinstance(self._owner, Loop) else 0
        while self._owner is not None and count:
            named = {v.name: type_ for v, type_ in zip(self.graph.inputs, types, strict=True)}
            body = specialise(self.graph, named)
            wider = self._owner.widened(body, types[:count])
            if wider == types[:count]:
                break
            types = (*wider, *types[count:])
        return types

    def __iter__(self) -> Iterator[Program]:
        """Yield the programs kept."""
        return iter(self._found.values())

    def walk(self) -> Iterator[Program]:
        """Yield the programs kept, and those inside them."""
        for program in self:
            yield from program.walk()

    def close(self) -> None:
        """Release all memory."""
        for program in self._found.values():
            program.close()
        self._found.clear()


class _Bodies:
    """The bodies of one node; those that never run cost nothing."""

    def __init__(self, node: Node, resources: Resources) -> None:
        self.node = node
        self._resources = resources
        self._programs: dict[Graph, Programs] = {}
        self._captured: dict[Graph, list[Value]] = {}
        self._values: Mapping[Value, HostValue] = {}
        self._running: Program | None = None
        captured = node.captured
        for body in node.op.graphs():
            self._captured[body] = [captured[formal] for formal in body.captures]

    @property
    def budget(self) -> Budget:
        return self._resources.budget

    def enter(self, values: Mapping[Value, HostValue]) -> None:
        """Set the captured values for this run of the node."""
        self._values = values
        self._running = None

    def run(self, body: Graph, inputs: Sequence[HostValue]) -> list[HostValue]:
        programs = self._programs_of(body)
        captured = (self._values[v] for v in self._captured[body] if v.data is None)
        values = (*inputs, *captured)
        running = self._running
        if running is None or not running.is_general or not isinstance(self.node.op, Loop):
            running = self._running = programs.find(values)
        return list(running.run(programs.feeds(values)).values())

    def _programs_of(self, body: Graph) -> Programs:
        if body not in self._programs:
            graph = opened(body, self._captured[body], self._resources, {})
            self._programs[body] = Programs(graph, self._resources, self.node.op)
        return self._programs[body]

    def __iter__(self) -> Iterator[Program]:
        """Yield the programs made so far."""
        for programs in self._programs.values():
            yield from programs

    def walk(self) -> Iterator[Program]:
        """Yield the programs made so far, and those inside them."""
        for program in self:
            yield from program.walk()

    def close(self) -> None:
        """Release all memory."""
        for programs in self._programs.values():
            programs.close()


def _value_of(value: Value, values: Mapping[Value, HostValue]) -> HostValue:
    return values[value] if value.data is None else value.data


def _arrays(feeds: Mapping[str, HostValue]) -> dict[str, Array]:
    return {name: data for name, data in feeds.items() if isinstance(data, np.ndarray)}


def _texts(values: Iterable[HostValue]) -> str:
    return ", ".join("(left out)" if v is None else str(type_of(v)) for v in values)


def _where(node: Node) -> str:
    return f"node '{node.name}' ({node.kind})"


def _check_type(node: Node, value: Value, data: HostValue) -> None:
    """Raise ModelError for a result that contradicts inference, which later plans rely on."""
    type_ = value.type
    if isinstance(type_, TensorType) and type_.is_static:
        if isinstance(data, np.ndarray) and (data.shape, data.dtype) == (type_.shape, type_.dtype):
            return
        reason = f"gives '{value.name}' as {type_of(data, type_)}; the model says {type_}"
        raise ModelError(reason, where=_where(node))
