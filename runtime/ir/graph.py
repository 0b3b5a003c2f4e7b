"""The intermediate representation: values, nodes and graphs, all in one opset.

A `Graph` changes only through its methods, which keep producers, consumers and names consistent.
Control-flow bodies are separate graphs without access to outer scopes: an outer value that a body
reads is a formal parameter in `Graph.captures`, and the owning node holds the corresponding
values in `Node.captures`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from ..text import printable
from .node import Node, Value
from .op import Op, arity, body_names, with_attributes
from .types import Array, ValueType
from .unused_names import unused

__all__ = ["Graph", "Node", "Value"]

_position = attrgetter("position")
#: A new node is placed at this fraction of the gap to the next node. Many nodes are inserted before
#: the same one, each after the last, so most of the gap is left for those that follow.
_SHARE = 8


class Graph:
    """Nodes in topological order, with the graph's inputs and outputs.

    Attributes:
        name: its name in the file.
        inputs: the values that a caller feeds.
        captures: formal parameters of a control-flow body for outer values.
        nodes: in topological order.
        general: the graph with symbolic dimensions that this one was specialised from, or None.
        needs: symbols of inputs that can have one size only, see `ir.needs`.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.general: Graph | None = None
        self.needs: Mapping[str, int] = {}
        self.inputs: tuple[Value, ...] = ()
        self.captures: tuple[Value, ...] = ()
        self._nodes: list[Node] = []
        self._outputs: dict[str, Value] = {}
        self._labels: dict[Value, list[str]] = {}
        self._names: dict[str, Value] = {}
        self._node_names: set[str] = set()

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self.inputs))
        outputs = ", ".join(f"{name}=%{value.name}" for name, value in self._outputs.items())
        head, end = printable(f"graph {self.name}({inputs})"), printable(f"  return {outputs}")
        return "\n".join([head, *(f"  {node}" for node in self._nodes), end])

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes in topological order."""
        return self._nodes

    @property
    def outputs(self) -> Mapping[str, Value]:
        """The graph's results by external name; a value may appear twice."""
        return self._outputs

    @property
    def values(self) -> Mapping[str, Value]:
        """All values by name."""
        return self._names

    @property
    def constants(self) -> tuple[Value, ...]:
        """The constants that are read or are outputs."""
        known = (v for v in self._names.values() if v.is_constant)
        return tuple(v for v in known if v.consumers or v in self._labels)

    def is_output(self, value: Value) -> bool:
        """Whether `value` is one of the graph's results."""
        return value in self._labels

    def is_read(self, value: Value) -> bool:
        """Whether a node reads `value`, or it is one of the graph's results."""
        return bool(value.consumers) or self.is_output(value)

    def is_read_outside(self, value: Value, nodes: Container[Node]) -> bool:
        """Whether others than `nodes` read `value`, or it is one of the graph's results."""
        return self.is_output(value) or any(reader not in nodes for reader in value.consumers)

    def sole_consumer(self, value: Value) -> Node | None:
        """Return the only reader of `value`; None if it is read twice or is an output."""
        if len(value.consumers) != 1 or self.is_output(value):
            return None
        ((node, count),) = value.consumers.items()
        return node if count == 1 else None

    def made_for_one(self, value: Value) -> Node | None:
        """Return the node that computes `value` for its `sole_consumer`; else None."""
        return None if self.sole_consumer(value) is None else value.producer

    def in_order(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return a set of its nodes in topological order."""
        return tuple(sorted(nodes, key=_position))

    def __contains__(self, node: Node) -> bool:
        return bool(node.outputs) and self._names.get(node.outputs[0].name) is node.outputs[0]

    # ── building ─────────────────────────────────────────────────────────────────────────────

    def fresh_name(self, wanted: str) -> str:
        """Return `wanted`, with a number appended if a value has that name."""
        return unused(wanted, self._names)

    def _add(self, value: Value) -> Value:
        if value.name in self._names:
            raise ValueError(f"two values named '{value.name}'")
        self._names[value.name] = value
        return value

    def add_input(self, name: str, type: ValueType | None) -> Value:
        """Append a graph input."""
        value = self._add(Value(name, type))
        self.inputs += (value,)
        return value

    def add_capture(self, name: str, type: ValueType | None) -> Value:
        """Add a formal parameter for an outer value."""
        value = self._add(Value(name, type))
        self.captures += (value,)
        return value

    def constant(self, data: Array, name: str = "constant") -> Value:
        """Add a constant; a number is appended to its name if it is taken."""
        return self._add(Value(self.fresh_name(name), data=data))

    def insert(
        self,
        op: Op,
        inputs: Sequence[Value | None],
        outputs: Sequence[str] | int = 1,
        *,
        name: str | None = None,
        captures: Sequence[Value] = (),
        before: Node | None = None,
        origin: Iterable[Node] = (),
    ) -> Node:
        """Add a node with new output values, whose types are still unknown.

        Args:
            op: the operator.
            inputs: its inputs.
            outputs: names of its outputs, or their number.
            name: the node's name; the operator's name if empty.
            captures: actual values for the captures of the bodies in `op`.
            before: the node to insert it before; appended if None.
            origin: nodes that it replaces, whose names it keeps.
        """
        minimum, maximum = arity(type(op))
        if len(inputs) < minimum or (maximum is not None and len(inputs) > maximum):
            raise ValueError(f"{op} takes {minimum} to {maximum} inputs, not {len(inputs)}")
        label = unused(name or type(op).__name__, self._node_names)
        node = Node(
            op, label, tuple(dict.fromkeys(n for o in origin for n in o.origin)) or (label,)
        )
        if isinstance(outputs, int):
            outputs = [label if outputs == 1 else f"{label}:{i}" for i in range(outputs)]
            outputs = [self.fresh_name(text) for text in outputs]
        self._node_names.add(label)
        node.outputs = tuple(self._add(Value(text, producer=node)) for text in outputs)
        node.captures = tuple(captures)
        self._wire(node, tuple(inputs))
        self._put(node, before)
        return node

    def _put(self, node: Node, before: Node | None = None) -> None:
        """Insert a node before another one or at the end."""
        nodes = self._nodes
        if before is None:
            node.position = nodes[-1].position + 1 if nodes else 0.0
            nodes.append(node)
            return
        at = self._index(before)
        left = nodes[at - 1].position if at else before.position - 1
        node.position = left + (before.position - left) / _SHARE
        nodes.insert(at, node)
        if not left < node.position < before.position:
            for place, each in enumerate(nodes):
                each.position = float(place)

    def _index(self, node: Node) -> int:
        """Return the position of a node; raises ValueError if it is not in the graph."""
        at = bisect_left(self._nodes, node.position, key=_position)
        if at == len(self._nodes) or self._nodes[at] is not node:
            raise ValueError(f"'{node.name}' is not a node of this graph")
        return at

    def fill(self, values: Iterable[Value], nodes: Iterable[Node]) -> None:
        """Give an empty graph its values and nodes, which are connected and in order."""
        self._names = {value.name: value for value in values}
        self._nodes = list(nodes)
        self._node_names = {node.name for node in self._nodes}

    def set_outputs(self, outputs: Mapping[str, Value]) -> None:
        """Set the graph's results, by external name."""
        self._outputs, self._labels = dict(outputs), {}
        for name, value in outputs.items():
            self._labels.setdefault(value, []).append(name)

    # ── rewriting ────────────────────────────────────────────────────────────────────────────

    def _wire(self, node: Node, inputs: tuple[Value | None, ...]) -> None:
        node.inputs = inputs
        for value in (*inputs, *node.captures):
            if value is not None:
                value.consumers[node] = value.consumers.get(node, 0) + 1

    def _unwire(self, node: Node) -> None:
        for value in (*node.inputs, *node.captures):
            if value is not None:
                value.consumers.pop(node, None)

    def set_data(self, value: Value, data: Array) -> None:
        """Replace the elements of a constant."""
        if value.data is None:
            raise ValueError(f"'{value.name}' is not a constant")
        value.fix(data)

    def freeze(self, value: Value, data: Array) -> None:
        """Turn an input into a constant."""
        self.inputs = tuple(each for each in self.inputs if each is not value)
        value.fix(data)

    def drop_input(self, value: Value) -> None:
        """Remove an input; raises ValueError if it is still read."""
        if value.consumers or self.is_output(value):
            raise ValueError(f"'{value.name}' is still read")
        self.inputs = tuple(each for each in self.inputs if each is not value)
        del self._names[value.name]

    def set_inputs(self, node: Node, inputs: Sequence[Value | None]) -> None:
        """Replace the inputs of `node`."""
        self._unwire(node)
        self._wire(node, tuple(inputs))

    def set_op(self, node: Node, op: Op) -> None:
        """Replace the operator of `node`, or its attributes; its outputs stay."""
        node.op = op

    def rename(self, node: Node, name: str) -> None:
        """Rename `node`; a number is appended if another node has that name."""
        self._node_names.discard(node.name)
        node.name = unused(name, self._node_names)
        self._node_names.add(node.name)

    def relabel(self, value: Value, name: str) -> None:
        """Rename a computed value; a number is appended if another value has that name."""
        del self._names[value.name]
        value.name = unused(name, self._names)
        self._names[value.name] = value

    def redirect(self, old: Value, new: Value) -> None:
        """Make all readers of `old`, graph outputs included, read `new`."""
        if old is new:
            return
        for node, count in old.consumers.items():
            node.inputs = _with(node.inputs, old, new)
            node.captures = tuple(new if v is old else v for v in node.captures)
            new.consumers[node] = new.consumers.get(node, 0) + count
        old.consumers = {}
        if names := self._labels.pop(old, []):
            self._outputs.update(dict.fromkeys(names, new))
            self._labels.setdefault(new, []).extend(names)
            if new.producer is not None:  # what an input may be is not for others to say
                new.declared = new.declared or old.declared

    def replace(self, node: Node, values: Sequence[Value]) -> None:
        """Remove `node`, and make all readers of its outputs read `values`."""
        for old, new in zip(node.outputs, values, strict=True):
            self.redirect(old, new)
        self.remove(node)

    def settle(self, node: Node, results: Sequence[Array]) -> None:
        """Replace `node` by constants with these elements."""
        for value, data in zip(node.outputs, results, strict=True):
            value.producer = None
            value.fix(data)
        self._unwire(node)
        del self._nodes[self._index(node)]
        self._node_names.discard(node.name)

    def drop(self, value: Value) -> bool:
        """Remove a constant unless it is still read; return whether it was removed."""
        if value.data is None or value.consumers or self.is_output(value):
            return False
        return self._names.pop(value.name, None) is not None

    def remove(self, node: Node) -> None:
        """Remove a node whose outputs are unused; raises ValueError if they are not."""
        for value in node.outputs:
            if value.consumers or self.is_output(value):
                raise ValueError(f"'{value.name}' of node '{node.name}' is still read")
        self._unwire(node)
        del self._nodes[self._index(node)]
        self._forget(node)

    def _forget(self, node: Node) -> None:
        self._node_names.discard(node.name)
        for value in node.outputs:
            del self._names[value.name]

    def sweep(self) -> list[Node]:
        """Remove nodes and constants that no result depends on; return these nodes."""
        needed = self.needed(self._outputs.values())
        kept, dead = list[Node](), list[Node]()
        for node in self._nodes:
            (dead if needed.isdisjoint(node.outputs) else kept).append(node)
        for node in reversed(dead):
            self._unwire(node)
            self._forget(node)
        self._nodes = kept
        for value in [v for v in self._names.values() if v.is_constant and v not in needed]:
            del self._names[value.name]
        return dead

    def needed(self, values: Iterable[Value]) -> set[Value]:
        """Return the values that some of these depend on, themselves included."""
        found = set(values)
        for node in reversed(self._nodes):
            if not found.isdisjoint(node.outputs):
                found.update(node.distinct_reads)
        return found

    def dissolve(self) -> None:
        """Remove everything, so that no values and nodes wait for the garbage collector."""
        for node in self._nodes:
            for body in node.op.graphs():
                body.dissolve()
            for value in node.outputs:
                value.producer = None
            node.inputs = node.captures = node.outputs = ()
        for value in self._names.values():
            value.consumers = {}
        self.inputs, self.captures, self.general = (), (), None
        for held in (self._nodes, self._outputs, self._labels, self._names, self._node_names):
            held.clear()

    def clone(self) -> Graph:
        """Return an independent copy, bodies included; constants share their arrays."""
        copy = Graph(self.name)
        copy.general, copy.needs = self.general, self.needs
        image = {v: copy._add(v.twin(v.name)) for v in self._names.values()}
        copy.inputs = tuple(image[v] for v in self.inputs)
        copy.captures = tuple(image[v] for v in self.captures)
        for node in self._nodes:
            copy._adopt(node, tuple(image[v] for v in node.outputs), image)
        copy.set_outputs({name: image[v] for name, v in self._outputs.items()})
        return copy

    def _adopt(self, node: Node, outputs: tuple[Value, ...], image: Mapping[Value, Value]) -> None:
        """Append a copy of another graph's node, with its inputs mapped to this graph."""
        twin = Node(_with_own_bodies(node.op), node.name, node.origin)
        twin.outputs = outputs
        for value in outputs:
            value.producer = twin
        twin.captures = tuple(image[v] for v in node.captures)
        self._wire(twin, tuple(image[v] if v else None for v in node.inputs))
        self._node_names.add(twin.name)
        self._put(twin)

    def extract(self, outputs: Mapping[str, Value], inputs: Container[str] | None = None) -> Graph:
        """Return a copy that computes only these values.

        Args:
            outputs: values of this graph, under the names of the copy's results.
            inputs: names of the inputs to keep, all that the values depend on among them; all
                inputs if None.
        """
        copy = self.clone()
        copy.set_outputs({name: copy.values[value.name] for name, value in outputs.items()})
        copy.sweep()
        if inputs is not None:
            for value in copy.inputs:
                if value.name not in inputs:
                    copy.drop_input(value)
        return copy

    def cut(self, inputs: Sequence[Value], outputs: Mapping[str, Value]) -> Graph:
        """Return a copy of the part that computes some values from others.

        Args:
            inputs: values of this graph that become the copy's inputs, with the same names.
            outputs: values of this graph that become its results, under these names.

        Raises:
            ValueError: an output depends on an input of this graph that is not among `inputs`.
        """
        given, needed, kept = set(inputs), set(outputs.values()), list[Node]()
        for node in reversed(self._nodes):
            if any(v in needed and v not in given for v in node.outputs):
                needed.update(node.distinct_reads)
                kept.append(node)
        part = Graph(self.name)
        image = {value: part.add_input(value.name, value.type) for value in inputs}
        for value in (*self.inputs, *self.captures):
            if value in needed and value not in given:
                raise ValueError(f"the part depends on '{value.name}', which is not an input of it")
        for value in self._names.values():
            if value in needed and value.data is not None and value not in given:
                image[value] = part._add(value.twin(value.name))
        for node in reversed(kept):
            made = [part._add(v.twin(part.fresh_name(v.name))) for v in node.outputs]
            part._adopt(node, tuple(made), image)
            for value, twin in zip(node.outputs, made, strict=True):
                image.setdefault(value, twin)
        part.set_outputs({name: image[value] for name, value in outputs.items()})
        return part

    def opened(self, actual: Sequence[Value]) -> Graph:
        """Return a copy of a body with its captures as additional inputs.

        Args:
            actual: the captured values; constants among them become constants of the copy.
        """
        copy = self.clone()
        for formal, value in zip(copy.captures, actual, strict=True):
            if value.data is None:
                copy.inputs += (formal,)
            else:
                formal.fix(value.data)
        copy.captures = ()
        return copy

    def splice(self, node: Node, body: Graph, inputs: Sequence[Value] = ()) -> tuple[Value, ...]:
        """Insert copies of a body's nodes before the node that owns it.

        Args:
            node: the owner, which is kept.
            body: one of ``node.op.graphs()``.
            inputs: the values for the body's inputs.

        Returns:
            The body's results.
        """
        image = dict(zip(body.inputs, inputs, strict=True)) | node.captured
        for value in body.values.values():
            if value.data is not None:
                image[value] = self.constant(value.data, value.name)
        for each in body.nodes:
            made = self.insert(
                _with_own_bodies(each.op),
                [image[v] if v else None for v in each.inputs],
                [self.fresh_name(v.name) for v in each.outputs],
                name=each.name,
                captures=[image[v] for v in each.captures],
                before=node,
            )
            made.origin = each.origin
            for value, twin in zip(each.outputs, made.outputs, strict=True):
                twin.type, twin.declared = value.type, value.declared
                image[value] = twin
        return tuple(image[value] for value in body.outputs.values())

    def walk(self) -> Iterator[Node]:
        """Yield every node; nodes of a control-flow body follow its owner."""
        for node in self._nodes:
            yield node
            for body in node.op.graphs():
                yield from body.walk()

    def graphs(self) -> Iterator[Graph]:
        """Yield this graph, and then all control-flow bodies in it."""
        yield self
        for node in self.walk():
            yield from node.op.graphs()


def _with(values: tuple[Value | None, ...], old: Value, new: Value) -> tuple[Value | None, ...]:
    """Return the values with `new` in place of `old`; a node may have thousands."""
    found, at = list(values), -1
    for _ in range(values.count(old)):
        at = found.index(old, at + 1)
        found[at] = new
    return tuple(found)


def _with_own_bodies(op: Op) -> Op:
    bodies = {name: body.clone() for name in body_names(type(op)) if (body := getattr(op, name))}
    return with_attributes(op, **bodies) if bodies else op
