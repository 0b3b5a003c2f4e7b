"""Reading weights by name: .safetensors, .npz, and the initializers of another ONNX file."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...importers import onnx as importer
from ...runtime.errors import InputError
from ...runtime.ir import dtypes
from ...runtime.ir.types import Array
from ...runtime.session.refit import weights_of
from .archives import read_archive

#: Longest header, as the format defines it.
_MAX_HEADER = 100_000_000
_DTYPES: dict[str, dtypes.DType] = {
    "F64": dtypes.float64,
    "F32": dtypes.float32,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F8_E4M3": dtypes.float8e4m3fn,
    "F8_E5M2": dtypes.float8e5m2,
    "I64": dtypes.int64,
    "I32": dtypes.int32,
    "I16": dtypes.int16,
    "I8": dtypes.int8,
    "U64": dtypes.uint64,
    "U32": dtypes.uint32,
    "U16": dtypes.uint16,
    "U8": dtypes.uint8,
    "BOOL": dtypes.bool_,
}


def read_weights(file: Path) -> dict[str, Array]:
    """Return the arrays of a file by name.

    Raises:
        InputError: the file is of another kind, or damaged.
        ModelError: an ONNX file is damaged.
        OSError: it cannot be read.
    """
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise InputError(
            f"{file}: weights are read from {', '.join(_READERS)} files "
            "(of PyTorch, safetensors.torch.save_file(model.state_dict(), …) writes one)"
        )
    return reader(file)


def read_safetensors(file: Path) -> dict[str, Array]:
    """Return the tensors of a .safetensors file, memory-mapped; see `read_weights` for errors.

    The format is eight bytes with the length of a JSON object, that object, which has dtype, shape
    and place of each tensor, and the tensors.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise InputError(f"{file} is not a safetensors file, or is truncated")
        try:
            header = json.loads(stream.read(length))
            entries = {k: _entry(v) for k, v in header.items() if k != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{file} is damaged: its header cannot be read ({error})") from error
    if not entries:
        return {}
    data = np.asarray(np.memmap(file, np.uint8, "r"))[8 + length :]
    found: dict[str, Array] = {}
    for name, (dtype, shape, begin, end) in entries.items():
        if not 0 <= begin <= end <= data.size or end - begin != prod(shape) * dtype.itemsize:
            raise InputError(f"{file} is damaged: '{name}' does not lie within it, or is too short")
        part = data[begin:end]
        aligned = part if part.ctypes.data % dtype.alignment == 0 else part.copy()
        found[name] = aligned.view(dtype).reshape(shape)
    return found


def _entry(entry: dict[str, Any]) -> tuple[dtypes.DType, tuple[int, ...], int, int]:
    """Return dtype, shape and place of a tensor."""
    begin, end = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    if min(shape, default=0) < 0:
        raise ValueError("a size is negative")
    return _DTYPES[entry["dtype"]], shape, int(begin), int(end)


def _read_model(file: Path) -> dict[str, Array]:
    return weights_of(importer.load(file).graph)


_READERS: dict[str, Callable[[Path], dict[str, Array]]] = {
    ".safetensors": read_safetensors,
    ".npz": read_archive,
    ".onnx": _read_model,
}
