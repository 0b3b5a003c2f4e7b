"""The layers of an engine: the nodes that each implements, its tensors, and its tactic.

The library's inspector writes JSON, whose entries are only names if it has no details.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...runtime.base.record import record

_NODE = re.compile(r"\[ONNX Layer: ([^\]]+)\]")


@record
class EngineLayer:
    """A layer of an engine.

    Attributes:
        name: the library's name for it.
        kind: such as ``CaskConvolution``; empty if unknown.
        nodes: the nodes of the section that were fused into it, as far as reported.
        tensors: its inputs and outputs: name, shape, format and precision.
        tactic: the kernel; empty if unknown.
    """

    name: str
    kind: str = ""
    nodes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    tactic: str = ""

    def __str__(self) -> str:
        what = " + ".join(self.nodes) or self.name
        parts = (self.kind, what, "; ".join(self.tensors), self.tactic)
        return " | ".join(filter(None, parts))


def layers(text: str) -> tuple[EngineLayer, ...]:
    """Return the layers in the inspector's JSON; none if it cannot be parsed."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    entries = found.get("Layers", ()) if isinstance(found, dict) else ()
    return tuple(_layer(entry) for entry in entries)


def _layer(entry: Any) -> EngineLayer:
    if not isinstance(entry, dict):
        return EngineLayer(str(entry))
    tensors = [*(entry.get("Inputs") or ()), *(entry.get("Outputs") or ())]
    return EngineLayer(
        str(entry.get("Name", "")),
        str(entry.get("LayerType", "")),
        tuple(_NODE.findall(str(entry.get("Metadata", "")))),
        tuple(_tensor(each) for each in tensors if isinstance(each, dict)),
        str(entry.get("TacticName", "")),
    )


def _tensor(entry: Mapping[str, Any]) -> str:
    order = entry.get("Format/Datatype") or entry.get("Format") or ""
    return f"{entry.get('Name', '')} {entry.get('Dimensions', '')} {order}".strip()
