"""Inputs of a model: from files, images, ONNX test data, or a random generator."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.base import arguments as rules
from ...runtime.errors import (
    DeviceError,
    InputError,
    ModelError,
    UnsupportedError,
    UsageError,
)
from ...runtime.ir.dtypes import name_of, string
from ...runtime.ir.types import Array, TensorType
from ...runtime.session.io_types import check_value, values_of
from ...runtime.session.model import TensorInfo
from .archives import read_archive
from .arrays import read_array, read_test_data
from .console import listed
from .images import IMAGE_SUFFIXES, Pixels, read_images
from .nested import type_text
from .random_arrays import check_room, random_array
from .shapes import Dims, Infos, Shapes, all_by_input, assumed_dims, bind_sizes, input_shapes

#: Prefix of inputs in a saved comparison.
SAVED = "inputs/"


@dataclass(frozen=True, slots=True)
class InputRequest:
    """The user's request for inputs; see `make_inputs`.

    Attributes:
        files: ``name=path``, or a path alone if the model has one input.
        folder: a folder of ONNX test data (input_0.pb, ...) or an .npz file with all inputs.
        seed: seed of random inputs, used without files or a folder.
        shapes: ``name=1x3x224x224`` for inputs of any shape.
        dims: ``batch=4`` for symbolic dimensions; 1 if not given.
        pixels: conversion of images.
    """

    files: Sequence[str] = ()
    folder: Path | None = None
    seed: int = 0
    shapes: Sequence[str] = ()
    dims: Sequence[str] = ()
    pixels: Pixels = field(default_factory=Pixels)

    @property
    def is_asked(self) -> bool:
        """Whether anything besides a seed is given."""
        return bool(self.files or self.folder or self.shapes or self.dims)

    @property
    def has_images(self) -> bool:
        """Whether a file is an image."""
        return any(text.lower().endswith(IMAGE_SUFFIXES) for text in self.files)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arrays for every input of a model.

    Attributes:
        arrays: by name.
        origins: the source of each.
        assumed: dimensions that default to 1.
    """

    arrays: dict[str, Array]
    origins: dict[str, str]
    assumed: tuple[str, ...] = ()

    def explained(self) -> AbstractContextManager[None]:
        """Add to an error that dimensions were assumed."""
        return explained(self.assumed)

    def __str__(self) -> str:
        """Return name, type and source of each, as `listed`."""
        said = [f"{n} {type_text(data)}, {self.origins[n]}" for n, data in self.arrays.items()]
        return listed(said) or "none"

    def to_dict(self) -> list[dict[str, object]]:
        """Return name, dtype, shape and source of each."""
        return [
            {
                "name": name,
                "dtype": name_of(data.dtype),
                "shape": list(data.shape),
                "origin": self.origins[name],
            }
            for name, data in self.arrays.items()
        ]


class RunRefused(UnsupportedError):
    """Another runtime does not run a model on the inputs that it is given."""


@contextmanager
def explained(assumed: Sequence[str]) -> Iterator[None]:
    """Add to an error that dimensions were assumed: size 1 does not suit all models.

    The model itself was readable, so the sizes are the contradiction: a usage error.
    """
    try:
        yield
    except (ModelError, DeviceError, RunRefused) as error:
        if not assumed:
            raise
        names = ", ".join(assumed)
        step = any("past" in name for name in assumed)
        decoder = ", and --tokens those of a decoder's step" if step else ""
        text = (
            f"dynamic dimensions defaulted to 1: {names}; --dim and --shape (dims, shapes) set "
            f"them{decoder}"
        )
        if isinstance(error, ModelError):
            raise InputError(f"{error}\n  {text}") from error
        error.add_note(text)
        raise


#: Inputs in Python calls: arrays by name or by position, an .npz file or a folder
#: of ONNX test data, a command line request, or nothing.
Given = (
    Mapping[str, Any]
    | Sequence[Any]
    | Array
    | str
    | os.PathLike[str]
    | InputRequest
    | Inputs
    | None
)
#: The result of `asked`: arrays by name or by position, or a request.
Asked = Mapping[str, Any] | Sequence[Any] | Array | InputRequest | Inputs


def asked(given: Given, seed: int = 0, shapes: Shapes = (), dims: Dims = ()) -> Asked:
    """Return the caller's inputs: arrays, or a request.

    Args:
        given: arrays, a file, or None for random ones.
        seed: of random inputs.
        shapes: of random inputs.
        dims: of random inputs.

    Raises:
        UsageError: shapes or dimensions are given together with arrays.
    """
    chosen = rules.shapes("shapes", shapes), rules.dims("dims", dims)
    if given is None:
        return InputRequest(seed=seed, shapes=chosen[0], dims=chosen[1])
    if isinstance(given, InputRequest):
        return replace(given, shapes=(*given.shapes, *chosen[0]), dims=(*given.dims, *chosen[1]))
    if any(chosen):
        raise UsageError("shapes= and dims= are for random inputs; inputs= has its own shapes")
    if isinstance(given, str | os.PathLike):
        return InputRequest(folder=rules.path("inputs", given))
    return given


def given_inputs(infos: Infos, given: Asked) -> Inputs:
    """Return arrays for every input of a model.

    Args:
        infos: `Model.inputs`.
        given: arrays by name or by position, or a request.

    Raises:
        InputError: a name, dtype or shape does not fit the model; see `make_inputs`.
    """
    if isinstance(given, InputRequest):
        made = make_inputs(infos, given)
        for info in infos:
            if info.name in made.arrays:
                check_value(info, made.arrays[info.name])
        return made
    if isinstance(given, Inputs):
        return replace(given, arrays=values_of(infos, given.arrays))
    arrays = values_of(infos, given)
    return Inputs(arrays, dict.fromkeys(arrays, "given"))


