"""Changes of a model's structure, each in one place that is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from .sites import GraphLike, Places, around_node, around_tensor, graphs_of
from .values import change_attribute, change_tensor, change_type, number, some_name

OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas_with_history()})
DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
    "com.microsoft",
    "nowhere",
    "own",
)


@dataclass(frozen=True, slots=True)
class MutationSite:
    """A model with one of its graphs, which a change changes in place."""

    model: ModelProto
    graph: GraphLike
    rng: Random

    def node(self) -> NodeProto | None:
        """Return one of the graph's nodes; None where it has none."""
        return self.rng.choice(self.graph.node) if self.graph.node else None

    def names(self) -> list[str]:
        """Return the tensors that the graph writes or is given."""
        found = [name for node in self.graph.node for name in node.output if name]
        if isinstance(self.graph, GraphProto):
            found += [each.name for each in (*self.graph.input, *self.graph.initializer)]
        else:
            found += self.graph.input
        return found


#: Makes a change and returns where; None where the graph has nothing of the kind.
Change = Callable[[MutationSite], Places | None]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    """Register a change by its function's name."""
    CHANGES[function.__name__] = function
    return function


def _on_node(site: MutationSite, edit: Callable[[NodeProto], object]) -> Places | None:
    node = site.node()
    if node is None:
        return None
    before = around_node(site.model, node)
    edit(node)
    return before | around_node(site.model, node)


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────


@change
def operator(site: MutationSite) -> Places | None:
    """Another operator, or one that nobody has."""
    kinds = (site.rng.choice(OPERATORS), site.rng.choice(OPERATORS), some_name(site.rng), "")
    return _on_node(site, lambda node: setattr(node, "op_type", site.rng.choice(kinds)))


@change
def domain(site: MutationSite) -> Places | None:
    """Another domain, or an overload."""
    if site.rng.random() < 0.2:
        return _on_node(site, lambda node: setattr(node, "overload", some_name(site.rng)))
    return _on_node(site, lambda node: setattr(node, "domain", site.rng.choice(DOMAINS)))


@change
def attribute(site: MutationSite) -> Places | None:
    """An attribute with another value, type or name; one more, one less, one twice."""
    return _on_node(site, lambda node: change_attribute(node, site.rng))


@change
def node_twice(site: MutationSite) -> Places | None:
    """A node that is there twice, and so gives the same tensors twice."""
    return _on_node(site, lambda node: site.graph.node.append(node))


@change
def no_node(site: MutationSite) -> Places | None:
    """A node that is missing."""
    node = site.node()
    if node is None:
        return None
    places = around_node(site.model, node)
    site.graph.node.remove(node)
    return places


@change
def order(site: MutationSite) -> Places | None:
    """Two nodes in each other's place, or all in reverse."""
    nodes, rng = list(site.graph.node), site.rng
    if len(nodes) < 2:
        return None
    i, j = rng.sample(range(len(nodes)), 2)
    nodes[i], nodes[j] = nodes[j], nodes[i]
    del site.graph.node[:]
    site.graph.node.extend(nodes)
    return around_node(site.model, nodes[i]) | around_node(site.model, nodes[j])


# ── edges ────────────────────────────────────────────────────────────────────────────────────────


@change
def reads(site: MutationSite) -> Places | None:
    """A node that reads another tensor: one of its own or a later one, an absent one, none."""

    def edit(node: NodeProto) -> None:
        rng, known = site.rng, site.names()
        name = rng.choice([*known, *known, *node.output, "", some_name(rng)])
        if not node.input or rng.random() < 0.2:
            node.input.append(name)
        elif rng.random() < 0.2:
            del node.input[rng.randrange(len(node.input)) :]
        elif rng.random() < 0.2:
            node.input[:] = rng.sample(list(node.input), len(node.input))
        else:
            node.input[rng.randrange(len(node.input))] = name

    return _on_node(site, edit)


@change
def writes(site: MutationSite) -> Places | None:
    """A node that gives a tensor of another name, one that is there, one more, none."""

    def edit(node: NodeProto) -> None:
        rng = site.rng
        name = rng.choice([*site.names(), "", some_name(rng)])
        if not node.output or rng.random() < 0.2:
            node.output.append(name)
        elif rng.random() < 0.3:
            del node.output[rng.randrange(len(node.output)) :]
        else:
            node.output[rng.randrange(len(node.output))] = name

    return _on_node(site, edit)


@change
def ends(site: MutationSite) -> Places | None:
    """Inputs or outputs of the graph that are absent, others, or there twice."""
    rng = site.rng
    side: Any = rng.choice((site.graph.input, site.graph.output))
    if not side:
        return None
    at = rng.randrange(len(side))
    old = getattr(side[at], "name", side[at])  # a function has names, bytes if no UTF-8
    new = rng.choice([*site.names(), some_name(rng), ""])
    places = around_tensor(site.model, old) | around_tensor(site.model, new)
    if not new:
        places |= Places(frozenset({site.graph.name}))
    match rng.randrange(3):
        case 0:
            del side[at]
        case 1:
            side.append(side[at])
        case _ if hasattr(side[at], "name"):
            side[at].name = new
        case _:
            side[at] = new
    return places


# ── tensors and types ────────────────────────────────────────────────────────────────────────────


@change
def constant(site: MutationSite) -> Places | None:
    """A constant with other elements, dims or dtype; too few or too many bytes; outside data."""
    tensors = [] if not isinstance(site.graph, GraphProto) else list(site.graph.initializer)
    held = [
        (attribute.t, node)
        for node in site.graph.node
        for attribute in node.attribute
        if attribute.HasField("t")
    ]
    if not tensors and not held:
        return None
    if tensors and (not held or site.rng.random() < 0.5):
        tensor = site.rng.choice(tensors)
        places = around_tensor(site.model, tensor.name)
    else:
        tensor, node = site.rng.choice(held)
        places = around_node(site.model, node)
    change_tensor(tensor, site.rng)
    return places


