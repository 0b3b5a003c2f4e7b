"""From a path, bytes or a ModelProto to a ModelProto with a graph and an opset."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import DecodeError
from onnx import ModelProto

from ....runtime.base.arguments import unfit
from ....runtime.errors import UsageError
from ....runtime.ir.mapped import external_data_dir
from ....runtime.spelling import nearest
from ..source.limits import Limits
from ..source.source import FileSource
from .external import BINARY, CLOEXEC, NONBLOCK, lost_target
from .large_tensors import LARGE_FILE, split
from .signatures import describe, missing_bytes
from .texts import Loadable, format_of, is_language, object_proto, parsed

#: The newest supported IR version.
IR_VERSION = 14


def read(
    model: Loadable,
    limits: Limits,
    data_dir: str | os.PathLike[str] | None = None,
) -> tuple[ModelProto, FileSource]:
    """Return the parsed file and its source.

    Args:
        model: a path, the bytes of a file, a parsed model, a text in ONNX's language, or an
            exporter's object; see `object_proto`.
        limits: resource limits of the import.
        data_dir: the folder of its external data, if not its own.

    Raises:
        ModelFileError: the file does not exist or cannot be read.
        ModelError: the file is not ONNX, or is damaged.
        UsageError: `model` has another type.
    """
    folder = external_data_dir() if data_dir is None else Path(data_dir)
    if folder is not None and not folder.is_dir():
        raise unfit(UsageError, "external_data_dir", f"there is no folder '{folder}'")
    held: Any = in_memory(model)
    source = FileSource(None, limits, folder)
    if isinstance(held, ModelProto):
        proto = held
    elif isinstance(held, bytes):
        proto = _decode(held, source)
    else:
        source = FileSource(_path(held), limits, folder)
        proto = _read(source)
    _check(proto, source)
    return proto, source


def in_memory(model: Any) -> Any:
    """Return a message for objects that stand for one, such as a text; others unchanged."""
    if isinstance(model, bytearray | memoryview):
        return bytes(cast("bytearray", model))
    proto = object_proto(model)
    if proto is None and isinstance(model, str) and is_language(model):
        proto = parsed(model.encode(), "onnxtxt", FileSource())
    return model if proto is None else proto


def _path(model: str | os.PathLike[str]) -> str:
    try:
        return os.fsdecode(model)
    except TypeError as error:
        found = type(model).__name__
        remedy = "; give what its read() gives" if hasattr(model, "read") else ""
        raise UsageError(
            "a model is a path, bytes, an onnx.ModelProto or torch.onnx.ONNXProgram, "
            f"not {found}{remedy}"
        ) from error


def _read(source: FileSource) -> ModelProto:
    path = source.file or ""
    try:
        # A pipe would block, and a device may be endless.
        descriptor = os.open(path, os.O_RDONLY | CLOEXEC | NONBLOCK | BINARY)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise source.unopened("is not a plain file")
            if status.st_size > source.limits.file_bytes:
                size = f"{status.st_size} bytes; an ONNX file holds {source.limits.file_bytes}"
                raise source.error(f"{size} at most; keep the weights as external data")
            proto = _without_large(file, status.st_size, source)
            if proto is not None:
                return proto
            file.seek(0)
            data = file.read(source.limits.file_bytes)
    except FileNotFoundError as error:
        reason = lost_target(path) or f"there is no such file{_nearest(path)}"
        raise source.unopened(reason) from error
    except IsADirectoryError as error:
        raise source.unopened(f"is a folder; {_models(path)}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise source.unopened(f"cannot be read: {getattr(error, 'strerror', error)}") from error
    return _decode(data, source)


def _without_large(file: BufferedReader, size: int, source: FileSource) -> ModelProto | None:
    """Return a file's message with large tensors in `source.apart`, or None; see `split`."""
    if size < LARGE_FILE or format_of(file.peek()):
        return None
    try:
        found = split(file, size)
        if found is None:
            return None
        proto = ModelProto.FromString(found[0])
    except DecodeError:
        return None
    except EOFError:
        raise source.unopened("has become shorter while it was read") from None
    source.apart.update((token, block.data) for token, block in found[1].items())
    source.blocks.extend(found[1].values())
    return proto


#: The most models of a folder that a message lists.
_LISTED = 8


def _models(folder: str) -> str:
    """Return the models in a folder and in the folders in it, as a sentence.

    Those of transformers.js are in `onnx`, and diffusers has a folder for each model.
    """
    found = [
        str(path.relative_to(folder))
        for places in ("*.onnx", "*/*.onnx")
        for path in sorted(Path(folder).glob(places))
    ]
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    listed = ", ".join(found[:_LISTED])
    return (
        f"give the .onnx file in it ({listed}{more})" if found else "there is no .onnx file in it"
    )


def _nearest(path: str) -> str:
    """Return a suggestion: the file in a missing one's folder with the nearest name, if any.

    Its name may have slips before the suffix, or in it, but not in both.
    """
    (stem, suffix), folder = os.path.splitext(os.path.basename(path)), os.path.dirname(path)
    try:
        found = [os.path.splitext(name) for name in sorted(os.listdir(folder or "."))]
    except OSError:
        return ""
    near = nearest(stem, [other for other, ending in found if ending == suffix])
    ending = nearest(suffix, [ending for other, ending in found if other == stem])
    name = f"{near}{suffix}" if near else f"{stem}{ending}" if ending else ""
    return f"; did you mean '{name}'?" if name else ""


def _model_of_weights(path: str | None) -> str:
    """Return the model whose name external data begins with, as exporters write both, if any."""
    folder, name = os.path.split(path or "")
    model, suffix, rest = name.rpartition(".onnx")
    beside = os.path.join(folder, model + suffix)
    return beside if model and rest and os.path.isfile(beside) else ""


def _decode(data: bytes, source: FileSource) -> ModelProto:
    if not data:
        raise source.error("is empty")
    if form := format_of(data):
        return parsed(data, form, source)
    try:
        proto = ModelProto.FromString(data)
    except DecodeError as error:
        if kind := describe(data):
            raise source.error(f"is not an ONNX model but {kind}") from error
        if model := _model_of_weights(source.file):
            reason = f"is not an ONNX model but, by its name, the weights of {model}; give that"
            raise source.error(reason) from error
        if missing := missing_bytes(data):
            what = "byte is" if missing == 1 else "bytes are"
            raise source.error(f"is truncated: at least {missing:,} {what} missing") from error
        raise source.error("is not an ONNX model, or is damaged") from error
    if not proto.HasField("graph") and (kind := describe(data)):
        raise source.error(f"is not an ONNX model but {kind}")
    return proto


def _check(proto: ModelProto, source: FileSource) -> None:
    if not proto.HasField("graph"):
        raise source.error("has no graph: it is not an ONNX model, or is truncated")
    if proto.ir_version < 1:
        raise source.error("has no IR version")
    if proto.ir_version > IR_VERSION:
        found = f"has IR version {proto.ir_version}, newer than {IR_VERSION}, which tercet knows"
        raise source.unsupported(found)
    if not proto.opset_import and proto.ir_version >= 3:
        raise source.error("imports no opset, so its operators are undefined")
