"""Expansion of onnxruntime operators to ONNX nodes."""

from __future__ import annotations

import inspect
from typing import Any

from ....runtime.errors import ModelError, did_you_mean
from ....runtime.ir.types import TensorType
from ..contrib.builder import GrowingSite, NodeBuilder
from ..contrib.declaration import Contrib
from ..source.raw import RawNode
from .attributes import Mismatch, convert


def expand(declared: Contrib, node: RawNode, site: GrowingSite) -> tuple[str | None, ...]:
    """Add the nodes that define `node`, and return the names of its results.

    An output that the definition lacks may have a name, as long as nothing reads it.

    Raises:
        ModelError: the node violates its operator's definition.
        UnsupportedError: it needs a feature that the definition lacks.
    """
    _check(declared, node, site)
    builder = NodeBuilder(node, site)
    inputs = [name or None for name in node.inputs]
    try:
        found = declared.function(builder, *inputs, **_attributes(declared, node, site))
    except ModelError as error:
        raise _of_the_node(error, node, site) from error
    results = found if isinstance(found, tuple) else (found,)
    for i, name in enumerate(node.outputs):
        if (i >= len(results) or not results[i]) and name and site.is_read(name):
            raise site.unsupported(f"asks for output {i} ('{name}'), which is not computed", node)
    return results


def _of_the_node(error: ModelError, node: RawNode, site: GrowingSite) -> ModelError:
    """Return an error about an inserted node as one about the file's node."""
    if error.where is None or error.where == node.where:
        return error
    kind = error.where.rpartition("(")[2].rstrip(")")
    return site.error(f"does not fit: {kind}: {error.reason}", node)


def _check(declared: Contrib, node: RawNode, site: GrowingSite) -> None:
    types = [site.type_of(name) if name else None for name in node.inputs]
    for name, type_ in zip(node.inputs, types, strict=True):
        if type_ is not None and not isinstance(type_, TensorType):
            raise site.error(f"input '{name}' is {type_}; expected a tensor", node)
    found = [each.dtype if isinstance(each, TensorType) else None for each in types]
    if complaint := declared.complaint(found, [bool(name) for name in node.inputs]):
        raise site.error(complaint, node)
    minimum, maximum = declared.outputs
    if not minimum <= len(node.outputs) <= maximum:
        bounds = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
        raise site.error(f"has {len(node.outputs)} outputs; the operator gives {bounds}", node)


def _attributes(declared: Contrib, node: RawNode, site: GrowingSite) -> dict[str, Any]:
    known = declared.attributes
    found = {name: default for name, (_, default) in known.items()}
    for name, value in node.attributes.items():
        if name not in known:
            hint = did_you_mean(name, list(known))
            raise site.error(f"has unknown attribute '{name}'{hint}", node)
        try:
            found[name] = convert(known[name][0], name, value)
        except Mismatch as error:
            raise site.error(str(error), node) from error
    for name, value in found.items():
        if value is inspect.Parameter.empty:
            raise site.error(f"lacks the attribute '{name}'", node)
    return found
