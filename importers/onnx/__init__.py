"""ONNX import: `read` the file, `parse` it, `upgrade` its operators, `bind` names to values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ...runtime.base.file_parts import Block
from ...runtime.base.record import record
from ...runtime.ir.graph import Graph
from ...runtime.ir.mapped import Mapped
from ...runtime.ir.op import Op
from ...runtime.ops import OPERATORS
from .reading.bind import bind
from .reading.gradient import write_out_gradients
from .reading.parse import parse
from .reading.read import read
from .reading.texts import Loadable
from .reading.whole_windows import with_whole_caches
from .source.limits import Limits

__all__ = ["Imported", "Limits", "Loadable", "load"]


@record
class Imported:
    """An imported model.

    Attributes:
        graph: the model in the newest opset, with inferred types.
        file: its path as given, or None for a model in memory.
        opsets: the version of each domain that the file imports; "" is ai.onnx.
        ir_version: the version of the file format.
        producer: name and version of the program that wrote it.
        metadata: its metadata properties.
        warnings: harmless irregularities of the file.
        mapped: the memory-mapped files of its external data.
        blocks: bytes of its file in memory.
    """

    graph: Graph
    file: str | None
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    metadata: Mapping[str, str]
    warnings: tuple[str, ...]
    mapped: tuple[Mapped, ...]
    blocks: tuple[Block, ...]


def load(
    model: Loadable,
    *,
    operators: Mapping[tuple[str, str], type[Op]] | None = None,
    limits: Limits | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    map_external_data: bool = True,
    whole_caches: bool = False,
) -> Imported:
    """Import an ONNX model of any opset.

    External data are looked up in the model's folder and memory-mapped; links must lead to files in
    that folder, or in the one that the model's own links lead to. Initializers that are also listed
    as inputs become constants.

    Args:
        model: a path, the bytes of a file, a parsed model, or an object that stands for one; see
            `Loadable`.
        operators: the known operators, by domain and name; tercet's own if None.
        limits: resource limits of the import.
        external_data_dir: the only folder in which external data may be; see `external_data_in` for
            the default.
        map_external_data: False reads external data at once, so that files may change afterwards.
        whole_caches: whether caches of sliding windows become caches of all positions.

    Raises:
        ModelError: the file cannot be read or violates the ONNX specification.
        UnsupportedError: it uses an operator or a version that tercet does not know.
        LimitError: it exceeds the limits.
    """
    proto, source = read(model, limits or Limits(), external_data_dir)
    source = replace(source, maps_data=map_external_data)
    raw = parse(proto, source)
    if whole_caches:
        raw = with_whole_caches(raw)
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
        blocks=tuple(source.blocks),
    )
