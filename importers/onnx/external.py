"""External data: files in the model's folder, opened so that nothing outside it can be reached.

Every component of a location is opened relative to its parent and without following links, and
the checks look at what was opened, not at a name that could change in between. The data are
mapped, so weights that are never read cost nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import PurePosixPath

import numpy as np
from onnx import StringStringEntryProto

from ...runtime.types import Array
from .source import Source

_KEYS = ("location", "offset", "length", "checksum")
_COMMON = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class ExternalData:
    """The files beside one model, each mapped once.

    Args:
        source: the model; its folder is the only one that is read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._mapped: dict[str, Array] = {}

    def read(self, entries: Iterable[StringStringEntryProto], size: int, where: str) -> Array:
        """Return the bytes that a tensor's `external_data` names, mapped and read-only.

        The optional checksum is not verified, for that would read everything.

        Args:
            entries: location, and where in that file.
            size: bytes to return where no length is given.
            where: what to call the tensor in messages.

        Raises:
            ModelError: the location leaves the model's folder, is no plain file, or is too short.
        """
        fields = self._fields(entries, where)
        data = self._file(fields.get("location", ""), where)
        offset = self._number(fields, "offset", 0, where)
        length = self._number(fields, "length", size, where)
        if offset + length > data.nbytes:
            wanted = f"wants bytes {offset} to {offset + length}"
            found = f"external file '{fields['location']}' has {data.nbytes} bytes"
            raise self._source.error(f"{wanted}, but {found}", where)
        return data[offset : offset + length]

    def _fields(self, entries: Iterable[StringStringEntryProto], where: str) -> dict[str, str]:
        fields: dict[str, str] = {}
        for entry in entries:
            key = self._source.text(entry.key, where)
            if key not in _KEYS or key in fields:
                found = "repeated" if key in fields else "unknown"
                raise self._source.error(f"{found} key '{key[:40]}' in external_data", where)
            fields[key] = self._source.text(entry.value, where)
        return fields

    def _number(self, fields: dict[str, str], key: str, default: int, where: str) -> int:
        text = fields.get(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or len(text) > 20:
            raise self._source.error(f"external_data: {key} '{text[:40]}' is not a size", where)
        return int(text)

    def _file(self, location: str, where: str) -> Array:
        if location not in self._mapped:
            self._mapped[location] = self._map(location, where)
        return self._mapped[location]

    def _map(self, location: str, where: str) -> Array:
        folder = self._source.folder
        if folder is None:
            reason = (
                f"keeps its data in '{location}', which a model in memory cannot have beside it"
            )
            raise self._source.error(f"{reason}; load the model by its path", where)
        parts = self._parts(location, where)
        try:
            descriptor = _open_inside(str(folder), parts)
        except OSError as error:
            raise self._refusal(location, error, where) from error
        try:
            size = self._checked_size(descriptor, location, where)
            if size == 0:
                return np.empty(0, np.uint8)
            mapping = mmap.mmap(descriptor, size, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
        finally:
            os.close(descriptor)
        return np.frombuffer(mapping, np.uint8)

    def _parts(self, location: str, where: str) -> tuple[str, ...]:
        shown = f"external data location {location[:80]!r}"
        if not location:
            raise self._source.error("has external data without a location", where)
        if "\0" in location:
            raise self._source.error(f"{shown} contains a NUL character", where)
        if location.startswith("/") or PurePosixPath(location).is_absolute():
            raise self._source.error(f"{shown} is absolute; only the model's folder is read", where)
        parts = tuple(part for part in location.split("/") if part not in ("", "."))
        if ".." in parts or not parts:
            raise self._source.error(f"{shown} leaves the model's folder", where)
        return parts

    def _refusal(self, location: str, error: OSError, where: str) -> Exception:
        shown = f"external data '{location[:80]}'"
        if error.errno == errno.ENOENT:
            reason = f"{shown} is not there; it belongs into '{self._source.folder}'"
        elif error.errno in (errno.ELOOP, errno.ENOTDIR):
            reason = f"{shown} is, or is inside, a link; copy the file into the model's folder"
        elif error.errno == errno.ENXIO:
            reason = f"{shown} is not a plain file"
        else:
            reason = f"{shown} cannot be read: {error.strerror}"
        return self._source.error(reason, where)

    def _checked_size(self, descriptor: int, location: str, where: str) -> int:
        shown = f"external data '{location[:80]}'"
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise self._source.error(f"{shown} is not a plain file", where)
        if status.st_nlink > 1:
            raise self._source.error(
                f"{shown} has hard links, so it may be any file; copy it", where
            )
        return status.st_size


def _open_inside(folder: str, parts: tuple[str, ...]) -> int:
    """Open `parts` below `folder`, following no link and waiting for no pipe."""
    parent = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    for part in parts[:-1]:
        try:
            child = os.open(part, _COMMON | os.O_DIRECTORY, dir_fd=parent)
        finally:
            os.close(parent)
        parent = child
    try:
        return os.open(parts[-1], _COMMON | os.O_NONBLOCK, dir_fd=parent)
    finally:
        os.close(parent)