def make_inputs(infos: Infos, wanted: InputRequest) -> Inputs:
    """Return the requested inputs.

    Args:
        infos: `Model.inputs`.
        wanted: the request.

    Raises:
        InputError: a file or option does not fit the model.
        UsageError: an option cannot be parsed.
        OSError: a file cannot be read.
    """
    if wanted.folder is not None and wanted.files:
        raise UsageError("--input and --inputs-from exclude each other")
    if wanted.folder is not None:
        return _folder_inputs(infos, wanted.folder)
    shapes = input_shapes(infos, wanted.shapes, wanted.dims)
    if wanted.files:
        return _file_inputs(infos, wanted, shapes)
    arrays = random_inputs(infos, shapes, wanted.seed)
    origins = dict.fromkeys(arrays, f"random, seed {wanted.seed}")
    return Inputs(arrays, origins, assumed_dims(infos, wanted.shapes, wanted.dims))


# ── random ───────────────────────────────────────────────────────────────────────────────────────


def random_inputs(
    infos: Infos, shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, Array]:
    """Return random arrays, the same for a seed on every machine.

    The generator is ``numpy.random.default_rng(seed)``, drawn from in the model's order of inputs:
    floats and complex numbers are standard normal; int32 and int64, which often are indices, 0 to
    9; other integers 0 to 127, or up to their maximum; integers that index an axis, within it;
    booleans and one-digit strings are uniform.

    Raises:
        InputError: the type or shape of an input is unknown, or there is no room for it.
    """
    generator = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    for info in infos:
        if info.name in shapes:
            bind_sizes(info, shapes[info.name], sizes)
    for info in infos:
        if info.dtype is None:
            raise InputError(
                f"input '{info.name}' is not a tensor: no random one can be made, give it in a file"
            )
        if info.name not in shapes:
            reason = (
                f"the shape of input '{info.name}' is not known; give one, as in "
                f"{info.name}=1x3x224x224"
            )
            raise rules.unfit(InputError, "shapes", reason)
        limits = [sizes.get(dim, 0) if isinstance(dim, str) else dim for dim in info.indexes]
        wanted = TensorType(info.dtype, shapes[info.name])
        check_room(info.name, wanted, sum(each.nbytes for each in found.values()))
        found[info.name] = random_array(generator, wanted, list(filter(None, limits)))
    return found


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def _file_inputs(
    infos: Infos, wanted: InputRequest, shapes: Mapping[str, tuple[int, ...]]
) -> Inputs:
    given = all_by_input(_expand_archives(wanted.files, infos), infos, "inputs")
    by_name = {info.name: info for info in infos}
    arrays: dict[str, Array] = {}
    origins = {name: ", ".join(paths) for name, paths in given.items()}
    for name, paths in given.items():
        files = [Path(path) for path in paths]
        if all(file.suffix.lower() in IMAGE_SUFFIXES for file in files):
            arrays[name] = read_images(files, by_name[name], shapes.get(name), wanted.pixels)
            if wanted.pixels.source:
                origins[name] += f", as {wanted.pixels.source} says"
        elif len(files) == 1:
            arrays[name] = as_declared(read_array(files[0], name), by_name[name])
        else:
            raise UsageError(
                f"--input {name} is given {len(files)} times; only images make a batch"
            )
    return Inputs(arrays, origins)


def as_declared(data: Array, info: TensorInfo | None) -> Array:
    """Return elements of types that numpy files cannot name, such as bfloat16 and strings."""
    if data.dtype.kind == "U" and (info is None or info.dtype in (None, string)):
        return data.astype(string)
    if info is None or info.dtype is None or data.dtype == info.dtype:
        return data
    nameless = data.dtype.kind == "V" and data.itemsize == info.dtype.itemsize
    return data.view(info.dtype) if nameless else data


def _expand_archives(texts: Sequence[str], infos: Infos) -> list[str]:
    """Replace an .npz file given without a name by one entry per array."""
    names = {info.name for info in infos}
    found: list[str] = []
    for text in texts:
        named = any(text.startswith(f"{name}=") for name in names)
        if named or len(names) == 1 or Path(text).suffix.lower() != ".npz":
            found.append(text)
        else:
            found.extend(f"{name}={text}" for name in _inputs_in(Path(text), infos))
    return found


def _inputs_in(file: Path, infos: Infos) -> dict[str, Array]:
    """Return the arrays of an .npz file that are inputs, by name; others are left out.

    Raises:
        InputError: it is no such file, or has none of them.
    """
    by_name = {info.name: info for info in infos}
    held = read_archive(file)
    if saved := {n.removeprefix(SAVED): x for n, x in held.items() if n.startswith(SAVED)}:
        held = saved  # of compare --save, which has outputs as well
    found = {n: as_declared(data, by_name[n]) for n, data in held.items() if n in by_name}
    if infos and not found:
        raise InputError(
            f"{file}: none of its arrays is an input of the model (it has "
            f"{', '.join(held) or 'none'}; inputs: {', '.join(map(str, infos))})"
        )
    return found


def _folder_inputs(infos: Infos, folder: Path) -> Inputs:
    by_name = {info.name: info for info in infos}
    if folder.is_dir():
        arrays = read_test_data(folder, "input", list(by_name))
    elif folder.suffix.lower() == ".npz":
        arrays = _inputs_in(folder, infos)
    else:
        raise InputError(
            f"--inputs-from {folder}: neither a folder with input_0.pb, input_1.pb, ... "
            "nor an .npz file"
        )
    return Inputs(arrays, dict.fromkeys(arrays, str(folder)))
