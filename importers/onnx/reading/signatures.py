"""Recognition of files that are not ONNX models, for error messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

_BOOSTED = "{} model; convert it with onnxmltools"
_PREFIXES: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer to one; run 'git lfs pull' where you cloned it",
    ),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"\xfd7zXZ\0", "an xz archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as Keras writes; export it with tf2onnx"),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        "an old PyTorch checkpoint; export it with torch.onnx.export",
    ),
    (
        b"GGUF",
        "a GGUF file of llama.cpp; export the checkpoint that it was made from with optimum or "
        "onnxruntime-genai",
    ),
    (b"CBM1", "a CatBoost model; save it with save_model(file, format='onnx')"),
    (b"{L\0\0\0\0\0\0\0\x07learner", _BOOSTED.format("an XGBoost")),
    (b'{"learner":', _BOOSTED.format("an XGBoost")),
    (b"tree\nversion=", _BOOSTED.format("a LightGBM")),
    (b"ptrt", "a TensorRT engine; give the model that it was built from"),
    (b"ftrt", "a TensorRT engine; give the model that it was built from"),
)

#: Bytes that tell what a file is, and those of a text that are shown.
_HEAD, _SHOWN = 4096, 40
#: Encoded bytes from which on binary data are known to be encoded.
_MARKS = 16
#: Line ends, of which one is not that of Windows unless something has converted them.
_LINES = 8


def describe_data(data: bytes) -> str:
    """Return what a file is that should have held tensors; an empty string if unknown."""
    found = (kind for prefix, kind in _PREFIXES if data.startswith(prefix))
    return next(found, "") or (_text(data) if data.strip() else "")


def mistaken(file: Path) -> str:
    """Return what was fetched instead of a file of any format, with a remedy; "" if unknown.

    For messages that say what the file should be, after it could not be read.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return ""
    if not head:
        return "it is empty"
    if head.startswith(_PREFIXES[0][0]):
        return "it is a Git LFS pointer; run 'git lfs pull' where you cloned it"
    page = _page(head)
    return f"it is {page}" if page else ""


def describe(data: bytes) -> str:
    """Return what `data` looks like and a remedy; an empty string if unknown."""
    for prefix, kind in _PREFIXES:
        if data.startswith(prefix):
            return kind
    return _archive(data) or _binary(data) or _text(data) or _protobuf(data) or _spoiled(data)


def _archive(data: bytes) -> str:
    if data.startswith(b"PK\x03\x04"):
        if b"data.pkl" in data[:_HEAD]:
            return "a PyTorch checkpoint; export it with torch.onnx.export"
        if b"/archive_format" in data[-_HEAD:]:  # the list of its files
            return "a program of torch.export; give it to torch.onnx.export"
        if b"model.weights.h5" in data or b"config.json" in data[:_HEAD]:
            return "a Keras model; export it with tf2onnx"
        if data[30 : 30 + int.from_bytes(data[26:28], "little")].endswith(b".npy"):
            return "a numpy archive (.npz), such as inputs of a model"
        return "a zip archive; unpack it first"
    return "a tar archive; unpack it first" if data[257:262] == b"ustar" else ""


def _binary(data: bytes) -> str:
    if data[4:8] == b"TFL3":
        return "a TensorFlow Lite model; convert it with tf2onnx"
    if data[4:8] == b"ORTM":
        return "a model in onnxruntime's own format; give the .onnx file"
    if data[:1] == b"\x80" and data[1:2] in b"\2\3\4\5" and b"." in data[-2:]:
        if b"sklearn" in data:
            return "a Python pickle with estimators of scikit-learn; convert them with skl2onnx"
        return "a Python pickle, such as an old PyTorch checkpoint; use torch.onnx.export"
    if data[8:9] == b"{" and 2 <= int.from_bytes(data[:8], "little") <= len(data) - 8:
        return "a safetensors file, which contains only weights; export the model to ONNX"
    return ""


