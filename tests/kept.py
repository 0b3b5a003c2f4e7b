"""Graphs of tests as files, which fuzzers change; see docs/fuzzing.md."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from tercet import TercetError
from tercet.importers.onnx.writing.export import export
from tercet.runtime.ir.graph import Graph

#: The folder that gets them, if they are asked for.
_FOLDER = os.environ.get("TERCET_KEEP_GRAPHS")
#: Maximum number of nodes, as what is found in larger ones takes long to reduce, and of bytes.
_NODES, _BYTES = 90, 1 << 20


def keep(graph: Graph) -> None:
    """Write a graph that a test rewrites or runs, if the environment asks for it."""
    if _FOLDER is None or len(graph.nodes) > _NODES:
        return
    with suppress(TercetError):
        data = export(graph).SerializeToString()
        if len(data) <= _BYTES:
            file = Path(_FOLDER, f"{sha256(data).hexdigest()[:16]}.onnx")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
