"""Where a model comes from, and what its file says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ..base.record import record
from ..ir.mapped import Mapped


@record
class ModelSource:
    """Where a model comes from.

    Attributes:
        file: its path, or None for a model in memory.
        opsets: the file's opset by domain.
        ir_version: the file's version of the ONNX format.
        producer: the program that wrote it, with its version.
        metadata: the file's metadata properties.
        warnings: harmless irregularities of the file.
        mapped: memory-mapped files, which must not change while the model is open.
    """

    file: str | None = None
    opsets: Mapping[str, int] = field(default_factory=dict[str, int])
    ir_version: int = 0
    producer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    mapped: tuple[Mapped, ...] = ()