def _page(head: bytes) -> str:
    lower = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:512].lower()
    is_page = lower.startswith((b"<!doctype html", b"<html")) or b"<html" in lower
    return "an HTML page; was the download redirected?" if is_page else ""


def _text(data: bytes) -> str:
    if page := _page(data[:_HEAD]):
        return page
    head = data[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"<?xml"):
        net = b"<net " in head
        return (
            "an OpenVINO model; give the ONNX file that it was made from" if net else "an XML file"
        )
    begins = f"that begins {head[:_SHOWN].decode(errors='replace')!r}"
    if head.startswith((b"{", b"[")) and data.rstrip().endswith((b"}", b"]")):
        return f"a JSON file {begins}"
    if head and all(32 <= byte < 127 or byte in b"\t\n\r\f" for byte in head):
        forms = "ONNX's text forms (ONNX's language, textproto, JSON)"
        return f"a text file {begins}, and none of {forms}"
    if head and _is_converted(data):
        return "binary data that were converted to text (UTF-8); copy the file again as binary"
    return "a text file" if not head else ""


def _is_converted(data: bytes) -> bool:
    """Whether bytes that no text has are encoded like text: by chance that hardly happens."""
    is_marked = data.startswith(b"\xef\xbb\xbf")
    if not (is_marked or data.count(b"\xc2") + data.count(b"\xc3") + data.count(b"\xef") > _MARKS):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return is_marked
    return any(byte in data for byte in b"\0\1\2\3")


def _spoiled(data: bytes) -> str:
    if not data.strip(b"\0"):
        return "nothing but zeros; was its download interrupted?"
    lines = data.count(b"\n")
    if lines > _LINES and lines == data.count(b"\r\n"):
        return "binary data whose line ends were converted; copy the file again as binary"
    return ""


def _protobuf(data: bytes) -> str:
    if any(word in data for word in (b"saved_model_main_op", b"saver_def", b"MetaGraphDef")):
        return "a TensorFlow SavedModel; convert it with tf2onnx"
    if data.startswith(b"\n") and any(w in data for w in (b"Placeholder", b"VariableV2")):
        return "a TensorFlow graph; convert it with tf2onnx"
    if data.startswith(b"\n") and b"feed" in data and b"fetch" in data:
        return "a Paddle program; convert it with paddle2onnx"
    fields = list(_fields(data))
    if fields and fields[-1][2] == len(data) and max(fields)[0] >= _CORE_ML:
        return "a Core ML model; export the model that it was made from to ONNX"
    try:
        tensor = TensorProto.FromString(data)
    except DecodeError:
        return ""
    if tensor.data_type and (tensor.HasField("raw_data") or tensor.name or tensor.dims):
        return "one ONNX tensor, such as test data; give the model"
    return ""


def missing_bytes(data: bytes) -> int:
    """Return by how many bytes the last protobuf field is truncated; 0 for other damage."""
    fields = list(_fields(data))
    for number, wire, _ in fields:
        known = ModelProto.DESCRIPTOR.fields_by_number.get(number)
        if wire not in _SIZES or (known and wire != _wire_type(known.cpp_type)):
            return 0
    return max(fields[-1][2] - len(data), 0) if fields else 0


#: Bytes of the values of protobuf's wire types; a varint and a length-delimited one say it.
_SIZES = {0: 0, 1: 8, 2: 0, 5: 4}
#: The lowest number of the fields of a Core ML file that hold the model itself.
_CORE_ML = 200


def _wire_type(kind: int) -> int:
    """Return the wire type of a field of ModelProto: a number, or something with a length."""
    return 0 if kind == FieldDescriptor.CPPTYPE_INT64 else 2


def _fields(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the number, wire type and end of each top-level protobuf field, until one is damaged.

    The end of a truncated field is behind that of the data.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            return
        if wire in (0, 2):
            size, at = _varint(data, at)
            at += size if wire == 2 else 0
        yield number, wire, at + _SIZES.get(wire, 0)
        if wire not in _SIZES:
            return
        at += _SIZES[wire]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position and the next position; 0 beyond the end."""
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    return 0, max(at, len(data) + 1)
