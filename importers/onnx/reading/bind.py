"""From the parsed file to a `Graph`: names become values, attributes become operators, in one pass.

Types are inferred as nodes are added, because upgrading an old operator may depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

from ....runtime.base.guard import check_time
from ....runtime.errors import (
    FAILURES,
    ModelError,
    ShapeError,
    TercetError,
    UnsupportedError,
    did_you_mean,
    out_of_memory,
)
from ....runtime.ir.graph import Graph, Value
from ....runtime.ir.hints import without_shapes
from ....runtime.ir.infer import infer_node
from ....runtime.ir.needs import recorded, unanimous
from ....runtime.ir.op import Op, arity, input_kinds, with_tensors
from ....runtime.ir.types import Array, ValueType
from ....runtime.ir.unknown import Opaque, UnknownOperator, UnknownOperators, stand_in
from ..contrib.catalogue import OTHER_DOMAINS, TENSORFLOW, find, find_complex
from ..contrib.declaration import DOMAIN, Contrib
from ..contrib.recipes import exact_recipe, recipe
from ..source.raw import RawFunction, RawGraph, RawModel, RawNode, Reference, items
from ..source.source import FileSource
from ..upgrading.rewrite import NEWEST
from ..upgrading.upgrade import upgrade
from .attributes import Mismatch, make
from .constant_nodes import elements_of
from .expansion import expand
from .functions import check_functions, key_of
from .opset_hints import opset_hint
from .order import Names, distinct
from .scope import NameSpace, Scope

Operators = Mapping[tuple[str, str], type[Op]]


def bind(
    model: RawModel, operators: Operators, source: FileSource
) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph of a model with inferred types, and warnings for the user.

    Raises:
        ModelError: the file violates the ONNX specification.
        UnknownOperators: some operators are not in `operators`.
        UnsupportedError: an operator has a meaning that the newest opset lacks.
        LimitError: the model would exceed the limits.
    """
    check_functions(model, source)
    binder = _Binder(model, operators, source)
    try:
        with recorded() as needs:
            graph = binder.main(model.graph)
    except TercetError as error:
        raise binder.unknown() or error from None
    if (unknown := binder.unknown()) is not None:
        raise unknown
    graph.needs = unanimous(needs)
    return graph, tuple(dict.fromkeys(binder.warnings))


