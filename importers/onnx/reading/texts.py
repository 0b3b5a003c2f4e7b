"""Models in other forms than binary protobuf: text formats, and exporters' objects.

ONNX has its own language (``<ir_version: 8, ...> g (float[2] x) => (y) { ... }``), and protobuf has
two text formats: textproto and JSON.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np
import onnx.parser
import onnx.printer
from onnx import ModelProto, serialization

from ....runtime.errors import TercetError, UnsupportedError
from ....runtime.ir.dtypes import string
from ....runtime.ir.types import Array
from ..source.raw import RawGraph, RawNode
from ..source.source import FileSource
from .parse import parse


class ExportedProgram(Protocol):
    """``torch.onnx.ONNXProgram``, which ``torch.onnx.export(..., dynamo=True)`` returns."""

    @property
    def model_proto(self) -> ModelProto:
        """The model as a message."""
        ...


class IRModel(Protocol):
    """``onnx_ir.Model``, recognised by its members."""

    @property
    def ir_version(self) -> int:
        """The version of the file format."""
        ...

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """The version of each domain."""
        ...


#: The forms of a model: a path, a file's bytes, a text in ONNX's language, a message, or
#: an exporter's object.
Loadable = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto | ExportedProgram | IRModel
)

#: Text formats by file name extension; other files are binary protobuf.
FORMATS: dict[str, str] = {
    ".onnxtxt": "onnxtxt",
    ".onnxtext": "onnxtxt",
    ".textproto": "textproto",
    ".prototxt": "textproto",
    ".pbtxt": "textproto",
    ".txtpb": "textproto",
    ".json": "json",
    ".onnxjson": "json",
}
_LANGUAGE = re.compile(rb"\s*<\s*[a-z_]+\s*:")
_TEXTPROTO = re.compile(rb"(?:\s*#[^\n]*\n)*\s*(?:ir_version|producer_name|graph)\s*[:{]")
_NAMES = {"onnxtxt": "ONNX's language", "textproto": "textproto", "json": "JSON"}
_JSON = re.compile(rb'\s*\{.*?"(?:irVersion|ir_version|graph)"\s*:', re.DOTALL)
#: Initial bytes that identify a text format.
_HEAD = 4096


def format_of(data: bytes) -> str | None:
    """Return the text format of a model; None for everything else."""
    head = data[:_HEAD].removeprefix(b"\xef\xbb\xbf")
    if _LANGUAGE.match(head):
        return "onnxtxt"
    if _TEXTPROTO.match(head):
        return "textproto"
    return "json" if _JSON.match(head) else None


def is_language(text: str) -> bool:
    """Whether a string is a model in ONNX's language rather than a path."""
    return _LANGUAGE.match(text[:_HEAD].encode(errors="replace")) is not None


def parsed(data: bytes, form: str, source: FileSource) -> ModelProto:
    """Return the model in a text.

    Raises:
        ModelError: the text is malformed, or uses names that ONNX lacks.
        LimitError: it is nested too deeply.
    """
    _check_depth(data, source)
    try:
        if form == "onnxtxt":
            return onnx.parser.parse_model(data.decode("utf-8-sig"))
        serializer: Any = serialization.registry.get(form)
        return cast("ModelProto", serializer.deserialize_proto(data, ModelProto()))
    except Exception as error:  # protobuf's and onnx's own exceptions, and ValueError
        first = error.args[0] if error.args else ""  # onnx's parser raises bytes
        text = first.decode(errors="replace") if isinstance(first, bytes) else str(error)
        said = " ".join(text.split()) or type(error).__name__
        raise source.error(f"is not a model in {_NAMES[form]}: {said[:200]}") from error


#: A string or comment, in which brackets are ignored, or a bracket.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|#[^\n]*|[({\[<]|[)}\]>]', re.DOTALL)


def _check_depth(data: bytes, source: FileSource) -> None:
    """Reject texts that would overflow the stack of onnx's recursive parser."""
    depth, maximum = 0, 8 * source.limits.depth
    for found in _BRACKETS.finditer(data):
        token = found[0]
        if token in (b"(", b"{", b"[", b"<"):
            depth += 1
        elif token in (b")", b"}", b"]", b">"):
            depth -= 1
        if depth > maximum:
            raise source.limit(f"nests more than {maximum} brackets")


def text_of(model: ModelProto, form: str) -> bytes:
    """Return a model as text that parses to the same model.

    Raises:
        UnsupportedError: the format cannot represent it completely.
    """
    if form != "onnxtxt":
        serializer: Any = serialization.registry.get(form)
        text = serializer.serialize_proto(model)
        return text.encode() if isinstance(text, str) else cast("bytes", text)
    text = onnx.printer.to_text(model).encode()
    if not _is_same(text, model):
        raise UnsupportedError(
            "ONNX's own text form cannot say all of this model; a .textproto or .json file can"
        )
    return text


def _is_same(text: bytes, model: ModelProto) -> bool:
    """Whether a text in ONNX's language represents the same model."""
    source = FileSource()
    try:
        again = parsed(text, "onnxtxt", source)
        found, wanted = (parse(each, source) for each in (again, model))
    except TercetError:
        return False
    return found.opsets == wanted.opsets and _plain(found.graph) == _plain(wanted.graph)


def _plain(value: Any) -> Any:
    """Return a comparable form of a part of a model."""
    match value:
        case RawGraph():
            constants = {name: _plain(data) for name, data in value.constants.items()}
            nodes = [_plain(node) for node in value.nodes]
            return value.inputs, value.outputs, constants, nodes
        case RawNode():
            attributes = {name: _plain(each) for name, each in value.attributes.items()}
            return value.op, value.domain, value.inputs, value.outputs, attributes
        case np.ndarray():
            array = cast("Array", value)
            is_text = array.dtype == string
            return array.dtype, array.shape, array.tolist() if is_text else array.tobytes()
        case tuple():
            return tuple(map(_plain, cast("tuple[Any, ...]", value)))
        case _:
            return value


def object_proto(model: object) -> ModelProto | None:
    """Return the message for an object that is or stands for one; None for others.

    These are ``torch.onnx.ONNXProgram`` and ``onnx_ir.Model``; neither package is imported.
    """
    if isinstance(model, ModelProto):
        return model
    proto = getattr(model, "model_proto", None)
    if isinstance(proto, ModelProto):
        return proto
    kind = type(model)
    package = kind.__module__.split(".")[0]
    if package in ("onnx_ir", "onnxscript") and kind.__name__ == "Model":
        from importlib import import_module

        serde: Any = import_module(f"{kind.__module__.rpartition('.')[0] or package}.serde")
        return cast("ModelProto", serde.serialize_model(model))
    return None
