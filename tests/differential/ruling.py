"""What a ruling is: where a peer contradicts the specification, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tercet.runtime.ir.dtypes import DType

from .sample import Sample


@dataclass(frozen=True)
class Ruling:
    """A peer that is wrong about some samples of some operators.

    Attributes:
        operators: which, separated by blanks.
        wrong: the peers, separated by blanks.
        when: whether it is a sample of this kind.
        configuration: the same in words.
        specification: the sentence that decides.
        precise: the dtype that the peer's result is as exact as; None if it is worth nothing.
    """

    operators: str
    wrong: str
    when: Callable[[Sample], bool]
    configuration: str
    specification: str
    precise: DType | None = None


def has(*dtypes: object) -> Callable[[Sample], bool]:
    """Whether an input has one of these dtypes."""
    return lambda sample: any(x is not None and x.dtype in dtypes for x in sample.inputs)


def transformed(mode: str) -> Callable[[Sample], bool]:
    """Whether it is a Resize with this coordinate transformation."""
    return lambda sample: sample.attributes.get("coordinate_transformation_mode") == mode


def starts_before(s: Sample) -> bool:
    """Whether a slice goes backwards from before the first element."""
    if len(s.inputs) < 5 or s.inputs[4] is None:
        return False
    shape, starts, steps = s.data(0).shape, s.data(1), s.data(4)
    axes = range(len(starts)) if s.inputs[3] is None else s.data(3)
    return any(t < 0 and b < -shape[a] for a, b, t in zip(axes, starts, steps, strict=True))
