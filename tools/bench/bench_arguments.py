"""Argument checks of `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...api import Loadable
from ...arguments import model
from ...runtime.base.arguments import mapping, number, path, refused, whole, words
from .bench_check import latency_limits

MAX_STREAMS = 1024


def sources_rule(name: str, value: Any) -> Any:
    """Accept a model, or a list of models."""
    if not isinstance(value, list | tuple):
        return model(name, value)
    if not value:
        raise refused(name, value, "a model or a list of models")
    return [model(name, each) for each in value]


def sizes_rule(name: str, value: Any) -> tuple[int, ...]:
    """Accept one or several numbers."""
    several = value if isinstance(value, list | tuple) else (value,)
    return tuple(whole(1)(name, each) for each in several)


def concurrency_rule(name: str, value: Any) -> tuple[int, ...]:
    """Accept one or several numbers of callers."""
    sizes = sizes_rule(name, value)
    if not sizes or max(sizes) > MAX_STREAMS:
        raise refused(name, value, f"numbers from 1 to {MAX_STREAMS}")
    return sizes


def saved_rule(name: str, value: Any) -> Any:
    """Accept a saved benchmark, or its file."""
    return value if isinstance(value, Mapping) else path(name, value)


def latencies_rule(name: str, value: Any) -> Any:
    """Accept latencies as strings, or seconds by runner."""
    if isinstance(value, Mapping):
        return mapping("seconds by runner", value=number(above=0))(name, value)
    return words("latencies, such as '5ms' or 'cudnn=300us'")(name, value)


def limits_of(given: str | Sequence[str] | Mapping[str, float] | None) -> Mapping[str, float]:
    """Return seconds by runner, "" for all tercet backends."""
    if given is None or isinstance(given, Mapping):
        return given or {}
    return latency_limits((given,) if isinstance(given, str) else given)


def several(given: Any) -> tuple[Any, ...]:
    """Return one or several as a tuple."""
    return (given,) if isinstance(given, str | int) else tuple(given)


def models_of(given: Any) -> Sequence[Loadable]:
    """Return one model or several as a list."""
    return given if isinstance(given, list | tuple) else [given]
