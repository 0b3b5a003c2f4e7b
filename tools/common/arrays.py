"""Reading arrays: .npy, .npz, ONNX tensors (.pb), and folders of ONNX test data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from ...runtime.base.arguments import refused
from ...runtime.errors import InputError, UsageError, did_you_mean
from ...runtime.ir.types import Array
from .archives import read_archive, read_npy


def read_array(file: Path, name: str) -> Array:
    """Return the array in a .npy, .npz or .pb (TensorProto) file.

    Args:
        file: its path.
        name: the input it is for; selects the array of an .npz file with several.

    Raises:
        InputError: the file is not what its extension says, or has no such array.
        OSError: the file cannot be read.
    """
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        known = ", ".join(READERS)
        raise InputError(f"{file}: arrays are read from {known} files, images from .png or .jpg")
    arrays = reader(file)
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if name not in arrays:
        raise InputError(
            f"{file} has no array '{name}'{did_you_mean(name, list(arrays))} "
            f"(arrays: {', '.join(arrays)})"
        )
    return arrays[name]


def read_tensor(file: Path) -> dict[str, Array]:
    """Return the tensor of a .pb file by its own name; see `read_array` for the errors.

    onnx reads it: what is expected of tercet is read by none of tercet's code that reads models.
    """
    try:
        proto = TensorProto.FromString(file.read_bytes())
    except DecodeError as error:
        raise InputError(f"{file} is not an ONNX tensor") from error
    if any(size < 0 for size in proto.dims):
        raise InputError(f"{file}: the tensor has a negative dimension: {list(proto.dims)}")
    try:
        return {proto.name: numpy_helper.to_array(proto, str(file.parent))}
    except OSError:
        raise
    except Exception as error:  # what onnx raises for damaged tensors has no common type
        raise InputError(f"{file} is a damaged ONNX tensor: {error}") from error


READERS: dict[str, Callable[[Path], dict[str, Array]]] = {
    ".npy": read_npy,
    ".npz": read_archive,
    ".pb": read_tensor,
}


def read_test_data(folder: Path, kind: str, names: Sequence[str]) -> dict[str, Array]:
    """Return the tensors of a folder of ONNX test data, such as ``test_data_set_0``.

    Args:
        folder: contains ``input_0.pb``, ``output_0.pb``, ….
        kind: ``input`` or ``output``.
        names: the model's names; a tensor with another name is identified by its number.
    """
    found: dict[str, Array] = {}
    for number in range(len(names)):
        file = folder / f"{kind}_{number}.pb"
        if not file.exists():
            break
        ((own, data),) = read_tensor(file).items()
        found[own if own in names else names[number]] = data
    if not found and names:
        inner = sorted(path.name for path in folder.glob("test_data_set_*"))
        hint = f"; try {folder / inner[0]}" if inner else ""
        raise InputError(f"{folder}: there is no {kind}_0.pb in it{hint}")
    return found


def read_named(option: str, texts: Sequence[str]) -> dict[str, Array]:
    """Return arrays by name, from strings such as ``mask=mask.npy``; see `read_array`.

    Raises:
        UsageError: a string has another form.
    """
    found: dict[str, Array] = {}
    for text in texts:
        parts = text.split("=")
        splits = [("=".join(parts[:i]), "=".join(parts[i:])) for i in range(1, len(parts))]
        if not splits:
            raise refused(option, text, "NAME=FILE, such as x=x.npy")
        name, file = next((pair for pair in splits if Path(pair[1]).exists()), splits[0])
        found[name] = read_array(Path(file), name)
    return found


def check_archive_name(file: Path | None) -> None:
    """Raise UsageError unless outputs can be saved to a file of this name."""
    if file is not None and file.suffix.lower() != ".npz":
        raise UsageError(f"--save {file}: outputs are saved in an .npz file")
