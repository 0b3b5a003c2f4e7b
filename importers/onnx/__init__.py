"""ONNX files → graphs: `read` the file, `parse` it, `upgrade` its operators, `bind` the names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...runtime import ops as _ops
from ...runtime.ir.graph import Graph
from ...runtime.ir.mapped import Mapped
from ...runtime.ir.op import OPERATORS, Op
from .reading.bind import bind
from .reading.gradient import write_out_gradients
from .reading.parse import parse
from .reading.read import read
from .reading.texts import Loadable
from .source.limits import Limits

__all__ = ["Imported", "Limits", "Loadable", "load"]
assert _ops  # importing it declares the operators


@dataclass(frozen=True, slots=True)
class Imported:
    """A model that has been read.

    Attributes:
        graph: the model in the newest opset, with types as far as they can be inferred.
        file: its path as it was given, or None for a model given in memory.
        opsets: the version of each domain that the file was written in; "" is ai.onnx.
        ir_version: the version of the file format.
        producer: name and version of the program that wrote it.
        metadata: what that program wanted to be known.
        warnings: what is odd about the file, but does no harm.
        mapped: the files next to it whose bytes its constants are.
    """

    graph: Graph
    file: str | None
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    metadata: Mapping[str, str]
    warnings: tuple[str, ...]
    mapped: tuple[Mapped, ...]


def load(
    model: Loadable,
    *,
    operators: Mapping[tuple[str, str], type[Op]] | None = None,
    limits: Limits | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    map_external_data: bool = True,
) -> Imported:
    """Read an ONNX model of any opset.

    External data are looked for in the folder of the model, and mapped, not read; links must
    lead to files in that folder, or in the one that the model's own links lead to.
    Initializers that are listed as inputs, too, become constants.

    Args:
        model: a path, the bytes of a file, a parsed model, or what stands for one; see `Loadable`.
        operators: the operators to know, by domain and name; tercet's own if None.
        limits: what the model may ask for.
        external_data_dir: the only folder that external data may be in; see `external_data_in`
            for the default.
        map_external_data: False reads external data at once, so that files may change later.

    Raises:
        ModelError: the file cannot be read or contradicts the ONNX specification.
        UnsupportedError: it uses an operator or a version that tercet does not know.
        LimitError: it asks for more than the limits allow.
    """
    proto, source = read(model, limits or Limits(), external_data_dir)
    source = replace(source, maps_data=map_external_data)
    raw = parse(proto, source)
    graph, warnings = bind(raw, OPERATORS if operators is None else operators, source)
    write_out_gradients(graph, source)
    return Imported(
        graph=graph,
        file=source.file,
        opsets=raw.opsets,
        ir_version=raw.ir_version,
        producer=raw.producer,
        metadata=raw.metadata,
        warnings=warnings,
        mapped=tuple(source.mapped),
    )
