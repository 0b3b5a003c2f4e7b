"""The lowest opset in which a node can be written unchanged.

Nodes in the IR have the form of the newest opset. An older one is equivalent if it has the operator
with these attributes, inputs and element types, and if `upgrade` would leave the node unchanged, or
`downgrade` knows its older form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, cast

import numpy as np
import onnx.defs
from onnx import helper
from onnx.defs import OpSchema

from ....runtime.errors import UnsupportedError, UsageError
from ....runtime.ir.dtypes import BY_ONNX
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.op import Op, body_names
from ..source.raw import items
from ..upgrading.rewrite import NEWEST, UPGRADES
from .downgrade import Older, older_form
from .encode import type_text

#: The lowest opset written: older ones align operands differently.
OLDEST = 7

#: The first version that allows a value of an attribute, or interprets it as the newest does.
_VALUES: dict[tuple[str, str, str | int], int] = {
    ("AveragePool", "ceil_mode", 1): 22,
    ("LpPool", "ceil_mode", 1): 22,
    ("MaxPool", "ceil_mode", 1): 22,
    ("Pad", "mode", "wrap"): 19,
    ("Resize", "coordinate_transformation_mode", "half_pixel_symmetric"): 19,
    ("ScatterElements", "reduction", "max"): 18,
    ("ScatterElements", "reduction", "min"): 18,
    ("ScatterND", "reduction", "max"): 18,
    ("ScatterND", "reduction", "min"): 18,
}
#: The first version with negative axes.
_NEGATIVE_AXES = 11
#: What `upgrade` completes in every version, and the first one that has the completed form: Split
#: gets the number of its outputs, Loop what its body declares, PRelu the axes of its slopes.
_COMPLETED: dict[tuple[str, str], int] = {("", "Split"): 13, ("", "Loop"): 1, ("", "PRelu"): 7}
_SPLIT_UNEVEN = 18
#: Attributes whose default the shape inference of `onnx` does not know: it takes STFT's for 0, and
#: fails without the axes.
_STATED = frozenset({("STFT", "onesided"), ("MeanVarianceNormalization", "axes")})

_Option = OpSchema.FormalParameterOption


def newest() -> dict[str, int]:
    """Return the newest version of each domain known to both the IR and the installed `onnx`."""
    known = onnx.defs.onnx_opset_version()
    return {domain: min(v, known) if not domain else v for domain, v in NEWEST.items()}


def versions_for(
    graph: Graph, wanted: Mapping[str, int] | None = None, at_least: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the version of every domain in which to write a graph.

    Args:
        graph: with types inferred.
        wanted: exact versions by domain ("" is ai.onnx).
        at_least: for other domains, a minimum version; the lowest one from there on that can
            express everything. Domains in neither use the newest.

    Raises:
        UnsupportedError: nodes cannot be expressed in the requested version; names all operators.
        UsageError: the version does not exist.
    """
    _check(wanted or {})
    found = {**newest(), **(wanted or {})}
    nodes, results = list(graph.walk()), results_of(graph)
    used = {node.op.domain for node in nodes} | {""}
    floor = {} if at_least is None else {"": OLDEST, **at_least}
    for domain in used.intersection(NEWEST).difference(wanted or {}):
        maximum = newest()[domain]
        minimum = min(max(floor.get(domain, maximum), 1 if domain else OLDEST), maximum)
        own = [node for node in nodes if node.op.domain == domain]
        able = (
            v for v in range(minimum, maximum + 1) if not any(refusal(n, v, results) for n in own)
        )
        found[domain] = next(able, None) or _highest(own, results, maximum)
    refused = dict(_refusals(nodes, results, found))
    if refused:
        listed = "".join(f"\n  {where}: {reason}" for where, reason in refused.items())
        raise UnsupportedError(
            f"this graph cannot be written in opset {found['']}:{listed}",
            remedy="without an opset, the lowest one that can represent the graph is used",
        )
    return {domain: found.get(domain, 1) for domain in sorted(used)}


def _check(wanted: Mapping[str, int]) -> None:
    maximum = newest()
    for domain, version in wanted.items():
        minimum = 1 if domain else OLDEST
        if not minimum <= version <= maximum.get(domain, version):
            name = domain or "ai.onnx"
            raise UsageError(
                f"opset {version} of {name} cannot be written; {minimum} to {maximum[domain]} can"
            )


def _highest(nodes: Sequence[Node], results: Set[Value], maximum: int) -> int:
    """Return the highest version that can express all of these nodes, or else the newest one.

    Operators deprecated in the newest version exist in the one before.
    """
    older = range(maximum - 1, 0, -1)
    able = (v for v in older if not any(refusal(node, v, results) for node in nodes))
    return next(able, maximum)


def results_of(graph: Graph) -> Set[Value]:
    """Return the results of a graph and of its bodies."""
    return {value for each in graph.graphs() for value in each.outputs.values()}


