"""Option groups shared by several commands: declared once, passed as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast, get_args, get_type_hints

from typer.models import OptionInfo

from ...runtime.errors import UsageError
from .help import BACKEND, GENERAL, INPUTS, MODEL_FILE, OWN, WRITTEN_FILE
from .option_values import algorithms_of, backend_options_of, names_of, numbers, split
from .options import (
    Algorithms,
    BackendOptions,
    Bgr,
    Convolution,
    Crop,
    DataDir,
    Debug,
    DecodeStep,
    Device,
    Dims,
    External,
    Fallback,
    Files,
    Finite,
    FixedDims,
    FixedShapes,
    Folder,
    Force,
    Freeze,
    Integers,
    Json,
    KeepFloat32,
    MaxBytes,
    MaxDeviceBytes,
    Mean,
    Operators,
    Opset,
    Precision,
    Repeats,
    Scale,
    Seed,
    Shapes,
    SkipPasses,
    SparseConstants,
    Std,
    Threads,
    Timeout,
    Tokens,
    Tune,
    Weights,
)

if TYPE_CHECKING:
    from ..common.images import Pixels
    from ..common.inputs import InputRequest, Inputs

Command = Callable[..., None]


@dataclass(frozen=True)
class Group:
    """Options that belong together.

    Attributes:
        title: the heading of their section in the help.
    """

    title: ClassVar[str] = OWN


@dataclass(frozen=True)
class Common(Group):
    """Options of every command: time limit and output."""

    title: ClassVar[str] = GENERAL
    timeout: Timeout = None
    json: Json = False
    debug: Debug = False


@dataclass(frozen=True)
class ModelOptions(Group):
    """How a model file is read; in effect while a command runs."""

    title: ClassVar[str] = MODEL_FILE
    #: Whether inputs are frozen in every model that the command loads.
    freezes_all: ClassVar[bool] = True
    freeze: Freeze = None
    weights: Weights = None
    external_data_dir: DataDir = None
    operators: Operators = None

    @property
    def frozen(self) -> Mapping[str, Any]:
        """Arrays for inputs that become constants, by name."""
        from ..common.arrays import read_named

        return read_named("--freeze-input", self.freeze or ())

    @contextmanager
    def around(self) -> Generator[None]:
        """Apply the options to every model that is loaded within the block."""
        with ExitStack() as stack:
            if self.external_data_dir:
                from ...runtime.ir.mapped import external_data_in

                stack.enter_context(external_data_in(self.external_data_dir))
            if self.weights:
                from ...runtime.session.refit import WEIGHTS, only_weights
                from ..common.weight_files import read_weights

                given = only_weights(read_weights(self.weights))
                stack.enter_context(WEIGHTS.within(given))
            if self.operators:
                from ...runtime.ir.custom import OPERATORS_AROUND
                from .operators import read_operators

                stack.enter_context(OPERATORS_AROUND.within(read_operators(self.operators)))
            if self.freeze and self.freezes_all:
                from ...runtime.session.freeze import FROZEN

                stack.enter_context(FROZEN.within(self.frozen))
            yield


@dataclass(frozen=True)
class FrozenModelOptions(ModelOptions):
    """The same for commands that pass `frozen` on to what they call."""

    freezes_all: ClassVar[bool] = False


@dataclass(frozen=True)
class AlgorithmOptions(Group):
    """Precision, device and algorithms."""

    title: ClassVar[str] = BACKEND
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


@dataclass(frozen=True)
class RunOptions(AlgorithmOptions):
    """Optimisation, placement and execution of a model."""

    fallback: Fallback = None
    keep: KeepFloat32 = ""
    tune: Tune = False
    backend_option: BackendOptions = None
    skip_passes: SkipPasses = ""
    finite: Finite = False
    integers: Integers = None
    max_bytes: MaxBytes = None
    max_device_bytes: MaxDeviceBytes = None

    def as_options(self) -> dict[str, Any]:
        """Return the options by their Python names."""
        return {
            **AlgorithmOptions.as_options(self),
            "fallback": self.fallback,
            "keep_float32": names_of(self.keep),
            "tune": self.tune,
            "backend_options": backend_options_of(self.backend_option),
            "skip": split(self.skip_passes),
            "finite": self.finite,
            "integers": self.integers,
            "max_bytes": self.max_bytes,
            "max_device_bytes": self.max_device_bytes,
        }


@dataclass(frozen=True)
class ShapeOptions(Group):
    """Shapes of inputs."""

    title: ClassVar[str] = INPUTS
    shapes: Shapes = None
    dims: Dims = None

    def as_options(self) -> dict[str, Any]:
        """Return the options by their Python names."""
        return {"shapes": self.shapes or (), "dims": self.dims or ()}


@dataclass(frozen=True)
class FixedShapeOptions(ShapeOptions):
    """Shapes of the inputs of a model that is written."""

    shapes: FixedShapes = None
    dims: FixedDims = None


@dataclass(frozen=True)
class SourceOptions(Group):
    """Sources of inputs."""

    title: ClassVar[str] = INPUTS
    files: Files = None
    inputs_from: Folder = None
    seed: Seed = 0


@dataclass(frozen=True)
class InputOptions(ShapeOptions, SourceOptions):
    """Sources and shapes of inputs; the help lists sources first, as fields of the last base."""

    @property
    def pixels(self) -> Pixels:
        """The conversion of images."""
        from ..common.images import Pixels

        return Pixels()

    @property
    def wanted(self) -> InputRequest:
        """The inputs that the options describe."""
        from ..common.inputs import InputRequest

        given = self.files or (), self.inputs_from, self.seed, self.shapes or (), self.dims or ()
        return InputRequest(*given, self.pixels)


@dataclass(frozen=True)
class DecoderInputOptions(InputOptions):
    """The same, or one step of a decoder."""

    tokens: Tokens = ""
    decode_step: DecodeStep = None

    def of(self, model: Path) -> InputRequest | Inputs:
        """Return the inputs for a model.

        Raises:
            UsageError: options of both kinds are given.
        """
        if not self.tokens:
            if self.decode_step is not None:
                raise UsageError("--decode-step needs --tokens")
            return self.wanted
        if self.wanted.is_asked:
            raise UsageError(
                "--tokens makes all inputs; leave out --input, --inputs-from, --shape and --dim"
            )
        from ..common.decode_inputs import step_inputs

        return step_inputs(model, self.tokens, self.decode_step)


@dataclass(frozen=True)
class ImageInputOptions(DecoderInputOptions):
    """The same, and the conversion of images to tensors."""

    scale: Scale = None
    mean: Mean = ""
    std: Std = ""
    crop: Crop = False
    bgr: Bgr = False

    @property
    def pixels(self) -> Pixels:
        from ..common.images import Pixels

        return self._given(Pixels())

    def of(self, model: Path) -> InputRequest | Inputs:
        """Return the inputs for a model; images as is stated beside it, if the options do not."""
        from ..common.inputs import InputRequest
        from ..common.picture_settings import pixels_beside

        found = super().of(model)
        if isinstance(found, InputRequest) and found.has_images:
            return replace(found, pixels=self._given(pixels_beside(model)))
        given = {**self._numbers, "--crop": self.crop, "--bgr": self.bgr}
        for option, is_given in given.items():
            if is_given:
                raise UsageError(f"{option} is for images, and no input is one; give --input FILE")
        return found

    @property
    def _numbers(self) -> dict[str, bool]:
        """Which options that change the numbers of pixels are given."""
        return {
            "--scale": self.scale is not None,
            "--mean": bool(self.mean),
            "--std": bool(self.std),
        }

    def _given(self, stated: Pixels) -> Pixels:
        """Return a conversion with what the options say in place of what is stated."""
        return replace(
            stated,
            scale=stated.scale if self.scale is None else self.scale,
            mean=numbers("--mean", self.mean) if self.mean else stated.mean,
            std=numbers("--std", self.std) if self.std else stated.std,
            crop=self.crop or stated.crop,
            bgr=self.bgr,
            given=tuple(option for option, given in self._numbers.items() if given),
        )


@dataclass(frozen=True)
class Timed(Group):
    """Number of runs and of threads."""

    repeat: Repeats = None
    threads: Threads = None

    def used(self) -> AbstractContextManager[Any]:
        """Return a context manager that uses this number of threads."""
        from ..common.threads import use_threads

        return use_threads(self.threads)


@dataclass(frozen=True)
class WrittenFile(Group):
    """How a model file is written."""

    title: ClassVar[str] = WRITTEN_FILE
    opset: Opset = None
    external: External = None
    sparse: SparseConstants = False
    force: Force = False

    def as_options(self) -> dict[str, Any]:
        """Return the options by their Python names."""
        return {
            "opset": self.opset,
            "external": self.external,
            "sparse": self.sparse,
            "force": self.force,
        }


#: Name of the options that `with_groups` adds.
_ADDED = "model_options"


def with_groups(command: Command) -> Command:
    """Return a command whose parameters are the fields of its option groups.

    Every command that reads a model gets `ModelOptions`, unless it declares them itself.

    Args:
        command: parameters annotated with a `Group` are replaced by its fields.
    """
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    groups = {
        name: cast("type[Any]", parameter.annotation)
        for name, parameter in parameters.items()
        if is_dataclass(parameter.annotation)
    }
    own = next((name for name, kind in groups.items() if issubclass(kind, ModelOptions)), None)
    if own is None and not {"model", "models"}.isdisjoint(parameters):
        groups[_ADDED] = ModelOptions
        parameters[_ADDED] = inspect.Parameter(_ADDED, inspect.Parameter.KEYWORD_ONLY)
        own = _ADDED

    @wraps(command)
    def wrapped(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        with given[own].around() if own else ExitStack():
            given.pop(_ADDED, None)
            command(**given)

    options = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in parameters.items()
        for each in (_fields(groups[name]) if name in groups else (parameter,))
    ]
    vars(wrapped)["__signature__"] = inspect.Signature(options)
    wrapped.__annotations__ = {each.name: each.annotation for each in options}
    return wrapped


def _fields(group: type[Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a group, which the help lists in its section."""
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        kind, option = get_args(hints[each.name])
        option = cast("OptionInfo", copy(option))
        option.rich_help_panel = option.rich_help_panel or group.title
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=Annotated[kind, option],
        )
