"""Parts of files, read and digested on several threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from io import BufferedReader
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from .parallel import in_parallel
from .record import record

Array = np.ndarray[Any, Any]
R = TypeVar("R")
#: Where parts begin and end in a file: in order, and without overlaps.
Bounds = Sequence[tuple[int, int]]
#: A place in a file, how many bytes are read there, and where to; None if nobody keeps them.
_Piece = tuple[int, int, Array | None]

#: Bytes that one thread reads at a time.
_PART = 8 << 20
#: Each part starts at a multiple of these bytes in memory.
_ALIGNMENT = 64


@record
class Block:
    """Bytes in memory that are part of a file.

    Attributes:
        file: which of a model's files; 0 is the model itself.
        offset: of the first byte in the file.
        data: the bytes.
    """

    file: int
    offset: int
    data: Array


def read_parts(file: BufferedReader, bounds: Bounds) -> list[Array]:
    """Return parts of a file.

    They are in one array: the system provides it in large pages, whatever the sizes of its parts.

    Raises:
        OSError: it cannot be read.
        EOFError: it has become shorter.
    """
    found = _in_one_array(bounds)
    for _ in _read(file, _pieces(bounds, found), len):
        pass
    return found


def read_digested(
    file: BufferedReader, bounds: Bounds, *, keep: bool = True
) -> tuple[bytes, list[Array]]:
    """Return a digest of a whole file, which depends on these bounds, and the parts.

    Args:
        file: the file.
        bounds: of the parts.
        keep: False for the digest alone, which takes little memory.

    Raises:
        OSError, EOFError: see `read_parts`.
    """
    starts, ends = [start for start, _ in bounds], [end for _, end in bounds]
    gaps = list(zip((0, *ends), (*starts, os.fstat(file.fileno()).st_size), strict=True))
    found = _in_one_array(bounds) if keep else []
    pieces = [*_pieces(bounds, found or [None] * len(bounds)), *_pieces(gaps, [None] * len(gaps))]
    return _joined(_read(file, sorted(pieces, key=itemgetter(0)), _digest)), found


def digest_of(data: Array) -> bytes:
    """Return what `read_digested` returns for a file of these bytes, without bounds."""
    return _joined(in_parallel(_digest, (data[at:][:_PART] for at in range(0, len(data), _PART))))


def _joined(digests: Iterable[bytes]) -> bytes:
    return sha256(b"".join(digests)).digest()


def _digest(data: Array) -> bytes:
    return sha256(data.data).digest()


def _in_one_array(bounds: Bounds) -> list[Array]:
    sizes = [end - start for start, end in bounds]
    ends = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
    block = np.empty(ends[-1] if ends else 0, np.uint8)
    return [block[at:][:size] for at, size in zip((0, *ends), sizes, strict=False)]


def _pieces(bounds: Bounds, parts: Sequence[Array | None]) -> list[_Piece]:
    """Return what threads read of parts."""
    return [
        (at, min(_PART, end - at), None if part is None else part[at - start :][:_PART])
        for (start, end), part in zip(bounds, parts, strict=True)
        for at in range(start, end, _PART)
    ]


def _read(
    file: BufferedReader, pieces: Sequence[_Piece], then: Callable[[Array], R]
) -> Iterator[R]:
    """Yield what a function returns for pieces that have been read, in order."""

    def read(piece: _Piece) -> R:
        at, count, data = piece
        data = np.empty(count, np.uint8) if data is None else data
        to = data.data
        while to:
            done = os.preadv(file.fileno(), [to], at)
            if not done:
                raise EOFError
            to, at = to[done:], at + done
        return then(data)

    if hasattr(os, "preadv"):
        yield from in_parallel(read, pieces)
        return
    for at, count, data in pieces:
        file.seek(at)
        data = np.empty(count, np.uint8) if data is None else data
        if file.readinto(data.data) != count:
            raise EOFError
        yield then(data)


def print_of(folders: Iterable[str], since: int) -> bytes:
    """Return a digest of the names, sizes and times of the files in folders, as of bytecode.

    Args:
        folders: with all that is in them, except for bytecode.
        since: the time in nanoseconds since which none may have changed.

    Raises:
        OSError: they cannot be read.
        ValueError: a file has changed since.
    """
    found = list[str]()
    waiting = list(folders)
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for each in entries:
                if each.is_dir():
                    if each.name != "__pycache__":
                        waiting.append(each.path)
                else:
                    about = each.stat()
                    if about.st_mtime_ns >= since:
                        raise ValueError(f"{each.path} has changed")
                    found.append(f"{each.path}\0{about.st_size}\0{about.st_mtime_ns}")
    return sha256("\n".join(sorted(found)).encode(errors="surrogateescape")).digest()
