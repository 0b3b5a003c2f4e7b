"""Groups of options that several commands have: declared once, passed to a command as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from .options import (
    Algorithms,
    BackendOptions,
    Bgr,
    Convolution,
    Crop,
    Debug,
    DecodeStep,
    Device,
    Dims,
    External,
    Fallback,
    Files,
    Folder,
    Force,
    Json,
    KeepFloat32,
    Mean,
    Opset,
    Precision,
    Repeats,
    Scale,
    Seed,
    Shapes,
    SkipPasses,
    Std,
    Threads,
    Timeout,
    Tokens,
    Tune,
    algorithms_of,
    backend_options_of,
    decoded,
    names_of,
    split,
    wanted_inputs,
)

if TYPE_CHECKING:
    from ..common.inputs import Inputs, Wanted

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Common:
    """How every command ends, and what it prints."""

    timeout: Timeout = None
    json: Json = False
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class AlgorithmOptions:
    """Arithmetic, device and algorithms of a run."""

    precision: Precision = "float32"
    device: Device = 0
    conv: Convolution = None
    algorithm: Algorithms = None

    def as_options(self) -> dict[str, Any]:
        """Return the options by their names in Python."""
        return {
            "precision": self.precision,
            "device": self.device,
            "conv": self.conv,
            "algorithms": algorithms_of(self.algorithm),
        }


@dataclass(frozen=True, slots=True)
class RunOptions(AlgorithmOptions):
    """How a model is optimised, placed and run."""

    fallback: Fallback = None
    keep: KeepFloat32 = ""
    tune: Tune = False
    backend_option: BackendOptions = None
    skip_passes: SkipPasses = ""

    def as_options(self) -> dict[str, Any]:
        return {
            **AlgorithmOptions.as_options(self),
            "fallback": self.fallback,
            "keep_float32": names_of(self.keep),
            "tune": self.tune,
            "backend_options": backend_options_of(self.backend_option),
            "skip": split(self.skip_passes),
        }


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """Shapes of inputs."""

    shapes: Shapes = None
    dims: Dims = None

    def as_options(self) -> dict[str, Any]:
        """Return the options by their names in Python."""
        return {"shapes": self.shapes or (), "dims": self.dims or ()}


@dataclass(frozen=True, slots=True)
class InputOptions(ShapeOptions):
    """Where the inputs of a run come from."""

    files: Files = None
    inputs_from: Folder = None
    seed: Seed = 0

    @property
    def wanted(self) -> Wanted:
        """The inputs that the options describe."""
        return wanted_inputs(self.files, self.inputs_from, self.seed, self.shapes, self.dims)


@dataclass(frozen=True, slots=True)
class DecoderInputOptions(InputOptions):
    """The same, or a step of a decoder."""

    tokens: Tokens = ""
    decode_step: DecodeStep = None

    def of(self, model: Path) -> Wanted | Inputs:
        """Return the inputs for a model."""
        return decoded(model, self.wanted, self.tokens, self.decode_step)


@dataclass(frozen=True, slots=True)
class ImageInputOptions(DecoderInputOptions):
    """The same, and how images become tensors."""

    scale: Scale = 255
    mean: Mean = "0"
    std: Std = "1"
    crop: Crop = False
    bgr: Bgr = False

    @property
    def wanted(self) -> Wanted:
        pixels = (self.scale, self.mean, self.std, self.crop, self.bgr)
        return wanted_inputs(
            self.files, self.inputs_from, self.seed, self.shapes, self.dims, pixels
        )


@dataclass(frozen=True, slots=True)
class Timed:
    """How often a model runs, and on how many threads."""

    repeat: Repeats = None
    threads: Threads = None

    def used(self) -> AbstractContextManager[Any]:
        """Run on these threads for a while."""
        from ..common.threads import use_threads

        return use_threads(self.threads)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """How a model is written."""

    opset: Opset = None
    external: External = None
    force: Force = False

    def as_options(self) -> dict[str, Any]:
        """Return the options by their names in Python."""
        return {"opset": self.opset, "external": self.external, "force": self.force}


def with_groups(command: Command) -> Command:
    """Return a command with the fields of its groups as parameters.

    Args:
        command: a parameter whose annotation is a dataclass stands for the fields of that.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {
        name: cast("type[Any]", parameter.annotation)
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    @wraps(command)
    def wrapped(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        command(**given)

    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        for each in (_fields(groups[name]) if name in groups else (parameter,))
    ]
    vars(wrapped)["__signature__"] = signature.replace(parameters=parameters)
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


def _fields(group: type[Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=hints[each.name],
        )
