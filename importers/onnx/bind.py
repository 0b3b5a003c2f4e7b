"""The parsed file → a `Graph`: names become values, attributes become operators, in one pass.

Types are inferred as nodes are added, because the upgrade of an old operator may depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...runtime.errors import ModelError, ShapeError, UnsupportedError, did_you_mean
from ...runtime.infer import infer_node
from ...runtime.ir import Graph, Node, Value
from ...runtime.op import Op, arity
from ...runtime.types import Array, ValueType
from .attributes import Mismatch, input_types, make
from .functions import check_functions, key_of
from .order import Names
from .parse import RawFunction, RawGraph, RawModel, RawNode, Reference
from .scope import NameSpace, Scope
from .source import Source
from .upgrade import NEWEST, upgrade

Operators = Mapping[tuple[str, str], type[Op]]


def bind(model: RawModel, operators: Operators, source: Source) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph of a model, with types inferred, and warnings for the user.

    Raises:
        ModelError: the file contradicts the ONNX specification.
        UnsupportedError: an operator is unknown, or means something the newest opset lacks.
        LimitError: the model would exceed the limits.
    """
    for domain, version in model.opsets.items():
        if version > NEWEST.get(domain, version):
            known = f"tercet reads up to version {NEWEST[domain]}"
            text = f"opset {version} of domain '{domain or 'ai.onnx'}' is newer than tercet"
            where = f"{source.file}: " if source.file else ""
            raise UnsupportedError(f"{where}{text}; {known}")
    check_functions(model, source)
    binder = _Binder(model, operators, source)
    return binder.main(model.graph), tuple(binder.warnings)


class _Binder:
    def __init__(self, model: RawModel, operators: Operators, source: Source) -> None:
        self.warnings: list[str] = []
        self._functions = model.functions
        self._operators = operators
        self._source = source
        self._names = Names(source)

    # ── graphs ───────────────────────────────────────────────────────────────────────────────

    def main(self, raw: RawGraph) -> Graph:
        """Return the model's own graph."""
        scope = self._scope(raw, None)
        unknown = [name for name, value in scope.inputs.items() if value.type is None]
        if unknown:
            raise self._source.error("declares no element type", f"input '{unknown[0]}'")
        if len(set(raw.outputs)) < len(raw.outputs):
            raise self._source.error(f"lists an output twice: {', '.join(raw.outputs)}")
        self._fill(raw, scope)
        return scope.graph
