"""What backends must return: those of other packages are told where they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from ..errors import DeviceError
from .backend import Backend, Claim, Decline, Run, Step


def lacking(found: object, *names: str) -> str:
    """Return which attributes an object lacks, as text; empty if it has them all."""
    missing = [name for name in names if not hasattr(found, name)]
    return f"{type(found).__name__} has no {', '.join(missing)}" if missing else ""


def backends_of(found: object) -> tuple[Backend, ...]:
    """Return the result of `open_backends`; raises TypeError unless it is a tuple of backends."""
    if not isinstance(found, tuple):
        raise TypeError(f"open_backends returned {type(found).__name__}, not a tuple of backends")
    several = cast("tuple[object, ...]", found)
    for each in several:
        missing = lacking(each, "name", "device", "claim") or lacking(
            getattr(each, "device", None), "name", "allocate", "upload", "copier"
        )
        if missing:
            raise TypeError(f"open_backends returned no backend: {missing}")
    return cast("tuple[Backend, ...]", several)


def asked_of(backend: Backend, found: object) -> Backend:
    """Return the result of `Preparing.prepare`; raises DeviceError unless it makes claims."""
    if missing := lacking(found, "name", "device", "claim"):
        raise DeviceError(f"backend '{backend.name}': prepare returned no backend: {missing}")
    return cast("Backend", found)


def answers_of(backend: Backend, found: object) -> Iterator[Claim | Decline]:
    """Yield the results of `Backend.claim`; raises DeviceError for other objects."""
    what = f"backend '{backend.name}': claim must yield Claim and Decline"
    if not isinstance(found, Iterable):
        raise DeviceError(f"{what}; it returned {type(found).__name__}")
    for answer in cast("Iterable[object]", found):
        if not isinstance(answer, Claim | Decline):
            raise DeviceError(f"{what}; it yielded {type(answer).__name__}")
        yield answer


def step_of(backend: str, found: object) -> Step:
    """Return the result of `Claim.build`; raises TypeError unless it is a step."""
    if missing := lacking(found, "kernel", "scratch", "capturable", "bind"):
        raise TypeError(f"backend '{backend}' built no step: {missing}")
    return cast("Step", found)


def run_of(backend: str, found: object) -> Run:
    """Return the result of `Step.bind`; raises TypeError unless it is a function."""
    if not callable(found):
        kind = type(found).__name__
        raise TypeError(f"backend '{backend}': bind returned {kind}, not a function of a stream")
    return cast("Run", found)