def _refusals(
    nodes: Sequence[Node], results: Set[Value], versions: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    for node in nodes:
        reason = refusal(node, versions.get(node.op.domain, 1), results)
        if reason:
            yield f"node '{node.name}' ({node.kind})", reason


def refusal(node: Node, version: int, results: Set[Value]) -> str:
    """Return why a node cannot be written in this version of its domain; empty if it can.

    Args:
        node: with types inferred.
        version: of the node's domain.
        results: see `results_of`.
    """
    op, name = node.op, type(node.op).__name__
    if op.domain not in NEWEST:
        return ""  # only the operator's own package knows its versions
    schema = schema_of(type(op), version)
    if schema is None:
        return f"there is no {name} in opset {version}"
    until, _ = UPGRADES.get((op.domain, name), (0, None))
    until = _COMPLETED.get((op.domain, name), until)
    form = older_form(node, version)
    if isinstance(form, str):
        return f"{name} differs in opset {version}: {form}"
    if version < until and form is None:
        return (
            f"{name} has another form before opset {until}, and no downgrade to it is implemented"
        )
    return (
        _attribute_refusal(node, schema, version)
        or _split_refusal(node, version)
        or _parameter_refusal(
            "input", written_inputs(node, version), schema.inputs, schema.min_input
        )
        or _parameter_refusal("output", live_outputs(node, schema, results), schema.outputs, 0)
    )


def _attribute_refusal(node: Node, schema: OpSchema, version: int) -> str:
    name = type(node.op).__name__
    for field, value in written(node, schema, version).items():
        if field not in schema.attributes:
            return f"{name} has no attribute '{field}' in opset {version}"
        for item in items(value):
            since = _VALUES.get((name, field, item), 0) if isinstance(item, str | int) else 0
            if field in ("axis", "axes") and isinstance(item, int) and item < 0:
                since = _NEGATIVE_AXES if not node.op.domain else 0
            if version < since:
                return f"{field}={item} needs opset {since}"
    return ""


def _split_refusal(node: Node, version: int) -> str:
    """Unequal parts without explicit sizes were not allowed at first."""
    uneven = type(node.op).__name__ == "Split" and len(node.inputs) == 1
    if not uneven or version >= _SPLIT_UNEVEN:
        return ""
    sizes = {v.type for v in node.outputs}
    is_equal = len(sizes) == 1 and all(getattr(t, "is_static", False) for t in sizes)
    return "" if is_equal else f"parts of unequal sizes need opset {_SPLIT_UNEVEN}"


def _parameter_refusal(
    kind: str, values: Sequence[Value | None], formals: Sequence[Any], minimum: int
) -> str:
    if len(values) < minimum:
        return f"it has {len(values)} {kind}s; {minimum} are needed"
    bound: dict[str, str] = {}
    for i, value in enumerate(values):
        if i >= len(formals) and (not formals or formals[-1].option != _Option.Variadic):
            return f"it has {len(values)} {kind}s; {len(formals)} are allowed"
        formal = formals[min(i, len(formals) - 1)]
        if value is None:
            if formal.option == _Option.Single:
                return f"{kind} '{formal.name}' cannot be left out"
            continue
        text = type_text(value.type)
        if text is not None and text not in formal.types:
            return f"{kind} '{formal.name}' cannot be {text}"
        if text is not None and formal.is_homogeneous:
            first = bound.setdefault(formal.type_str, text)
            if text != first:
                return f"{kind} '{formal.name}' cannot be {text} next to {first}"
    return ""


def live_outputs(
    node: Node, schema: OpSchema | None, results: Set[Value]
) -> tuple[Value | None, ...]:
    """Return the outputs of a node, None for unused optional ones."""
    formals = schema.outputs if schema is not None else ()
    outputs: list[Value | None] = []
    for i, value in enumerate(node.outputs):
        optional = i < len(formals) and formals[i].option == _Option.Optional
        read = bool(value.consumers) or value in results
        outputs.append(value if read or not optional else None)
    while outputs and outputs[-1] is None:
        outputs.pop()
    return tuple(outputs)


def written_inputs(node: Node, version: int) -> tuple[Value | None, ...]:
    """Return the inputs of a node in a version of its domain."""
    form = older_form(node, version)
    return node.inputs[: form.inputs] if isinstance(form, Older) else node.inputs


def written(node: Node, schema: OpSchema | None, version: int) -> dict[str, Any]:
    """Return the attributes to write: those that differ from the version's defaults.

    They include bodies, and what the shape inference of `onnx` needs to be told. Only the IR knows
    the number of parts of a Split without sizes.
    """
    op, form = node.op, older_form(node, version)
    found: dict[str, Any] = dict(form.attributes) if isinstance(form, Older) else {}
    without = form.without if isinstance(form, Older) else frozenset[str]()
    for field in fields(op):
        value = getattr(op, field.name)
        if field.name in found or field.name in without:
            continue
        if value is None or (field.name == "num_outputs" and len(node.inputs) > 1):
            continue
        if field.name in body_names(type(op)) or field.default is MISSING:
            found[field.name] = value
            continue
        known = schema.attributes.get(field.name) if schema is not None else None
        default = None if known is None else _default(known)
        if field.name == "num_outputs" and known is None:
            continue
        is_default = _equal(value, field.default if default is None else default)
        stated = (type(op).__name__, field.name) in _STATED
        if not is_default or stated or (known is not None and known.required):
            found[field.name] = value
    return found


def _equal(value: Any, default: Any) -> bool:
    if default is None:
        return False  # numpy treats None as float64
    if isinstance(value, np.dtype):
        default = BY_ONNX.get(default) if isinstance(default, int) else default
    if isinstance(value, float) and isinstance(default, float):
        return bool(np.float32(value) == np.float32(default))
    return value == default


def schema_of(operator: type[Op], version: int) -> OpSchema | None:
    """Return the schema of an operator in a version of its domain; None if there is none."""
    return _schema(operator.domain, operator.__name__, version)


@cache
def _schema(domain: str, name: str, version: int) -> OpSchema | None:
    """Look up a schema by name: caching by class would keep custom operators alive."""
    if not onnx.defs.has(name, max_inclusive_version=version, domain=domain):
        return None
    schema = onnx.defs.get_schema(name, max_inclusive_version=version, domain=domain)
    return None if schema.deprecated else schema


def _default(known: OpSchema.Attribute) -> Any:
    """Return the default of an attribute, None if it has none."""
    proto = known.default_value
    if not proto.type:
        return None
    value = helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        elements = cast("list[Any]", value)
        return tuple(v.decode() if isinstance(v, bytes) else v for v in elements)
    return value
