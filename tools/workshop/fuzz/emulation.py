"""Kernels on the host: the emulator of ``tests/kernels``, which only a checkout has.

It shows wrong results, neither races nor speed.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from onnx import ModelProto

from .... import load
from ....runtime.ir.types import Array
from ....runtime.options import Precision
from ...common.nested import flat


class Kernels:
    """The kernels of a GPU; numpy does what they do not.

    Attributes:
        threads: how many may run one model at once.
    """

    threads: ClassVar[int] = 3

    def run(
        self,
        proto: ModelProto,
        feeds: Mapping[str, Array],
        precision: Precision,
        skip: Sequence[str] = (),
        passes: set[str] | None = None,
    ) -> dict[str, Array]:
        """Return what kernels compute, without some passes; `passes` gets those that rewrite it."""
        with load(proto, "cuda", precision=precision, fallback="numpy", skip=skip) as model:
            found = flat(model.run(feeds))
            if passes is not None:
                passes.update(rewrite.name for rewrite in model.rewrites)
        return found


@dataclass
class Emulator(Kernels):
    """An emulated GPU in the place of the driver's.

    Attributes:
        folder: where compiled kernels are kept.
        patch: sets an attribute of a module; pytest's `monkeypatch.setattr` undoes it later.
    """

    threads: ClassVar[int] = 1
    folder: Path
    patch: Callable[[Any, str, Any], None] = setattr

    def __post_init__(self) -> None:
        fake = import_module("tests.kernels.fake_driver")
        self.folder = self.folder.resolve()  # kernels name each other by their paths
        self.folder.mkdir(parents=True, exist_ok=True)
        fake.plant(fake.FakeCompiler(self.folder, fake.FAKE), fake.Gate(), self.patch)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets an emulator of its own."""
        return Emulator, (self.folder,)


def add_kernels(parser: ArgumentParser) -> None:
    """Add the options that `kernels_of` reads."""
    parser.add_argument(
        "--emulate", type=Path, metavar="FOLDER", help="run kernels on the host; they stay there"
    )
    parser.add_argument("--gpu", action="store_true", help="run kernels on this machine's GPU")


def kernels_of(given: Namespace) -> Kernels | None:
    """Return what runs kernels; None if nothing does."""
    if given.emulate:
        return Emulator(given.emulate)
    return Kernels() if given.gpu else None