@change
def constant_twice(site: MutationSite) -> Places | None:
    """A constant that is there twice, or not at all, or bears the name of something else."""
    if not isinstance(site.graph, GraphProto) or not site.graph.initializer:
        return None
    tensor = site.rng.choice(site.graph.initializer)
    places = around_tensor(site.model, tensor.name)
    match site.rng.randrange(3):
        case 0:
            site.graph.initializer.append(tensor)
        case 1:
            site.graph.initializer.remove(tensor)
        case _:
            tensor.name = site.rng.choice(site.names())
            places |= around_tensor(site.model, tensor.name)
    return places


@change
def sparse(site: MutationSite) -> Places | None:
    """A constant that becomes sparse, with indices that may lie."""
    if not isinstance(site.graph, GraphProto) or not site.graph.initializer:
        return None
    rng, tensor = site.rng, site.rng.choice(site.graph.initializer)
    places = around_tensor(site.model, tensor.name)
    made = site.graph.sparse_initializer.add()
    made.dims.extend(tensor.dims)
    made.values.CopyFrom(tensor)
    count = rng.choice((0, 1, 2, 5))
    made.values.ClearField("raw_data")
    made.values.dims[:] = [count]
    made.values.float_data.extend([1.0] * count)
    made.indices.data_type = rng.choice((TensorProto.INT64, TensorProto.INT64, TensorProto.FLOAT))
    made.indices.dims.extend(rng.choice(([count], [count, len(tensor.dims)], [])))
    made.indices.int64_data.extend(rng.choice((i, number(rng))) for i in range(count))
    site.graph.initializer.remove(tensor)
    return places


@change
def declared(site: MutationSite) -> Places | None:
    """The declared type of an input, an output or a tensor between: another, or a lie."""
    if not isinstance(site.graph, GraphProto):
        return None
    rng, infos = site.rng, [*site.graph.input, *site.graph.output, *site.graph.value_info]
    inner = [n for node in site.graph.node for n in node.output if n]
    if inner and rng.random() < 0.3:
        shape = [rng.choice((1, 2, 3, 4, "n", None)) for _ in range(rng.randrange(4))]
        kind = rng.choice((1, 1, 1, 7, 9, 10))
        name = rng.choice(inner)
        site.graph.value_info.append(onnx.helper.make_tensor_value_info(name, kind, shape))
        return around_tensor(site.model, name)
    if not infos:
        return None
    info = rng.choice(infos)
    change_type(info.type, rng)
    return around_tensor(site.model, info.name)


# ── the whole ────────────────────────────────────────────────────────────────────────────────────


@change
def versions(site: MutationSite) -> Places | None:
    """Another opset, one that is missing or twice; another IR version."""
    rng, opsets = site.rng, site.model.opset_import
    match rng.randrange(4):
        case 0 if opsets:
            rng.choice(opsets).version = rng.choice((rng.randrange(1, 30), number(rng)))
        case 1 if opsets:
            opsets.remove(rng.choice(opsets))
        case 2:
            opsets.append(onnx.helper.make_opsetid(rng.choice(DOMAINS), rng.randrange(30)))
        case _:
            site.model.ir_version = rng.choice((rng.randrange(15), number(rng)))
    return Places()


@change
def function(site: MutationSite) -> Places | None:
    """A node that becomes a call of a function, which may call itself, or lack what it needs."""
    node, rng = site.node(), site.rng
    if node is None:
        return None
    places = around_node(site.model, node)
    made = site.model.functions.add(name=f"made{len(site.model.functions)}x", domain="own")
    made.opset_import.extend(site.model.opset_import)
    made.input.extend(f"in{i}" for i in range(len(node.input)))
    made.output.extend(f"out{i}" for i in range(len(node.output)))
    inner = made.node.add()
    inner.CopyFrom(node)
    inner.input[:], inner.output[:] = made.input, made.output
    match rng.randrange(6):
        case 0:
            inner.op_type, inner.domain = made.name, made.domain
        case 1:
            del made.input[-1:]
        case 2:
            made.output.append("absent")
        case 3:
            del made.opset_import[:]
        case 4:
            inner.attribute.add(name="axis", ref_attr_name="absent", type=onnx.AttributeProto.INT)
        case _:
            pass
    node.op_type, node.domain = made.name, made.domain
    del node.attribute[:]
    if all(opset.domain != "own" for opset in site.model.opset_import):
        site.model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    return places | Places(frozenset({made.name, "absent"}))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A damaged file.

    Attributes:
        kind: what was done.
        data: its bytes.
        places: where; None where no place is known.
    """

    kind: str
    data: bytes
    places: Places | None


def damaged(seed: bytes, rng: Random) -> Mutant:
    """Return a seed with one change; now and then with several, whose place counts as unknown.

    Raises:
        UnicodeError: a name of the seed is not a text, and the change cannot write it.
    """
    model = ModelProto.FromString(seed)
    kinds, places = [], Places()
    wanted = rng.choices((1, 2, 4), (8, 1, 1))[0]
    while len(kinds) < wanted:
        kind = rng.choice(list(CHANGES))
        site = MutationSite(model, rng.choice(graphs_of(model)), rng)
        found = CHANGES[kind](site)
        if found is not None:
            kinds.append(kind)
            places = found
    known = places if wanted == 1 and places.here else None
    return Mutant(kinds[0] if wanted == 1 else "several", model.SerializeToString(), known)
