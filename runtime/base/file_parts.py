"""Parts of files, read and digested on several threads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from io import BufferedReader
from itertools import accumulate
from typing import Any

import numpy as np

from .parallel import in_parallel
from .record import record

Array = np.ndarray[Any, Any]
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


def read_parts(file: BufferedReader, places: Sequence[tuple[int, int]]) -> list[Array]:
    """Return the bytes between these places of a file.

    They are in one array: the system provides it in large pages, whatever the sizes of its parts.

    Raises:
        OSError: it cannot be read.
        EOFError: it has become shorter.
    """
    sizes = [end - start for start, end in places]
    ends = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
    block = np.empty(ends[-1] if ends else 0, np.uint8)
    found = [block[at:][:size] for at, size in zip((0, *ends), sizes, strict=False)]
    parts = [
        (data[first : first + _PART], start + first)
        for data, (start, _) in zip(found, places, strict=True)
        for first in range(0, len(data), _PART)
    ]
    if hasattr(os, "preadv"):
        for _ in in_parallel(lambda part: _fill(file.fileno(), *part), parts):
            pass
        return found
    for to, at in parts:
        file.seek(at)
        if file.readinto(to.data) != len(to):
            raise EOFError
    return found


def _fill(descriptor: int, part: Array, at: int) -> None:
    """Read a part of a file from this place."""
    to = part.data
    while to:
        count = os.preadv(descriptor, [to], at)
        if not count:
            raise EOFError
        to, at = to[count:], at + count


def digest_of(file: BufferedReader) -> bytes:
    """Return a digest of a file's bytes.

    Raises:
        OSError: it cannot be read, or has become shorter.
    """
    size = os.fstat(file.fileno()).st_size
    whole = sha256(size.to_bytes(8, "little"))
    for part in _digests(file, size):
        whole.update(part)
    return whole.digest()


def _digests(file: BufferedReader, size: int) -> Iterator[bytes]:
    """Yield the digests of the parts of a file."""
    starts = range(0, size, _PART)
    if not hasattr(os, "preadv"):
        yield from (sha256(file.read(_PART)).digest() for _ in starts)
        return

    def digest(start: int) -> bytes:
        part = np.empty(min(_PART, size - start), np.uint8)
        try:
            _fill(file.fileno(), part, start)
        except EOFError:
            raise OSError("the file becomes shorter") from None
        return sha256(part.data).digest()

    yield from in_parallel(digest, starts)


def print_of(folders: Iterable[str]) -> bytes:
    """Return a digest of the names, sizes and times of the files in folders, as of bytecode."""
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
                    found.append(f"{each.path}\0{about.st_size}\0{about.st_mtime_ns}")
    return sha256("\n".join(sorted(found)).encode(errors="surrogateescape")).digest()
