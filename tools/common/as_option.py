"""Arguments of Python as the command line spells them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ...runtime.errors import Argument

#: Options whose names are not those of the arguments, by argument.
OPTIONS = {
    "algorithms": "--algorithm",
    "backend_options": "--backend-option",
    "conv": "--conv-algorithm",
    "dims": "--dim",
    "freeze": "--freeze-input",
    "inputs": "--input",
    "reuse": "--cache",
    "runners": "--backend",
    "shapes": "--shape",
    "skip": "--skip-passes",
    "variant": "--file",
}


def as_option(argument: Argument) -> str:
    """Return what is wrong with an argument, as ``--option value: reason``."""
    name = option_of(argument.name)
    if not name.startswith("-"):  # an item of an argument
        given = "".join(f"={_word(str(each))}" for each in argument.given)
        return f"{name}{given}: {argument.reason}"
    given = " ".join(_given(name, each) for each in argument.given) or name
    return f"{given}: {argument.reason}"


def option_of(argument: str) -> str:
    """Return the option of an argument."""
    if not argument.isidentifier():  # an option already, or an item of an argument
        return argument
    return OPTIONS.get(argument) or f"--{argument.replace('_', '-')}"


def _given(option: str, value: object) -> str:
    """Return an option with its value, as it is written on a command line."""
    if isinstance(value, bool):
        return option if value else option.replace("--", "--no-", 1)
    if isinstance(value, Mapping):
        pairs = _pairs(cast("Mapping[str, object]", value))
        texts = (f"{name}={_listed(option, each)}" for name, each in pairs)
        return " ".join(f"{option} {_word(text)}" for text in texts)
    if isinstance(value, list | tuple):
        return f"{option} {_word(_listed(option, cast('object', value)))}"
    if isinstance(value, str | int | float):
        return f"{option} {_word(f'{value:g}' if isinstance(value, float) else str(value))}"
    from ...runtime.base.arguments import shown  # numpy comes with it

    return f"{option} {shown(value)}"


def _listed(option: str, value: object) -> str:
    """Return the items of a list or shape as one text, other values as they are."""
    if not isinstance(value, list | tuple):
        return str(value)
    return ("x" if option == "--shape" else ",").join(map(str, cast("list[object]", value)))


def _word(text: str) -> str:
    """Return one word of a command line, at most as long as others in messages."""
    return shlex.quote(text if len(text) <= 60 else f"{text[:57]}...")


def _pairs(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield names with values; those of a backend's options are joined by a dot."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = _pairs(cast("Mapping[str, object]", value))
            yield from ((f"{name}.{each}", own) for each, own in inner)
        else:
            yield name, value
