"""Inputs of a model: from files, images, ONNX test data, or a random generator."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
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
    did_you_mean,
)
from ...runtime.ir.dtypes import name_of, string
from ...runtime.ir.types import Array, TensorType
from ...runtime.session.io_types import values_of
from ...runtime.session.model import TensorInfo
from .archives import read_archive
from .arrays import read_array, read_test_data
from .console import listed
from .images import IMAGE_SUFFIXES, Pixels, read_images
from .nested import type_text
from .random_arrays import check_room, random_array

Infos = Sequence[TensorInfo]
#: Sizes of symbolic dimensions, and shapes of inputs: by name, or in command line form.
Dims = Mapping[str, int] | Sequence[str]
Shapes = Mapping[str, Sequence[int]] | Sequence[str] | Sequence[int]

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
        text = f"dynamic dimensions defaulted to 1: {names}; --dim and --shape set them{decoder}"
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
        return make_inputs(infos, given)
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


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────


def input_shapes(
    infos: Infos, shapes: Sequence[str] = (), dims: Sequence[str] = ()
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every input of known or given rank.

    Symbols without a size are what the model's nodes need, or 1; but sums and products of others,
    such as ``past + 2*new``, are what these make.

    Args:
        infos: `Model.inputs`.
        shapes: ``name=1x3x224x224``, or the shape alone if the model has one input.
        dims: ``symbol=size``.

    Raises:
        InputError: the model has no such input or symbol, or a shape contradicts it.
        UsageError: a string is not a shape or size.
    """
    given = {name: _parse_shape(text) for name, text in _by_input(shapes, infos, "shapes").items()}
    sizes = _parse_dims(dims, infos)
    found: dict[str, tuple[int, ...]] = {}
    for info in infos:
        if info.name in given:
            _bind(info, given[info.name], sizes)
    sizes = _needs(infos) | sizes
    for info in infos:
        if info.name in given:
            found[info.name] = given[info.name]
        elif info.shape is not None:
            found[info.name] = tuple(
                d if isinstance(d, int) else _size(d or "", sizes) for d in info.shape
            )
    return found


def _size(symbol: str, sizes: Mapping[str, int]) -> int:
    """Return the size of a symbol: that given, or what its terms and factors make."""
    if symbol in sizes:
        return sizes[symbol]
    if symbol.isdecimal():
        return int(symbol)
    for sign, combine in (("+", sum), ("*", prod)):
        parts = _parts(symbol, sign)
        if len(parts) > 1:
            return combine(_size(part, sizes) for part in parts)
    return 1


def _parts(symbol: str, sign: str) -> list[str]:
    """Return the terms of a sum or the factors of a product; the symbol alone if it is neither."""
    parts = [part.strip() for part in symbol.split(sign)]
    return parts if all(map(_is_operand, parts)) else [symbol]


def _is_operand(part: str) -> bool:
    return re.fullmatch(r"[\w.]+(\s*\*\s*[\w.]+)*", part) is not None


def _free(symbol: str, given: Container[str]) -> Iterator[str]:
    """Yield the symbols without a size of which the size of a symbol is made."""
    if symbol in given or symbol.isdecimal():
        return
    parts = next((p for sign in "+*" if len(p := _parts(symbol, sign)) > 1), None)
    if parts is None:
        yield symbol
    else:
        for part in parts:
            yield from _free(part, given)


def assumed_dims(
    infos: Infos, shapes: Sequence[str] = (), dims: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the dimensions that `input_shapes` takes to be 1, of inputs without a given shape."""
    given = {*_by_input(shapes, infos, "shapes"), *_parse_dims(dims, infos), *_needs(infos)}
    free = (
        name
        for info in infos
        if info.name not in given
        for axis, size in enumerate(info.shape or ())
        if not isinstance(size, int)
        for name in ([f"axis {axis} of '{info.name}'"] if size is None else _free(size, given))
    )
    return tuple(dict.fromkeys(free))


def _needs(infos: Infos) -> dict[str, int]:
    """Return the symbols that can have one size only, with that size."""
    return {symbol: size for info in infos for symbol, size in info.needs.items()}


def _bind(info: TensorInfo, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Record the sizes of symbols implied by a given shape."""
    if info.shape is None:
        return
    if len(info.shape) != len(shape):
        reason = f"{len(shape)} axes; the model expects {info}"
        raise rules.unfit(InputError, "shapes", reason, f"{info.name}={_shape_text(shape)}")
    for symbol, size in zip(info.shape, shape, strict=True):
        if isinstance(symbol, str):
            sizes.setdefault(symbol, size)


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _parse_shape(text: str) -> tuple[int, ...]:
    if text in ("", "[]", "()"):
        return ()
    if not re.fullmatch(r"\d+([x,]\d+)*", text):
        raise rules.refused("shapes", text, "a shape, such as 1x3x224x224 or x=1x3x224x224")
    return tuple(map(int, re.split("[x,]", text)))


def _parse_dims(dims: Sequence[str], infos: Infos) -> dict[str, int]:
    symbols = [d for info in infos for d in info.shape or () if isinstance(d, str)]
    found: dict[str, int] = {}
    for text in dims:
        symbol, _, size = text.rpartition("=")
        if not symbol or not size.isdecimal():
            raise rules.refused("dims", text, "NAME=SIZE, such as batch=4")
        if symbol not in symbols:
            known = ", ".join(dict.fromkeys(symbols)) or "none"
            reason = (
                f"no input has a dimension '{symbol}'{did_you_mean(symbol, symbols)} "
                f"(symbolic dimensions: {known})"
            )
            raise rules.unfit(InputError, "dims", reason, text)
        found[symbol] = int(size)
    return found


def _by_input(texts: Sequence[str], infos: Infos, argument: str) -> dict[str, str]:
    """Return the text given for each input, as ``name=text`` or as a text alone."""
    return {name: found[-1] for name, found in _all_by_input(texts, infos, argument).items()}


def _all_by_input(texts: Sequence[str], infos: Infos, argument: str) -> dict[str, list[str]]:
    names = [info.name for info in infos]
    found: dict[str, list[str]] = {}
    for text in texts:
        name = next((n for n in names if text.startswith(f"{n}=")), None)
        if name is not None:
            found.setdefault(name, []).append(text[len(name) + 1 :])
            continue
        before, equals, _ = text.partition("=")
        if equals and not Path(text).exists():
            reason = (
                f"the model has no input '{before}'{did_you_mean(before, names)} "
                f"(inputs: {', '.join(map(str, infos))})"
            )
            raise rules.unfit(InputError, argument, reason, text)
        if len(names) != 1:
            reason = (
                f"say for which of the {len(names)} inputs, as in NAME={text} "
                f"(inputs: {', '.join(map(str, infos))})"
            )
            raise rules.unfit(InputError, argument, reason, text)
        found.setdefault(names[0], []).append(text)
    return found


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
            _bind(info, shapes[info.name], sizes)
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
    given = _all_by_input(_expand_archives(wanted.files, infos), infos, "inputs")
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
