"""External data: files in the model's folder, opened so that nothing outside can be reached.

A location may contain links, as in Hugging Face's cache, as long as they lead to the model's
folder, or to the folder of the model file after resolving its own links. Every component of the
resolved path is then opened relative to its parent without following links, and checks apply to
what was opened, not to a name that could change in between. Data are memory-mapped, so weights that
are never read cost nothing; truncating a mapped file would kill a process that reads on (SIGBUS),
so a run checks sizes first, and `map_external_data=False` reads everything at once.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from weakref import ref

import numpy as np
from onnx import StringStringEntryProto

from ....runtime.base.files import signature
from ....runtime.ir.mapped import Mapped
from ....runtime.ir.types import Array
from ..source.source import FileSource
from .signatures import describe_data

#: Bytes of a file that is too short by which it is described.
_DESCRIBED = 4096
#: Of `external_data`: where the bytes are, and what ONNX writes and itself ignores.
_KEYS = ("location", "offset", "length", "checksum", "basepath")
#: Begins keys of onnxruntime: weights once more, in an order of one CPU.
_PREPACKED = "prepacked_"
# Flags of `os.open`, 0 where a system lacks them: Windows has only the last one.
CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
BINARY: int = getattr(os, "O_BINARY", 0)
_COMMON = os.O_RDONLY | CLOEXEC | BINARY
_SAY = "external_data_dir= (--external-data-dir)"
_ALLOW = f"copy the file into the model's folder, or pass its folder: {_SAY}"


class ExternalData:
    """The external files of one model, each mapped once.

    Args:
        source: the model; only its folder, and that of the resolved file, are accessible.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._mapped: dict[str, Array] = {}

    def read(self, entries: Iterable[StringStringEntryProto], size: int, where: str) -> Array:
        """Return the bytes named by a tensor's `external_data`, mapped and read-only.

        The optional checksum is not verified, as that would read everything. What onnxruntime has
        packed for its own kernels is left out: the weights are there as they were.

        Args:
            entries: location, offset and length.
            size: bytes to return if no length is given.
            where: name of the tensor in messages.

        Raises:
            ModelError: the location is invalid, or the file is too short.
            ModelFileError: the file is missing, outside the folder, or cannot be opened.
        """
        fields = self._fields(entries, where)
        data = self._file(fields.get("location", ""), where)
        offset = self._number(fields, "offset", 0, where)
        length = self._number(fields, "length", size, where)
        if offset + length > data.nbytes:
            wanted = f"wants bytes {offset} to {offset + length}"
            found = f"external file '{fields['location']}' has {data.nbytes} bytes"
            kind = describe_data(data[:_DESCRIBED].tobytes())
            what = f"; it is {kind}" if kind else "; was its download interrupted?"
            raise self._source.error(f"{wanted}, but {found}{what}", where)
        return data[offset : offset + length]

    def _fields(self, entries: Iterable[StringStringEntryProto], where: str) -> dict[str, str]:
        fields: dict[str, str] = {}
        for entry in entries:
            key = self._source.text(entry.key, where)
            if key.startswith(_PREPACKED):
                continue
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
            raise self._source.unopened(
                f"keeps its data in '{location[:80]}', which a model in memory has no folder for; "
                f"load it by its path, or say where its data are: {_SAY}",
                where,
            )
        parts = self._parts(location, where)
        try:
            target = Path(os.path.realpath(folder.joinpath(*parts)))
            descriptor = self._open(target, location, where)
        except OSError as error:
            raise self._refusal(location, error, where) from error
        try:
            size = self._checked_size(descriptor, location, where)
            if size == 0:
                return np.empty(0, np.uint8)
            if not self._source.maps_data:
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    return np.frombuffer(file.read(), np.uint8)
            opened = signature(descriptor)
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        mapped = Mapped(location, self._source.file, size, ref(mapping), target, opened)
        self._source.mapped.append(mapped)
        return np.frombuffer(mapping, np.uint8)

    def _open(self, target: Path, location: str, where: str) -> int:
        """Open what a location resolves to, if its folder is accessible."""
        for root in self._source.data_folders:
            if target != root and target.is_relative_to(root):
                return _open_inside(root, target.relative_to(root).parts)
        raise self._source.unopened(
            f"external data '{location[:80]}' leads out of the model's folder; {_ALLOW}", where
        )

    def _parts(self, location: str, where: str) -> tuple[str, ...]:
        shown = f"external data location {location[:80]!r}"
        if not location:
            raise self._source.error("has external data without a location", where)
        if "\0" in location:
            raise self._source.error(f"{shown} contains a NUL character", where)
        if location.startswith("/") or PurePosixPath(location).is_absolute():
            raise self._source.error(f"{shown} is absolute; only the model's folder is read", where)
        parts = tuple(part for part in location.split("/") if part not in ("", "."))
        if ".." in parts or not parts or any(map(_is_path, parts)):
            raise self._source.error(f"{shown} leaves the model's folder", where)
        return parts

    def _refusal(self, location: str, error: OSError, where: str) -> Exception:
        shown = f"external data '{location[:80]}'"
        if error.errno == errno.ENOENT:
            folder = self._source.folder
            lost = lost_target(os.path.join(folder or "", location))
            reason = f"{shown} " + (lost or f"is not there; expected in '{folder}'")
        elif error.errno in (errno.ELOOP, errno.ENOTDIR):
            reason = f"{shown} leads through a file or a circle of links"
        elif error.errno == errno.ENXIO:
            reason = f"{shown} is not a plain file"
        else:
            reason = f"{shown} cannot be read: {error.strerror}"
        return self._source.unopened(reason, where)

    def _checked_size(self, descriptor: int, location: str, where: str) -> int:
        shown = f"external data '{location[:80]}'"
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise self._source.unopened(f"{shown} is not a plain file", where)
        return status.st_size


def lost_target(path: str) -> str:
    """Say that a missing file is a link to one, as in a cache that is incomplete; "" if it is not.

    Such a link has the name of the file, so that nothing seems to be missing.
    """
    try:
        return f"is a link to '{os.readlink(path)}', which is not there"
    except (OSError, ValueError):
        return ""


def _is_path(part: str) -> bool:
    """Whether the system interprets a part of a location as more than a name."""
    return os.path.basename(part) != part or bool(os.path.splitdrive(part)[0])


def _open_inside(folder: Path, parts: tuple[str, ...]) -> int:
    """Open `parts` below `folder` without following links or blocking on pipes."""
    if os.open not in os.supports_dir_fd:
        return os.open(folder.joinpath(*parts), _COMMON | NOFOLLOW | NONBLOCK)
    parent = os.open(folder, _COMMON | DIRECTORY)
    for part in parts[:-1]:
        try:
            child = os.open(part, _COMMON | NOFOLLOW | DIRECTORY, dir_fd=parent)
        finally:
            os.close(parent)
        parent = child
    try:
        return os.open(parts[-1], _COMMON | NOFOLLOW | NONBLOCK, dir_fd=parent)
    finally:
        os.close(parent)
