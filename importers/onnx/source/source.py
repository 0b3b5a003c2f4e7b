"""Where a model comes from: its name in messages, its folder, and the limits it is held to."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ....runtime.errors import LimitError, ModelError, ModelFileError, UnsupportedError
from ....runtime.ir.dtypes import BY_ONNX, DType
from ....runtime.ir.mapped import Mapped
from .limits import Limits


@dataclass(frozen=True, slots=True)
class FileSource:
    """One model on its way in.

    Attributes:
        file: its path as the caller gave it, or None for a model given in memory.
        limits: the budgets that it is held to.
        data_dir: the folder of its external data, where that is not its own.
        maps_data: whether external data are mapped; else they are read.
        mapped: the files that have been.
    """

    file: str | None = None
    limits: Limits = field(default_factory=Limits)
    data_dir: Path | None = None
    maps_data: bool = True
    mapped: list[Mapped] = field(default_factory=list[Mapped])

    @property
    def folder(self) -> Path | None:
        """The folder that locations of external data begin in; None where there is none."""
        if self.data_dir is not None:
            return self.data_dir
        return Path(self.file).parent if self.file is not None else None

    @property
    def data_folders(self) -> tuple[Path, ...]:
        """The folders that external data may lie in, links followed.

        These are the one that locations begin in, and that of the file which the model's own path
        leads to: in a cache whose entries are links, both lie beside each other there.
        """
        found = [] if self.folder is None else [os.path.realpath(self.folder)]
        if self.file is not None and self.data_dir is None:
            found.append(os.path.dirname(os.path.realpath(self.file)))
        return tuple(Path(each) for each in dict.fromkeys(found))

    def error(self, reason: str, where: str | None = None) -> ModelError:
        """Return the error to raise for something wrong at `where`."""
        return ModelError(reason, file=self.file, where=where)

    def unopened(self, reason: str, where: str | None = None) -> ModelFileError:
        """Return the error to raise for a file that is not there or cannot be opened."""
        return ModelFileError(reason, file=self.file, where=where)

    def limit(self, reason: str, where: str | None = None) -> LimitError:
        """Return the error to raise for something that exceeds the limits."""
        return LimitError(": ".join(part for part in (self.file, where, reason) if part))

    def unsupported(self, reason: str, where: str | None = None) -> UnsupportedError:
        """Return the error to raise for something valid that tercet cannot do."""
        return UnsupportedError(": ".join(part for part in (self.file, where, reason) if part))

    def text(self, value: str | bytes, where: str | None = None) -> str:
        """Return a string of the file; protobuf hands over what is not UTF-8 as bytes."""
        if isinstance(value, str):
            return value
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{value[:40]!r} is not UTF-8 text", where) from error

    def name(self, value: str | bytes, where: str | None = None) -> str:
        """Return a name of the file; messages show it, so it has a limit."""
        if len(value) > self.limits.name:
            raise self.limit(f"has a name of {len(value)} characters", where)
        return self.text(value, where)

    def dtype(self, number: int, where: str) -> DType:
        """Return the dtype with ONNX's `number`."""
        if number not in BY_ONNX:
            found = "no element type" if number == 0 else f"unknown element type {number}"
            raise self.error(found, where)
        return BY_ONNX[number]
