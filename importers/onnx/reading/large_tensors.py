"""Large initializers, read from a file straight to where they stay.

Protobuf would copy a file's bytes three times: into memory, into messages, and out of them. Here a
message is made without the raw data of large initializers. In their place is a token that
occurs nowhere else, and the data are read from the file under it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from typing import NamedTuple

from ....runtime.base.file_parts import Block, read_parts

#: Bytes from which a file, and an initializer in it, are large.
LARGE_FILE, LARGE = 4 << 20, 1 << 16
#: Bytes that are looked at together in search of fields.
_WINDOW = 1 << 15
#: Fields of ModelProto, GraphProto and TensorProto; the wire type of what has a length.
_GRAPH, _INITIALIZER, _RAW_DATA, _LENGTH = 7, 5, 9, 2
#: Bytes of the values of other wire types; a varint says how many it has.
_SIZES = {0: 0, 1: 8, 5: 4}


class _Odd(Exception):
    """A file that protobuf should judge."""


class _Field(NamedTuple):
    """A field: its number and wire type, where it starts, and where its value starts and ends."""

    number: int
    wire: int
    start: int
    value: int
    end: int


@dataclass(slots=True)
class _Window:
    """A file, of which some bytes are in memory.

    Attributes:
        file: read only here, while it is scanned.
        size: of the file.
    """

    file: BufferedReader
    size: int
    _start: int = 0
    _bytes: bytes = b""

    def varint(self, at: int) -> tuple[int, int]:
        """Return the number at a place, and where it ends."""
        found = shift = 0
        while shift < 64:
            place = at - self._start
            if not 0 <= place < len(self._bytes):
                self._start, self._bytes, place = at, self.read(at, at + _WINDOW), 0
            if not self._bytes:
                break
            byte = self._bytes[place]
            at, found, shift = at + 1, found | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return found, at
        raise _Odd

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes between two places."""
        self.file.seek(start)
        return self.file.read(end - start)

    def fields(self, start: int, end: int) -> Iterator[_Field]:
        """Yield the fields of a message."""
        while start < end:
            tag, value = self.varint(start)
            number, wire = tag >> 3, tag & 7
            if wire == _LENGTH:
                size, value = self.varint(value)
                stop = value + size
            elif wire == 0:
                _, stop = self.varint(value)
            elif wire in _SIZES:
                stop = value + _SIZES[wire]
            else:
                raise _Odd
            if stop > end:
                raise _Odd
            yield _Field(number, wire, start, value, stop)
            start = stop


@dataclass(slots=True)
class _Message:
    """A message with some parts replaced."""

    window: _Window
    start: int
    parts: list[bytes] = field(default_factory=list[bytes])

    def replace(self, old: _Field, value: bytes) -> None:
        """Replace the value of a field behind those replaced so far."""
        self.parts.append(self.window.read(self.start, old.start))
        self.parts += (_varint(old.number << 3 | _LENGTH), _varint(len(value)), value)
        self.start = old.end

    def ended(self, end: int) -> bytes:
        """Return the message."""
        return b"".join((*self.parts, self.window.read(self.start, end)))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def split(file: BufferedReader, size: int) -> tuple[bytes, Mapping[bytes, Block]] | None:
    """Return a ModelProto's bytes without large raw data, and these by what is in their place.

    Args:
        file: open for reading.
        size: its size in bytes.

    Returns:
        None if nothing is large, or the file is not plain protobuf.

    Raises:
        OSError: it cannot be read.
        EOFError: it has become shorter.
    """
    places: dict[bytes, tuple[int, int]] = {}
    window = _Window(file, size)
    try:
        graphs = [one for one in window.fields(0, size) if one.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].wire != _LENGTH:
            return None
        model = _Message(window, 0)
        model.replace(graphs[0], _graph(window, graphs[0], places))
        message = model.ended(size)
    except _Odd:
        return None
    if not places:
        return None
    parts = read_parts(file, list(places.values()))
    return message, {
        token: Block(0, start, data)
        for (token, (start, _)), data in zip(places.items(), parts, strict=True)
    }


def _graph(window: _Window, at: _Field, places: dict[bytes, tuple[int, int]]) -> bytes:
    """Return a graph with tokens in place of raw data, and add the places of these."""
    graph = _Message(window, at.value)
    for each in window.fields(at.value, at.end):
        if each.number != _INITIALIZER or each.wire != _LENGTH or each.end - each.value < LARGE:
            continue
        raw = [one for one in window.fields(each.value, each.end) if one.number == _RAW_DATA]
        if len(raw) != 1 or raw[0].wire != _LENGTH or raw[0].end - raw[0].value < LARGE:
            continue
        token = secrets.token_bytes(16)
        places[token] = raw[0].value, raw[0].end
        tensor = _Message(window, each.value)
        tensor.replace(raw[0], token)
        graph.replace(each, tensor.ended(each.end))
    return graph.ended(at.end)
