"""The vocabulary of the public functions: what an argument is called, and what it may be.

An argument of one name means the same in every function, and on the command line: ``dims={"seq":
4}`` is ``--dim seq=4``. `public` checks the arguments of a function by this table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from .runtime.base import arguments as rules
from .runtime.base.arguments import Rule
from .runtime.options import OPTION_RULES

P = ParamSpec("P")
R = TypeVar("R")

_BACKEND = rules.word("the name of a backend, such as 'numpy' or 'cuda'")
#: The rule for functions that take only one.
ONE_BACKEND = rules.word("the name of a backend, such as 'cuda'")


def _backends(name: str, value: Any) -> str | tuple[str, ...]:
    """Take the name of a backend, or several in the order in which they are asked."""
    if isinstance(value, str) or not isinstance(value, list | tuple) or not value:
        return _BACKEND(name, value)
    return tuple(_BACKEND(name, each) for each in cast("list[Any]", value))


def _runners(name: str, value: Any) -> tuple[Any, ...]:
    """Take names of backends, runtimes and files of outputs."""
    expected = "names of backends, such as ['numpy', 'onnxruntime']"
    given = (value,) if isinstance(value, str) else rules.items(name, value, expected)
    found = tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in given)
    for each in found:  # a player of the workshop's tools has a name and runs graphs
        if not (isinstance(each, str) and each) and not hasattr(each, "units"):
            raise rules.refused(name, each, expected)
    return found


def _inputs(name: str, value: Any) -> Any:
    """Take arrays by name or position, or a folder or file of them; see `tools.inputs`."""
    expected = "a dict of arrays by name, a list of them by position, or the path of a folder"
    if isinstance(value, Mapping):
        return rules.mapping(expected)(name, cast("object", value))
    if isinstance(value, bool | int | float | bytes | complex):
        raise rules.refused(name, value, expected)
    return value


def _tolerance(name: str, value: Any) -> Any:
    """Take a number, or numbers by name of an output or a dtype."""
    minimum = rules.number(minimum=0)
    if isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        return rules.mapping("numbers by output or dtype", value=minimum)(name, given)
    return minimum(name, value)


def _repeat(name: str, value: Any) -> Any:
    """Take a number of runs, or a `Repeat`."""
    return value if hasattr(value, "exactly") else rules.whole(0)(name, value)


def _callable(name: str, value: Any) -> Any:
    if not callable(value):
        raise rules.refused(name, value, "a function")
    return value


def _operators(name: str, value: Any) -> Any:
    """Take functions by (domain, name); `with_custom` looks at the keys."""
    expected = "functions by (domain, name), such as {('my.domain', 'Swish'): swish}"
    return rules.mapping(expected, key=rules.anything)(name, value)


def model(name: str, value: Any) -> Any:
    """Take a path, bytes, a message, a text in ONNX's language, or an object of an exporter."""
    is_path = isinstance(value, str) and "{" not in value  # a text in ONNX's language has some
    if is_path or isinstance(value, bytes | os.PathLike):
        return cast("object", value)
    from .importers.onnx.reading.read import in_memory

    return in_memory(value)


def _dtype(name: str, value: Any) -> np.dtype[Any]:
    try:
        return np.dtype(value)
    except (TypeError, ValueError) as error:
        raise rules.refused(name, value, "a dtype, such as numpy.float32") from error


_NAMES = rules.words("names of tensors")
_ARRAYS = rules.mapping("a dict of arrays by name")

#: By name of an argument.
RULES: Mapping[str, Rule] = {
    **OPTION_RULES,
    "source": model,
    "other": rules.optional(model),
    "backend": _backends,
    "fallback": rules.optional(_backends),
    "operators": rules.optional(_operators),
    "freeze": rules.optional(_ARRAYS),
    "weights": rules.optional(_ARRAYS),
    "runners": rules.optional(_runners),
    "inputs": rules.optional(_inputs),
    "seed": rules.whole(0),
    "shapes": rules.shapes,
    "dims": rules.dims,
    "outputs": _NAMES,
    "rtol": rules.optional(_tolerance),
    "atol": rules.optional(_tolerance),
    "tolerance": rules.number(above=0),
    "repeat": rules.optional(_repeat),
    "runs": rules.whole(1),
    "threads": rules.optional(rules.whole(1)),
    "timeout": rules.seconds,
    "runner_timeout": rules.seconds,
    "say": _callable,
    "load": rules.optional(rules.path),
    "file": rules.optional(rules.path),
    "external_data_dir": rules.optional(rules.path),
    "external": rules.optional(rules.nbytes),
    "opset": rules.optional(rules.whole(1)),
    "stream": rules.anything,
    "dtype": _dtype,
    "shape": rules.shape,
    "title": rules.text,
    "domain": rules.text,
    "operator": rules.word("the ONNX name of an operator, such as 'Conv'"),
    "target": rules.optional(rules.word("a GPU such as 'sm_90a' or 'sm_86:46'")),
    "placement": rules.optional(_BACKEND),
    "capability": rules.optional(_BACKEND),
    "duration": rules.number(above=0),
    "warm_up": rules.number(minimum=0),
    **dict.fromkeys(
        (
            "accuracy",
            "allow_inconclusive",
            "cost",
            "cumulative",
            "force",
            "lint",
            "map_external_data",
            "memory",
            "optimise",
            "passes",
            "peaks",
            "pipeline",
            "reduce",
            "skip_unavailable",
            "sparse",
            "twice",
            "whole_caches",
        ),
        rules.flag,
    ),
}

#: Other names of arguments: those of the command line, and those that come to mind.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "algorithm": ("algorithms",),
    "backend": ("runners",),
    "backends": ("runners", "backend"),
    "contestants": ("runners",),
    "dim": ("dims",),
    "fallbacks": ("fallback",),
    "freeze_input": ("freeze",),
    "freeze_inputs": ("freeze",),
    "inputs_from": ("inputs",),
    "lanes": ("streams",),
    "optimize": ("optimise",),
    "providers": ("backend", "runners"),
    "shape": ("shapes",),
}


def in_data_dir(function: Callable[P, R]) -> Callable[P, R]:
    """Look for external data in the argument `external_data_dir` of a function while it runs."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        folder = kwargs.get("external_data_dir")
        if folder is None:
            return function(*args, **kwargs)
        from .runtime.ir.mapped import external_data_in

        with external_data_in(cast("str | os.PathLike[str]", folder)):
            return function(*args, **kwargs)

    return call


def freezing(function: Callable[P, R]) -> Callable[P, R]:
    """Freeze the inputs in the argument `freeze` of a function in every model that it loads."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        arrays = kwargs.get("freeze")
        if not arrays:
            return function(*args, **kwargs)
        from .runtime.session.freeze import FROZEN

        with FROZEN.within(cast("Mapping[str, Any]", arrays)):
            return function(*args, **kwargs)

    return call


def public(**own: Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks the arguments of a public function.

    Args:
        **own: rules of arguments that mean something else in this function.
    """
    return rules.checked({**RULES, **own}, OPTION_RULES, ALIASES)
