"""Kernels on the host: the emulator of ``tests/kernels``, which only a checkout has.

It shows wrong results, neither races nor speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from onnx import ModelProto

from .... import load
from ....runtime.ir.types import Array
from ....runtime.options import Precision
from ...common.nested import flat


class Kernels:
    """The kernels of a GPU; numpy does what they do not."""

    def run(
        self,
        proto: ModelProto,
        feeds: Mapping[str, Array],
        precision: Precision,
        skip: Sequence[str] = (),
    ) -> dict[str, Array]:
        """Return what kernels compute, without some passes."""
        with load(proto, "cuda", precision=precision, fallback="numpy", skip=skip) as model:
            return flat(model.run(feeds))


@dataclass
class Emulator(Kernels):
    """An emulated GPU in the place of the driver's.

    Attributes:
        folder: where compiled kernels are kept.
        patch: sets an attribute of a module; pytest's `monkeypatch.setattr` undoes it later.
    """

    folder: Path
    patch: Callable[[Any, str, Any], None] = setattr

    def __post_init__(self) -> None:
        fake = import_module("tests.kernels.fake_driver")
        self.folder.mkdir(parents=True, exist_ok=True)
        fake.plant(fake.FakeCompiler(self.folder, fake.FAKE), fake.Gate(), self.patch)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets an emulator of its own."""
        return Emulator, (self.folder,)
