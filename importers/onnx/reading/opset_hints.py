"""Nodes that the imported opset does not define as they are written, while another one does.

Tools that raise a model's import without converting its nodes write such files, and so do
converters that leave an operator of a framework which a newer opset happens to have by that name.
"""

from __future__ import annotations

import onnx.defs
from onnx.defs import OpSchema

from ..source.raw import RawNode


def opset_hint(node: RawNode) -> str:
    """Return which opset defines a node's attributes, and a remedy; "" if that is not the fault."""
    if node.opset is None:
        return ""
    versions = _versions(node.domain, node.op)
    imported = [each for each in versions if each.since_version <= node.opset]
    if versions and not imported:
        since = versions[0].since_version
        return (
            f"; the operator exists from opset {since} on, and the file imports {node.opset}: "
            "export it with a newer opset"
        )
    for name in node.attributes:
        having = [name in each.attributes for each in imported]
        if any(having) and not having[-1]:
            last = len(having) - having[::-1].index(True)
            until = imported[last].since_version - 1
            return (
                f"; opset {until} is the last that has it, and the file imports {node.opset}: "
                "convert the nodes (onnx.version_converter) before a tool raises the import"
            )
    return ""


def _versions(domain: str, name: str) -> list[OpSchema]:
    """Return all versions of an operator, oldest first."""
    every = onnx.defs.get_all_schemas_with_history()
    found = [each for each in every if (each.domain, each.name) == (domain, name)]
    return sorted(found, key=lambda each: each.since_version)
