"""Models as other programs get them: read by onnx alone.

What tercet is held against must share none of the code that reads and interprets files: an error in
it would be on both sides. So the modules of the other programs import nothing of `importers`,
`backends` and `runtime` that knows what a model says; a test has the list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, serialization
from onnx.external_data_helper import load_external_data_for_model
from onnx.numpy_helper import from_array
from onnx.parser import parse_model

from ...runtime.errors import UnsupportedError
from ...runtime.session.freeze import FROZEN
from ...runtime.session.refit import WEIGHTS


def _read_text(form: str) -> Callable[[str], ModelProto]:
    serializer: Any = serialization.registry.get(form)
    return lambda text: serializer.deserialize_proto(text, ModelProto())


#: Readers of ONNX's text forms: its own language, of which its serializer warns, and protobuf's.
_TEXTS = (parse_model, _read_text("textproto"), _read_text("json"))


def numbered(names: Iterable[str]) -> list[str]:
    """Return names with a number behind those that recur, such as ``y``, ``y.1`` of ``y``, ``y``.

    Numbered names that are among the others are skipped.
    """
    given = list(names)
    taken, made = set(given), dict[str, None]()
    for name in given:
        more = (f"{name}.{number}" for number in count(1))
        free = (each for each in more if each not in taken)
        made[next(each for each in chain((name,), free) if each not in made)] = None
    return list(made)


class OnnxFile:
    """A model, and where its external data are.

    Args:
        source: a path, bytes in a form of ONNX, a text in its language, a message, or an object
            that an exporter makes a message of.
        folder: of external data, if not the model's own.

    Attributes:
        path: of its file; None for a model in memory.
        folder: of its external data; None for a model in memory that has none.
    """

    def __init__(self, source: Any, folder: str | os.PathLike[str] | None = None) -> None:
        is_path = isinstance(source, os.PathLike) or (
            isinstance(source, str) and os.path.exists(source)
        )
        self.path = os.fspath(source) if is_path else None
        self.folder = None if folder is None else os.path.abspath(folder)
        if self.path is not None and folder is None:
            self.folder = os.path.dirname(os.path.abspath(self.path))
        self._source = source

    @property
    def is_binary(self) -> bool:
        """Whether it is a file whose name says that it is in ONNX's binary form."""
        if self.path is None:
            return False
        form = serialization.registry.get_format_from_file_extension(Path(self.path).suffix.lower())
        return form in (None, "protobuf")

    def message(self) -> ModelProto:
        """Return a new message of the model, whose external data stay where they are.

        Raises:
            UnsupportedError: onnx cannot read it.
        """
        source = getattr(self._source, "model_proto", self._source)
        if isinstance(source, ModelProto):
            copy = ModelProto()
            copy.CopyFrom(source)
            return copy
        if self.path is not None:
            return _parsed(Path(self.path).read_bytes())
        if isinstance(source, str):
            return _parsed(source.encode())
        if isinstance(source, bytes | bytearray | memoryview):
            return _parsed(bytes(source))
        package = type(source).__module__.rpartition(".")[0] or type(source).__module__
        return import_module(f"{package}.serde").serialize_model(source)

    def with_constants(self) -> ModelProto:
        """Return a message with frozen inputs and other weights in place; see `message`."""
        model, weights = self.message(), WEIGHTS.get()
        graph, frozen = model.graph, FROZEN.get()
        types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        arrays = {name: np.asarray(data) for name, data in weights.items()}
        for name in types.keys() & frozen.keys():
            dtype = helper.tensor_dtype_to_np_dtype(types[name])
            arrays[name] = np.asarray(frozen[name]).astype(dtype)
        _keep(graph.input, lambda value: value.name not in frozen)
        _keep(graph.initializer, lambda tensor: tensor.name not in weights)
        _keep(graph.sparse_initializer, lambda tensor: tensor.values.name not in weights)
        _keep(graph.node, lambda n: n.op_type != "Constant" or n.output[0] not in weights)
        graph.initializer.extend(from_array(arrays[name], name) for name in sorted(arrays))
        return model

    def self_contained(self) -> ModelProto:
        """Return the same with the bytes of external data in it.

        Raises:
            UnsupportedError: data are missing, or not where they may be.
        """
        model = self.with_constants()
        folder = self.located(model)
        if folder is not None:
            try:
                load_external_data_for_model(model, folder)
            except Exception as error:  # onnx's own, of several kinds
                raise UnsupportedError(f"onnx does not read external data: {error}") from error
        return model

    def located(self, model: ModelProto) -> str | None:
        """Change where a message of this file says that its external data are: no more links.

        onnx and onnxruntime follow none, of which the caches of model hubs consist.

        Returns:
            The folder that these places are relative to; None if there are no external data.

        Raises:
            UnsupportedError: they are outside of the model's folder, and of that of its real file.
        """
        tensors = [each for each in _tensors(model) if each.data_location == TensorProto.EXTERNAL]
        if not tensors or self.folder is None:
            return None
        folders = [os.path.realpath(self.folder)]
        if self.path is not None:
            folders.append(os.path.dirname(os.path.realpath(self.path)))
        root = os.path.commonpath(folders)
        for tensor in tensors:
            for entry in tensor.external_data:
                if entry.key != "location":
                    continue
                place = os.path.realpath(os.path.join(self.folder, entry.value))
                if not any(Path(place).is_relative_to(each) for each in folders):
                    raise UnsupportedError(f"external data '{entry.value}' leads out of its folder")
                entry.value = os.path.relpath(place, root)
        return root


def _parsed(data: bytes) -> ModelProto:
    with suppress(DecodeError):
        message = ModelProto.FromString(data)
        if message.HasField("graph"):
            return message
    for read in _TEXTS:
        with suppress(Exception):  # protobuf's and onnx's own, and ValueError
            return read(data.decode("utf-8-sig"))
    raise UnsupportedError("onnx cannot read the model in any of its forms")


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    graphs: list[GraphProto] = [model.graph]
    nodes: list[NodeProto] = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes.extend(graph.node)
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            continue
        for attribute in nodes.pop().attribute:
            yield from (attribute.t, *attribute.tensors)
            graphs += [attribute.g, *attribute.graphs]


def _keep(entries: Any, wanted: Callable[[Any], bool]) -> None:
    """Keep the wanted entries of a repeated field."""
    kept: Sequence[Any] = [each for each in entries if wanted(each)]
    if len(kept) < len(entries):
        del entries[:]
        entries.extend(kept)
