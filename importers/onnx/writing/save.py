"""Writes a graph to a file, with large constants next to it if necessary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from onnx import ModelProto, StringStringEntryProto, TensorProto

from ....runtime.base.files import replacing
from ....runtime.ir import dtypes
from ....runtime.ir.graph import Graph
from ....runtime.ir.types import Array
from ..reading.texts import FORMATS, text_of
from .encode import Store, embedded, packed, packed_size, tensor_head
from .export import MAX_BYTES, About, constant_bytes, export
from .sparse import smaller

#: In a model too large for one file, smaller constants stay embedded.
SMALL = 1 << 10
#: Alignment of external constants: a page, so that they can be mapped.
ALIGNMENT = 1 << 12


def save(
    graph: Graph,
    file: str | os.PathLike[str],
    *,
    opsets: Mapping[str, int] | None = None,
    at_least: Mapping[str, int] | None = None,
    about: About | None = None,
    external: int | None = None,
    sparse: bool = False,
) -> ModelProto:
    """Write a graph to an ONNX file atomically.

    Args:
        graph: with inferred types; not modified.
        file: its path; external constants go to ``NAME.data``. Extensions such as ``.onnxtxt``,
            ``.textproto`` and ``.json`` select a text format.
        opsets: see `export`.
        at_least: see `export`.
        about: see `export`.
        external: constants of at least this many bytes go to the external file. If None, only if
            the model is too large for one file, which is limited to 2 GB.
        sparse: whether constants are sparse, and in the file itself, where that is smaller.

    Returns:
        The written model, without the elements of external constants.

    Raises:
        UnsupportedError: a node cannot be written in the requested opset.
        OSError: the files cannot be written.
    """
    path = Path(file)
    if external is None and constant_bytes(graph) > MAX_BYTES:
        external = SMALL

    def written(store: Store) -> ModelProto:
        chosen = smaller(store) if sparse else store
        return export(graph, opsets=opsets, at_least=at_least, about=about, store=chosen)

    if external is None:
        model = written(embedded)
    else:
        data_file = path.with_name(f"{path.name}.data")
        with replacing(data_file) as stream:
            model = written(_ExternalData(stream, data_file.name, external))
    form = FORMATS.get(path.suffix.lower())
    with replacing(path) as stream:
        stream.write(model.SerializeToString() if form is None else text_of(model, form))
    return model


class _ExternalData:
    """Appends large constants to a stream.

    Args:
        stream: the file's.
        location: its name.
        minimum: smaller constants stay embedded.
    """

    def __init__(self, stream: BinaryIO, location: str, minimum: int) -> None:
        self._stream, self._location, self._minimum = stream, location, minimum
        self._places: dict[int, tuple[Array, int]] = {}

    def __call__(self, name: str, data: Array) -> TensorProto:
        size = packed_size(data)
        if data.dtype == dtypes.string or size < max(self._minimum, 1):
            return embedded(name, data)
        proto = tensor_head(name, data)
        proto.data_location = TensorProto.EXTERNAL
        entries = {"location": self._location, "offset": self._place(data), "length": size}
        for key, value in entries.items():
            proto.external_data.append(StringStringEntryProto(key=key, value=str(value)))
        return proto

    def _place(self, data: Array) -> int:
        """Write the elements unless already written; return their offset."""
        if id(data) not in self._places:
            gap = -self._stream.tell() % ALIGNMENT
            self._stream.write(bytes(gap))
            self._places[id(data)] = (data, self._stream.tell())
            packed(data).tofile(self._stream)
        return self._places[id(data)][1]
