"""Option groups shared by several commands: declared once, passed as one value."""

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
    from ..common.inputs import InputRequest, Inputs

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Common:
    """Options of every command: time limit and output."""

    timeout: Timeout = None
    json: Json = False
    debug: Debug = False


@dataclass(frozen=True, slots=True)
class AlgorithmOptions:
    """Precision, device and algorithms."""

    precision: Precision = "float32"
    device: Device = 0
    conv: Convolution = None
    algorithm: Algorithms = None

    def as_options(self) -> dict[str, Any]:
        """Return the options by their Python names."""
        return {
            "precision": self.precision,
            "device": self.device,
            "conv": self.conv,
            "algorithms": algorithms_of(self.algorithm),
        }


@dataclass(frozen=True, slots=True)
class RunOptions(AlgorithmOptions):
    """Optimisation, placement and execution of a model."""

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
        """Return the options by their Python names."""
        return {"shapes": self.shapes or (), "dims": self.dims or ()}


@dataclass(frozen=True, slots=True)
class InputOptions(ShapeOptions):
    """Sources of inputs."""

    files: Files = None
    inputs_from: Folder = None
    seed: Seed = 0

    @property
    def wanted(self) -> InputRequest:
        """The inputs that the options describe."""
        return wanted_inputs(self.files, self.inputs_from, self.seed, self.shapes, self.dims)


@dataclass(frozen=True, slots=True)
class DecoderInputOptions(InputOptions):
    """The same, or one step of a decoder."""

    tokens: Tokens = ""
    decode_step: DecodeStep = None

    def of(self, model: Path) -> InputRequest | Inputs:
        """Return the inputs for a model."""
        return decoded(model, self.wanted, self.tokens, self.decode_step)


@dataclass(frozen=True, slots=True)
class ImageInputOptions(DecoderInputOptions):
    """The same, and the conversion of images to tensors."""

    scale: Scale = 255
    mean: Mean = "0"
    std: Std = "1"
    crop: Crop = False
    bgr: Bgr = False

    @property
    def wanted(self) -> InputRequest:
        pixels = (self.scale, self.mean, self.std, self.crop, self.bgr)
        return wanted_inputs(
            self.files, self.inputs_from, self.seed, self.shapes, self.dims, pixels
        )


@dataclass(frozen=True, slots=True)
class Timed:
    """Number of runs and of threads."""

    repeat: Repeats = None
    threads: Threads = None

    def used(self) -> AbstractContextManager[Any]:
        """Return a context manager that uses this number of threads."""
        from ..common.threads import use_threads

        return use_threads(self.threads)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """How a model file is written."""

    opset: Opset = None
    external: External = None
    force: Force = False

    def as_options(self) -> dict[str, Any]:
        """Return the options by their Python names."""
        return {"opset": self.opset, "external": self.external, "force": self.force}


def with_groups(command: Command) -> Command:
    """Return a command whose parameters are the fields of its option groups.

    Args:
        command: parameters annotated with a dataclass are replaced by its fields.
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
