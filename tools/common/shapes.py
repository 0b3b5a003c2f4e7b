"""Shapes of a model's inputs, from texts such as ``x=1x3x224x224`` and ``batch=4``."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from ...runtime.base import arguments as rules
from ...runtime.errors import InputError, did_you_mean
from ...runtime.session.model import TensorInfo

Infos = Sequence[TensorInfo]
#: Sizes of symbolic dimensions, and shapes of inputs: by name, or in command line form.
Dims = Mapping[str, int] | Sequence[str]
Shapes = Mapping[str, Sequence[int]] | Sequence[str] | Sequence[int]


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
        InputError: the model has no such input or symbol, or a shape contradicts it or `dims`.
        UsageError: a string is not a shape or size.
    """
    given = {name: _parse_shape(text) for name, text in _by_input(shapes, infos, "shapes").items()}
    sizes = _parse_dims(dims, infos)
    found: dict[str, tuple[int, ...]] = {}
    asked = dict(sizes)
    for info in infos:
        if info.name in given:
            bind_sizes(info, given[info.name], sizes)
            _check_asked(info, given[info.name], asked)
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


def bind_sizes(info: TensorInfo, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Record the sizes of symbols implied by a given shape.

    Raises:
        InputError: the shape contradicts that of the input.
    """
    if info.shape is None:
        return
    if len(info.shape) != len(shape):
        reason = f"{len(shape)} axes; the model expects {info}"
        raise rules.unfit(InputError, "shapes", reason, {info.name: shape})
    for axis, (wanted, size) in enumerate(zip(info.shape, shape, strict=True)):
        if isinstance(wanted, str):
            sizes.setdefault(wanted, size)
        elif wanted is not None and wanted != size:
            reason = f"axis {axis} must be {wanted}; the model expects {info}"
            raise rules.unfit(InputError, "shapes", reason, {info.name: shape})


def _check_asked(info: TensorInfo, shape: tuple[int, ...], asked: Mapping[str, int]) -> None:
    """Raise InputError if a given shape contradicts a given size of a symbol."""
    for axis, (symbol, size) in enumerate(zip(info.shape or (), shape, strict=False)):
        if isinstance(symbol, str) and asked.get(symbol, size) != size:
            reason = f"axis {axis} is '{symbol}', which is {asked[symbol]} by --dim (dims)"
            raise rules.unfit(InputError, "shapes", reason, {info.name: shape})


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
            unnamed = [info.name for info in infos if info.shape is None or None in info.shape]
            if unnamed:
                reason += f"; --shape (shapes) sets axes without a name, as of '{unnamed[0]}'"
            raise rules.unfit(InputError, "dims", reason, {symbol: int(size)})
        found[symbol] = int(size)
    return found


def _by_input(texts: Sequence[str], infos: Infos, argument: str) -> dict[str, str]:
    """Return the text given for each input, as ``name=text`` or as a text alone."""
    return {name: found[-1] for name, found in all_by_input(texts, infos, argument).items()}


def all_by_input(texts: Sequence[str], infos: Infos, argument: str) -> dict[str, list[str]]:
    """Return what is given for each input, as ``name=text`` or as a text alone.

    Args:
        texts: what is given.
        infos: `Model.inputs`.
        argument: whose texts they are: ``shapes``, or ``inputs`` for files.

    Raises:
        InputError: the model has no such input, or several where none is named.
    """
    names, listed = [info.name for info in infos], ", ".join(map(str, infos))
    found: dict[str, list[str]] = {}
    for text in texts:
        name = next((n for n in names if text.startswith(f"{n}=")), None)
        if name is not None:
            found.setdefault(name, []).append(text[len(name) + 1 :])
            continue
        before, equals, behind = text.partition("=")
        if equals and not Path(text).exists():
            hint = did_you_mean(before, names)
            reason = f"the model has no input '{before}'{hint} (inputs: {listed})"
            raise rules.unfit(InputError, argument, reason, {before: _as_given(behind, argument)})
        if len(names) != 1:
            how = "by its name" if argument == "shapes" else f"as in NAME={text}"
            reason = f"say for which of the {len(names)} inputs, {how} (inputs: {listed})"
            raise rules.unfit(InputError, argument, reason, _as_given(text, argument))
        found.setdefault(names[0], []).append(text)
    return found


def _as_given(text: str, argument: str) -> object:
    """Return what a text stands for in Python."""
    return _parse_shape(text) if argument == "shapes" else text