class _Binder:
    """Builds one model.

    Attributes:
        warnings: messages for the user.
        producer: the program that wrote the file.
        pairs: complex numbers, as pairs along a last axis of which the file does not know.
    """

    def __init__(self, model: RawModel, operators: Operators, source: FileSource) -> None:
        self.warnings = list(model.warnings)
        self._functions, self.producer = model.functions, model.producer
        self._operators = operators
        self._unnamed = {DOMAIN, *OTHER_DOMAINS, *(domain for domain, _ in operators)} - {""}
        self._unnamed |= {""} if set(model.opsets) == {"ai.onnx.ml"} else set()
        self._source = source
        self._has_initializers = bool(model.graph.constants)
        self._names = Names(source)
        self._unknown: dict[tuple[str, str, str], list[RawNode]] = {}
        self.pairs: set[Value] = set()

    # ── graphs and functions ─────────────────────────────────────────────────────────────────

    def main(self, raw: RawGraph) -> Graph:
        """Return the main graph."""
        for name, type_ in raw.inputs.items():
            if type_ is None and name not in raw.constants:
                raise self._source.error("declares no element type", f"input '{name}'")
        graph = self._graph(raw, None).graph
        if more := [name for name in graph.outputs if name not in raw.outputs]:
            self.warnings.append(
                f"the file lists an output twice; further results are called {', '.join(more)}"
            )
        return graph

    def _graph(self, raw: RawGraph, outer: Scope | None) -> Scope:
        """Return the scope of a graph after building it.

        An initializer that is also listed as an input is a constant, whatever the IR version.
        """
        computed = (name for node in raw.nodes for name in node.outputs)
        reserved = {*raw.inputs, *raw.constants, *computed}
        space = NameSpace(Graph(raw.name), reserved, is_body=outer is not None)
        actual = outer.attributes if outer else None
        scope = Scope(space, outer=outer, declared=raw.declared, attributes=actual)
        for name, data in raw.constants.items():
            scope.define(name, space.graph.constant(data, name))
        for name, type_ in raw.inputs.items():
            if name not in raw.constants:
                scope.define(name, _input(space, name, type_))
        nodes = self._ordered(
            raw.nodes, {*raw.inputs, *raw.constants}, scope, f"graph '{raw.name}'"
        )
        scope.reads |= set(raw.outputs)
        for node in nodes:
            self._node(node, scope)
        space.graph.set_outputs(self._outputs(raw, scope))
        return scope

    def _ordered(
        self, nodes: tuple[RawNode, ...], defined: set[str], scope: Scope, where: str
    ) -> tuple[RawNode, ...]:
        ordered, scope.reads = self._names.sorted(nodes, defined)
        if ordered is not nodes:
            self.warnings.append(f"{where}: the nodes were not in order and have been sorted")
        return ordered

    def _outputs(self, raw: RawGraph, scope: Scope) -> dict[str, Value]:
        where = f"output of graph '{raw.name}'"
        values = [self._find(name, scope, where) for name in raw.outputs]
        if read := [name for name, x in zip(raw.outputs, values, strict=True) if x in self.pairs]:
            self._refuse_pairs(read, where)
        return dict(zip(distinct(raw.outputs), values, strict=True))

    def _call(self, function: RawFunction, node: RawNode, scope: Scope) -> None:
        """Inline a function into the caller's graph.

        Attributes that it does not declare count where its nodes refer to them, and nowhere else,
        as in onnxruntime; rewriters of onnxscript leave such ones.
        """
        for name in node.attributes.keys() - function.attributes.keys():
            hint = did_you_mean(name, list(function.attributes))
            self.warnings.append(f"{function.where} declares no attribute '{name}'{hint}")
        for kind in ("inputs", "outputs"):
            given, taken = len(getattr(node, kind)), len(getattr(function, kind))
            if given > taken:
                reason = f"has {given} {kind}; {function.where} has {taken}"
                raise self._source.error(reason, node.where)
        results = dict(zip(function.outputs, node.outputs, strict=False))
        results = {formal: name for formal, name in results.items() if name}
        computed = (name for each in function.nodes for name in each.outputs)
        inner = Scope(
            scope.space,
            local={*function.inputs, *computed},
            prefix=f"{scope.prefix}{node.name or node.result}/",
            results={formal: scope.value_name(name) for formal, name in results.items()},
            attributes={**function.attributes, **node.attributes},
        )
        for formal in function.inputs:
            inner.define(formal, None)
        for formal, name in zip(function.inputs, node.inputs, strict=False):
            inner.define(formal, self._find_optional(name, scope, node.where) if name else None)
        nodes = self._ordered(function.nodes, set(function.inputs), inner, function.where)
        inner.reads |= set(results)
        for each in nodes:
            self._node(each, inner)
        for formal, name in results.items():
            scope.define(name, self._find(formal, inner, f"output of {function.where}"))

    def _find(self, name: str, scope: Scope, where: str) -> Value:
        """Return an output, which is no weight."""
        value = self._find_optional(name, scope, where, may_be_weight=False)
        if value is None:
            raise self._source.error(
                f"wants '{name}', which the function's caller leaves out", where
            )
        return value

    def _find_optional(
        self, name: str, scope: Scope, where: str, *, may_be_weight: bool = True
    ) -> Value | None:
        try:
            return scope.find(name)
        except KeyError:
            hint = did_you_mean(name, scope.visible()[:1000])
            if not hint and may_be_weight and not self._has_initializers:
                hint = (
                    "; the file has no initializers, as if it was written without its weights: "
                    "export it with them (PyTorch: without export_params=False, "
                    "include_initializers=False)"
                )
            reason = f"reads '{name}', which nothing computes{hint}"
            raise self._source.error(reason, where) from None

    # ── nodes ────────────────────────────────────────────────────────────────────────────────

    def _node(self, node: RawNode, scope: Scope) -> None:
        """Add a node of the file, or what stands for it."""
        try:
            self._add(node, scope)
        except MemoryError as error:
            raise out_of_memory(node.where, error) from error
        except FAILURES as error:
            reason = f"attributes or inputs make no sense: {error}"
            raise self._source.error(reason, node.where) from error

    def _add(self, node: RawNode, scope: Scope) -> None:
        check_time()
        if not any(node.outputs):
            raise self._source.error("has no outputs", node.where)
        node = self._imported(self._resolved(node, scope))
        function = self._functions.get(key_of(node))
        node = self._trimmed(node, function)
        if function is not None:
            self._call(function, node, scope)
        elif node.op == "Constant" and not node.domain:
            name = node.outputs[0]
            data = elements_of(node, self._source)
            scope.define(name, scope.graph.constant(data, scope.value_name(name)))
        elif node.opset is None:
            reason = f"uses domain '{node.domain}', which the model does not import"
            raise self._source.error(reason, node.where)
        else:
            origin = scope.prefix + (node.name or node.result or node.op)
            site = _Site(self, scope, origin)
            if (declared := self._contrib(node, scope)) is not None:
                self._expand(declared, node, site)
                return
            for each in upgrade(node, site):
                label = origin if each.name == node.name else each.name
                self.insert(each, scope, label, origin)

    def _imported(self, node: RawNode) -> RawNode:
        """Return the node in the newest version of its domain, if the model does not import that.

        onnxruntime takes that version, too. Its quantizers write such files, and its converter to
        float16 adds casts to models of ai.onnx.ml.
        """
        if node.opset is not None or node.domain not in self._unnamed:
            return node
        version, title = NEWEST.get(node.domain, 1), node.domain or "ai.onnx"
        text = f"the file uses domain '{title}' without importing it: version {version} is meant"
        if text not in self.warnings:
            self.warnings.append(text)
        return node.change(opset=version)

    def _contrib(self, node: RawNode, scope: Scope) -> Contrib | None:
        """Return the definition of an operator that ONNX lacks; custom operators take precedence.

        Raises:
            UnsupportedError: none takes complex numbers, and it reads such.
        """
        if self.pairs and (read := self._pairs_of(node.inputs, scope)):
            plain = not node.domain or node.domain == TENSORFLOW
            if (found := find_complex(node.op) if plain else None) is not None:
                return found
            self._refuse_pairs(read, node.where)
        if (node.domain, node.op) in self._operators or node.overload:
            return None
        return find(node.domain, node.op)

    def _pairs_of(self, names: Sequence[str], scope: Scope) -> list[str]:
        """Return those of some names that are complex numbers."""
        return [name for name in names if name and scope.known(name) in self.pairs]

    def _refuse_pairs(self, names: Sequence[str], where: str) -> None:
        raise self._source.unsupported(
            f"'{names[0]}' is of complex numbers, which it does not take; give their real and "
            "imaginary parts to it (tf.math.real, tf.math.imag)",
            where,
        )

    def _expand(self, declared: Contrib, node: RawNode, site: _Site) -> None:
        """Replace an onnxruntime operator by its definition, keeping output names."""
        results = expand(declared, node, site)
        for name, result in zip(node.outputs, results, strict=False):
            if name and result:
                site.define(name, result)

    def _trimmed(self, node: RawNode, function: RawFunction | None) -> RawNode:
        """Return the node without omitted optional outputs at the end."""
        operator = self._operators.get((node.domain, node.op)) if function is None else None
        minimum, maximum = operator.outputs if operator is not None else (0, 0)
        count = len(node.outputs)
        while maximum is not None and count > minimum and not node.outputs[count - 1]:
            count -= 1
        return node.change(outputs=node.outputs[:count]) if count < len(node.outputs) else node

    def _resolved(self, node: RawNode, scope: Scope) -> RawNode:
        """Return the node with references to function attributes resolved."""
        if not any(isinstance(value, Reference) for value in node.attributes.values()):
            return node
        attributes: dict[str, Any] = {}
        for name, value in node.attributes.items():
            if isinstance(value, Reference):
                if value.name not in (scope.attributes or ()):
                    reason = f"attribute '{name}' refers to '{value.name}', which no function has"
                    raise self._source.error(reason, node.where)
                value = (scope.attributes or {})[value.name]
                if isinstance(value, RawGraph):
                    raise self._source.unsupported("bodies given to functions", node.where)
            if value is not None:
                attributes[name] = value
        return node.change(attributes=attributes)

    def _operator(self, node: RawNode) -> type[Op]:
        operator = self._operators.get((node.domain, node.op))
        if operator is not None and (not node.overload or issubclass(operator, Opaque)):
            return operator
        self._unknown.setdefault((node.domain, node.op, node.overload), []).append(node)
        return stand_in(node.domain, node.op)

    def unknown(self) -> UnknownOperators | None:
        """Return the error for all unknown operators; None if there are none."""
        found = tuple(
            UnknownOperator(
                domain,
                name,
                overload,
                nodes[0].opset,
                tuple(node.name or node.result for node in nodes),
                self._hint(domain, name),
            )
            for (domain, name, overload), nodes in self._unknown.items()
        )
        return UnknownOperators(found, self._source.file) if found else None

    def _hint(self, domain: str, name: str) -> str:
        if text := exact_recipe(domain, name):
            return f"; {text}"
        keys = (*self._operators, *((key[0], key[1]) for key in self._functions))
        near = did_you_mean(
            name, [known for where, known in keys if where == domain and known != name]
        )
        known = recipe(domain, name, self.producer)
        by_a_program = not domain and self.producer
        return f"; {known}{near}" if by_a_program else near or (f"; {known}" if known else "")

    def insert(self, node: RawNode, scope: Scope, label: str, origin: str) -> tuple[Value, ...]:
        """Add a node of the newest opset named `label` for the file's node `origin`."""
        operator = self._operator(node)
        captured: dict[Graph, list[Value]] = {}
        op = self._op(operator, node, scope, captured)
        inputs = [self._find_optional(n, scope, node.where) if n else None for n in node.inputs]
        kinds, minimum = input_kinds(operator), arity(operator)[0]
        while inputs and inputs[-1] is None:
            if len(inputs) <= minimum and NoneType in kinds[len(inputs) - 1]:
                break
            inputs.pop()
        self._check(op, inputs, node)
        unused = [""] * (op.result_count() - len(node.outputs))
        made = scope.graph.insert(
            op,
            inputs,
            [scope.value_name(name) for name in (*node.outputs, *unused)],
            name=scope.space.node(label),
            captures=[value for body in op.graphs() for value in captured[body]],
        )
        made.origin = (origin,)
        for name, value in zip(node.outputs, made.outputs, strict=False):
            value.declared = scope.declared.get(name)
            if name:
                scope.define(name, value)
        try:
            infer_node(made, file=self._source.file)
        except ModelError:
            # The owner of a body infers it again, and knows whether it must be valid.
            if not scope.space.is_body:
                raise
        return made.outputs

    def _op(
        self, operator: type[Op], node: RawNode, scope: Scope, captured: dict[Graph, list[Value]]
    ) -> Op:
        if issubclass(operator, Opaque):
            return operator(given=with_tensors(tuple(node.attributes.items())))
        try:
            given = node.attributes.items()
            return make(operator, {name: self._bound(v, scope, captured) for name, v in given})
        except Mismatch as error:
            raise self._source.error(f"{error}{opset_hint(node)}", node.where) from error
        except ShapeError as error:
            raise self._source.error(str(error), node.where) from error

    def _bound(self, value: Any, scope: Scope, captured: dict[Graph, list[Value]]) -> Any:
        """Return an attribute with graphs in place of the file's; note what these capture."""
        if isinstance(value, tuple):
            return tuple(self._bound(each, scope, captured) for each in items(value))
        if not isinstance(value, RawGraph):
            return value
        body = self._graph(value, scope)
        if read := [value.name for value in body.captured if value in self.pairs]:
            self._refuse_pairs(read, f"graph '{value.name}'")
        captured[body.graph] = body.captured
        return body.graph

    def _check(self, op: Op, inputs: Sequence[Value | None], node: RawNode) -> None:
        """Raise ModelError for a wrong number of inputs or outputs."""
        for kind, values, (minimum, maximum) in (
            ("inputs", inputs, arity(type(op))),
            ("outputs", node.outputs, op.outputs),
        ):
            if minimum <= len(values) and (maximum is None or len(values) <= maximum):
                continue
            bounds = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
            bounds = f"{minimum} or more" if maximum is None else bounds
            verb = "takes" if kind == "inputs" else "gives"
            reason = f"has {len(values)} {kind}; the operator {verb} {bounds}"
            raise self._source.error(reason, node.where)
        kinds = input_kinds(type(op))
        for i, value in enumerate(inputs[: arity(type(op))[0]]):
            if value is None and NoneType not in kinds[i]:
                reason = f"leaves out input {i}, which the operator needs"
                raise self._source.error(reason, node.where)

    def type_of(self, name: str, scope: Scope) -> ValueType | None:
        """Return what is known about a value at this place."""
        value = self._find_optional(name, scope, "node") if name else None
        return value.type if value is not None else None

    @property
    def source(self) -> FileSource:
        """The model, for messages."""
        return self._source


