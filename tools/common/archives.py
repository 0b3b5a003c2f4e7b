"""Safe reading of .npy and .npz files: nothing is unpacked or allocated unchecked.

A header may claim any size, and a kilobyte may unpack to a gigabyte. So sizes are compared first: a
header's with its file, an archive's with memory and its own size.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Container, Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote

import numpy as np

from ...importers.onnx.reading.signatures import mistaken
from ...runtime.base.files import replacing
from ...runtime.base.host_memory import memory
from ...runtime.errors import InputError, LimitError, TercetError
from ...runtime.ir.dtypes import string
from ...runtime.ir.types import Array

_NPY = b"\x93NUMPY"
#: Maximum expansion of archives that unpack to more than `SUSPECT_BYTES`; noise does not expand,
#: and zeros by a thousand.
MAX_GROWTH = 100
SUSPECT_BYTES = 256 << 20
#: File name extensions of members: numpy's, and our own texts.
MAX_TEXT = 16 << 20
MAX_NAME = 1000
#: Marks archives with quoted names.
_COMMENT = b"tercet: names are quoted as in URLs"


def read_npy(file: Path) -> dict[str, Array]:
    """Return the array of a .npy file.

    Raises:
        InputError: it is not a .npy file, is damaged, or claims to hold more than it does.
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        if stream.read(len(_NPY)) != _NPY:
            instead = mistaken(file) or "numpy.save writes one"
            raise InputError(f"{file} is not a .npy file: {instead}")
        stream.seek(0)
        return {"": _read_array(stream, file.stat().st_size, str(file))}


def read_archive(file: Path, leave: Container[str] = ()) -> dict[str, Array]:
    """Return the arrays of an .npz file by name, except some.

    Raises:
        InputError: it is not an .npz file, is damaged, or claims to hold more than it does.
        LimitError: it would unpack to more than memory can hold, or expand too much.
        OSError: it cannot be read.
    """
    found: dict[str, Array] = {}
    with file.open("rb") as stream, _reading(str(file)):
        if not zipfile.is_zipfile(stream):
            instead = mistaken(file) or "numpy.savez writes one"
            raise InputError(f"{file} is not an .npz file: {instead}")
        with zipfile.ZipFile(stream) as archive:
            _check_growth(file, archive)
            plain = unquote if archive.comment == _COMMENT else str
            for member in archive.infolist():
                name = plain(member.filename.removesuffix(".npy"))
                if name not in leave and member.filename.endswith(".npy"):
                    with archive.open(member) as entry:
                        where = f"{file}, array '{name}'"
                        found[name] = _read_array(cast(BinaryIO, entry), member.file_size, where)
    return found


def read_text(file: Path, name: str) -> Any:
    """Return the JSON of a member of an archive; see `read_archive` for the errors."""
    with file.open("rb") as stream, _reading(str(file)), zipfile.ZipFile(stream) as archive:
        size = archive.getinfo(name).file_size
        if size > MAX_TEXT:
            raise InputError(f"{file}: {name} has {size} bytes; at most {MAX_TEXT} are expected")
        return json.loads(archive.read(name))


def entries(file: Path) -> list[str]:
    """Return the members of an archive; none if the file is not an archive."""
    with file.open("rb") as stream, _reading(str(file)):
        if not zipfile.is_zipfile(stream):
            return []
        with zipfile.ZipFile(stream) as archive:
            return archive.namelist()


@contextmanager
def _reading(where: str) -> Generator[None]:
    """Convert exceptions of numpy, zipfile and decompressors for damaged files to InputError."""
    try:
        yield
    except TercetError:
        raise
    except Exception as error:
        said = str(error) or type(error).__name__
        raise InputError(f"{where} is damaged, or cannot be read: {said}") from error


def _check_growth(file: Path, archive: zipfile.ZipFile) -> None:
    """Reject an archive that declares excessive sizes."""
    unpacked, packed = sum(m.file_size for m in archive.infolist()), file.stat().st_size
    if unpacked > memory() // 2:
        raise LimitError(
            f"{file} unpacks to {unpacked} bytes; half of this machine's memory is {memory() // 2}"
        )
    if unpacked > max(SUSPECT_BYTES, MAX_GROWTH * packed):
        raise LimitError(
            f"{file} has {packed} bytes and unpacks to {unpacked}, which arrays rarely do; "
            "save them with numpy.savez if that is meant"
        )


def _read_array(stream: BinaryIO, size: int, where: str) -> Array:
    """Return an array, trusting nothing but its header.

    Args:
        stream: at the start of the file.
        size: size of the file in bytes.
        where: the file, for errors.
    """
    with _reading(where):
        version = np.lib.format.read_magic(stream)
        is_first = version == (1, 0)
        read = (
            np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(stream)
        if dtype.hasobject:
            raise InputError(
                f"{where} cannot be read: Object arrays are pickles, which could run code"
            )
        wanted, there = prod(shape) * dtype.itemsize, size - stream.tell()
        if wanted > there or min(shape, default=0) < 0:
            said = f"its header says {wanted} bytes of data; there are {there}"
            raise InputError(f"{where} is damaged: {said}")
        stream.seek(0)
        return np.lib.format.read_array(stream, allow_pickle=False)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def write_archive(
    file: Path, outputs: Mapping[str, Array], texts: Mapping[str, Any] | None = None
) -> None:
    """Write arrays to an .npz file, which `numpy.load` reads without pickle.

    Strings are saved as numpy strings of equal length; types that numpy lacks, such as bfloat16, as
    bytes. A name that would lead out of the folder when unpacked is quoted as in URLs:
    ``%2E%2E/x``; `read_archive` restores it.

    Args:
        file: its path.
        outputs: arrays by name.
        texts: further members, by name, as JSON.
    """
    with replacing(file) as stream, zipfile.ZipFile(stream, "w") as archive:
        archive.comment = _COMMENT
        for name, data in outputs.items():
            plain = data.astype(str) if data.dtype == string else data
            with archive.open(f"{member_name(name)}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(plain), allow_pickle=False)
        for name, text in (texts or {}).items():
            archive.writestr(name, json.dumps(text))


def member_name(name: str) -> str:
    """Return a name that is a path below any folder, on every system."""
    parts = [_part(part) for part in name.split("/")]
    if not parts[0] and parts[1:]:  # starts with a slash
        parts[:2] = [f"%2F{parts[1]}"]
    quoted = "/".join(parts)
    if len(quoted.encode()) > MAX_NAME:
        quoted = f"{quoted[:100]}{sha256(name.encode()).hexdigest()}"
    return quoted


def _part(part: str) -> str:
    """Return a path component with special characters quoted."""
    if part in (".", ".."):
        return part.replace(".", "%2E")
    if re.match(r"[A-Za-z]:(\\|$)", part):  # a drive
        return f"{part[0]}%3A{_part(part[2:])}"
    return "".join(c if c.isprintable() and c not in "%\\" else quote(c) for c in part)
