"""The source of a model: its name in messages, its folder, and its limits."""

from __future__ import annotations

import os
from dataclasses import field
from pathlib import Path

from ....runtime.base.file_parts import Block
from ....runtime.base.record import record
from ....runtime.errors import LimitError, ModelError, ModelFileError, UnsupportedError
from ....runtime.ir.dtypes import BY_ONNX, DType
from ....runtime.ir.mapped import Mapped
from ....runtime.ir.types import Array
from .limits import Limits


@record
class FileSource:
    """One model being imported.

    Attributes:
        file: its path as given, or None for a model in memory.
        limits: the resource limits.
        data_dir: the folder of its external data, if not its own.
        maps_data: whether external data are mapped rather than read.
        mapped: the files mapped so far.
        apart: raw data of tensors by what is in their place; see `large_tensors`.
        blocks: bytes of its file in memory.
    """

    file: str | None = None
    limits: Limits = field(default_factory=Limits)
    data_dir: Path | None = None
    maps_data: bool = True
    mapped: list[Mapped] = field(default_factory=list[Mapped])
    apart: dict[bytes, Array] = field(default_factory=dict[bytes, Array])
    blocks: list[Block] = field(default_factory=list[Block])

    @property
    def folder(self) -> Path | None:
        """The folder relative to which external data are located; None if there is none."""
        if self.data_dir is not None:
            return self.data_dir
        return Path(self.file).parent if self.file is not None else None

    @property
    def data_folders(self) -> tuple[Path, ...]:
        """The folders in which external data may be, with links resolved.

        These are the folder for locations, and that of the model file after resolving its links: in
        a cache whose entries are links, both are next to each other there.
        """
        found = [] if self.folder is None else [os.path.realpath(self.folder)]
        if self.file is not None and self.data_dir is None:
            found.append(os.path.dirname(os.path.realpath(self.file)))
        return tuple(Path(each) for each in dict.fromkeys(found))

    def error(self, reason: str, where: str | None = None) -> ModelError:
        """Return a ModelError about `where`, or the model as a whole: `reason` is a predicate."""
        return ModelError(self._sentence(reason, where), file=self.file, where=where)

    def unopened(self, reason: str, where: str | None = None) -> ModelFileError:
        """Return the error for a file that is missing or cannot be opened."""
        return ModelFileError(reason, file=self.file, where=where)

    def limit(self, reason: str, where: str | None = None) -> LimitError:
        """Return the error for an exceeded limit."""
        return LimitError(self._located(reason, where))

    def unsupported(self, reason: str, where: str | None = None) -> UnsupportedError:
        """Return the error for a valid but unsupported feature."""
        return UnsupportedError(self._located(reason, where))

    def _located(self, reason: str, where: str | None) -> str:
        parts = (self.file, where, self._sentence(reason, where))
        return ": ".join(part for part in parts if part)

    def _sentence(self, reason: str, where: str | None) -> str:
        return reason if self.file or where else f"the model {reason}"

    def text(self, value: str | bytes, where: str | None = None) -> str:
        """Return a string of the file; protobuf returns invalid UTF-8 as bytes."""
        if isinstance(value, str):
            return value
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{value[:40]!r} is not UTF-8 text", where) from error

    def name(self, value: str | bytes, where: str | None = None) -> str:
        """Return a name of the file, whose length is limited."""
        if len(value) > self.limits.name:
            raise self.limit(f"has a name of {len(value)} characters", where)
        return self.text(value, where)

    def dtype(self, number: int, where: str) -> DType:
        """Return the dtype with ONNX's `number`."""
        if number not in BY_ONNX:
            found = "no element type" if number == 0 else f"unknown element type {number}"
            raise self.error(found, where)
        return BY_ONNX[number]