class _Site:
    """The position of one node, for `upgrade`."""

    def __init__(self, binder: _Binder, scope: Scope, origin: str) -> None:
        self._binder = binder
        self._scope = scope
        self._origin = origin
        self._own: set[Value] = set()
        self.producer = binder.producer

    def type_of(self, name: str) -> ValueType | None:
        return self._binder.type_of(name, self._scope)

    def is_read(self, name: str) -> bool:
        return name in self._scope.reads

    def fresh(self, hint: str) -> str:
        return self._scope.fresh(hint)

    def constant(self, data: Array, hint: str) -> str:
        name = self.fresh(hint)
        self._scope.define(name, self._scope.graph.constant(data, name))
        return name

    def add(self, node: RawNode) -> None:
        label = self._origin if not self._own else f"{self._origin}/{node.op}"
        self._own.update(self._binder.insert(node, self._scope, label, self._origin))

    def as_pairs(self, name: str) -> None:
        if (value := self._scope.find(name)) is not None:
            self._binder.pairs.add(value)

    def define(self, name: str, result: str) -> None:
        """Bind the file's `name` to a result, which takes that name if it has none."""
        scope = self._scope
        value = scope.find(result)
        if value not in self._own:
            self.add(RawNode("Identity", (result,), (name,)))
            if value in self._binder.pairs:
                self.as_pairs(name)
            return
        self._own.discard(value)
        scope.graph.relabel(value, scope.value_name(name))
        value.declared = scope.declared.get(name)
        value.type = value.type or without_shapes(value.declared)
        scope.define(name, value)

    def error(self, reason: str, node: RawNode) -> ModelError:
        return self._binder.source.error(reason, node.where)

    def unsupported(self, reason: str, node: RawNode) -> UnsupportedError:
        asked = f"{reason} (opset {node.opset})"
        return self._binder.source.unsupported(asked, node.where)


def _input(space: NameSpace, name: str, declared: ValueType | None) -> Value:
    """Add an input; callers must respect a model's declaration, but the owner of a body may not."""
    value = space.graph.add_input(name, declared)
    if space.is_body:
        value.type, value.declared = without_shapes(declared), declared
    return value
