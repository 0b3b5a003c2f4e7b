"""How far one array is from another, and whether that is within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import ml_dtypes
import numpy as np

from ...runtime.ir.dtypes import (
    COMPLEX,
    FLOAT8S,
    FLOATS,
    DType,
    bfloat16,
    complex64,
    float32,
    string,
)
from ...runtime.ir.types import Array
from ..common.nested import type_text
from .differences import Differences, differences

#: Share of the reference's largest magnitude by which results may differ. Sums of some thousand
#: products lose three digits when they are added up in another order.
RELATIVE = {"float64": 1e-10, "float32": 1e-4, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 5e-2}
_COARSE = 0.25

#: What is said about an output; ``inconclusive`` where an error could not be told from rounding.
Word = Literal["ok", "MISMATCH", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Elements may differ by ``absolute + relative * max |reference|``.

    The measure is one bound for the whole tensor, because rounding errors scale with the numbers
    that were added up, not with the result that happens to be left of them.

    Attributes:
        relative: share of the reference's largest magnitude.
        absolute: what is allowed in addition.
        origin: ``float64`` where it was measured by running the graph in float64, ``dtype`` where
            it is what the dtype has by default, ``given`` where a caller chose it.
    """

    relative: float
    absolute: float
    origin: str = "dtype"

    def bound(self, scale: float) -> float:
        """Return the difference that is allowed where the largest magnitude is `scale`."""
        return self.absolute + self.relative * scale


def tolerance_for(
    dtype: DType,
    precisions: tuple[str, ...] = (),
    relative: float | None = None,
    absolute: float | None = None,
) -> Tolerance:
    """Return the tolerance for tensors of a dtype.

    Args:
        dtype: of the reference.
        precisions: arithmetic of the two that are compared; the coarsest counts.
        relative: takes the place of the default: `RELATIVE` for floats, 0 (equal) for others.
        absolute: takes the place of the default: the smallest normal number for floats, so that
            a device may flush smaller ones to zero, and 0 for others.
    """
    rough, tiny = 0.0, 0.0
    if dtype in FLOATS | COMPLEX | FLOAT8S:
        kinds = [_real_name(dtype)]
        if dtype in (float32, complex64):
            kinds.extend(name for name in precisions if name in RELATIVE)
        rough = max(RELATIVE.get(kind, _COARSE) for kind in kinds)
        tiny = _smallest_normal(dtype)
    return Tolerance(
        rough if relative is None else relative,
        tiny if absolute is None else absolute,
        "dtype" if relative is None and absolute is None else "given",
    )


def _real_name(dtype: DType) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name)


def _smallest_normal(dtype: DType) -> float:
    if dtype in FLOAT8S or dtype == bfloat16:
        return float(ml_dtypes.finfo(dtype).smallest_normal)
    return float(np.finfo(dtype).smallest_normal)


@dataclass(frozen=True, slots=True)
class Difference:
    """One element of a tensor and what both sides say of it."""

    index: tuple[int, ...]
    reference: str
    found: str

    def __str__(self) -> str:
        where = ",".join(map(str, self.index))
        return f"[{where}] is {self.found}, reference {self.reference}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """One output of a runner against the reference's.

    Attributes:
        output: its name.
        type: dtype and shape that were found.
        verdict: ``ok`` if the types are equal, every difference is within the tolerance, and NaN
            and infinities are at the same places; ``inconclusive`` where rounding may explain
            what differs, but an error might look the same; else ``MISMATCH``.
        max_abs: maximum absolute difference of finite elements; NaN if the types differ.
        max_rel: `max_abs` by `scale`.
        rel_l2: Euclidean norm of the differences by that of the reference.
        scale: largest magnitude among the reference's finite elements.
        tolerance: what was allowed.
        worst: the element that is furthest off, None if all are equal.
        nan: number of NaN found.
        inf: number of infinities found.
        misplaced: elements of which one side is NaN or infinite and the other one is otherwise.
        first_misplaced: the first of them.
        reason: why it is not ok, in words; if it is, what the file allows that explains it.
        excess: the largest difference as a share of what that element may differ by.
        differences: how they are spread; None where that was not requested, or for texts.
    """

    output: str
    type: str
    verdict: Word
    max_abs: float
    max_rel: float
    rel_l2: float
    scale: float
    tolerance: Tolerance
    worst: Difference | None = None
    nan: int = 0
    inf: int = 0
    misplaced: int = 0
    first_misplaced: Difference | None = None
    reason: str = ""
    excess: float = 0.0
    differences: Differences | None = None

    @property
    def ok(self) -> bool:
        """Whether the verdict is ``ok``."""
        return self.verdict == "ok"

    @property
    def in_doubt(self) -> bool:
        """Whether numbers differ by more than is agreement, and no tolerance was given."""
        return not self.ok and self.max_abs == self.max_abs and self.tolerance.origin == "float64"

    def to_dict(self) -> dict[str, object]:
        """Return everything, for JSON."""

        def place(at: Difference | None) -> dict[str, object] | None:
            if at is None:
                return None
            return {"index": list(at.index), "reference": at.reference, "found": at.found}

        return {
            "output": self.output,
            "type": self.type,
            "verdict": self.verdict,
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "rel_l2": self.rel_l2,
            "scale": self.scale,
            "rtol": self.tolerance.relative,
            "atol": self.tolerance.absolute,
            "bound": self.tolerance.origin,
            "worst": place(self.worst),
            "nan": self.nan,
            "inf": self.inf,
            "misplaced": self.misplaced,
            "first_misplaced": place(self.first_misplaced),
            "reason": self.reason,
            "excess": self.excess,
            "differences": None if self.differences is None else self.differences.to_dict(),
        }


def missing(output: str, present: Array | None, side: str) -> Agreement:
    """Return that an output which one side has is not there on the other.

    Args:
        output: its name.
        present: what one side has.
        side: the other one.
    """
    nan = float("nan")
    text = type_text(present) if present is not None else ""
    reason = f"{side} lacks it"
    numbers = nan, nan, nan, nan
    return Agreement(
        output, text, "MISMATCH", *numbers, Tolerance(0, 0), reason=reason, excess=float("inf")
    )


def agreement(
    output: str, reference: Array, found: Array, tolerance: Tolerance, *, detailed: bool = False
) -> Agreement:
    """Compare an output with the reference's.

    Args:
        output: its name.
        reference: any dtype.
        found: the same dtype and shape, or the verdict is a mismatch.
        tolerance: see there.
        detailed: whether to tell how the differences are spread, which takes ten times as long.
    """
    make = partial(Agreement, output, type_text(found), tolerance=tolerance)
    if reference.shape != found.shape or reference.dtype != found.dtype:
        nan = float("nan")
        complaint = f"is {type_text(found)}, reference {type_text(reference)}"
        return make("MISMATCH", nan, nan, nan, nan, reason=complaint, excess=float("inf"))
    if reference.dtype == string:
        return _compare_texts(make, reference, found)
    if detailed:
        make = partial(make, differences=differences(reference, found))
    return _compare_numbers(make, reference, found, tolerance)


def _compare_texts(make: partial[Agreement], reference: Array, found: Array) -> Agreement:
    wrong = np.asarray(reference != found, bool)
    count = int(wrong.sum())
    if not count:
        return make("ok", 0.0, 0.0, 0.0, 0.0)
    worst = _difference(reference, found, int(wrong.argmax()))
    complaint = f"{count} of {found.size} strings differ; {worst}"
    nan = float("nan")
    excess = float("inf")
    return make("MISMATCH", nan, nan, nan, nan, worst=worst, reason=complaint, excess=excess)


def _compare_numbers(
    make: partial[Agreement], reference: Array, found: Array, tolerance: Tolerance
) -> Agreement:
    wide = np.complex128 if reference.dtype in COMPLEX else np.float64
    a, b = reference.astype(wide), found.astype(wide)
    finite = np.isfinite(a) & np.isfinite(b)
    same = (reference == found) | (np.isnan(a) & np.isnan(b))
    apart = np.abs(np.subtract(b, a, where=finite & ~same, out=np.zeros_like(a)))
    size = np.abs(np.where(np.isfinite(a), a, 0))
    scale, max_abs = (float(x.max(initial=0.0)) for x in (size, apart))
    misplaced = ~finite & ~same
    count = int(misplaced.sum())
    worst = None if same.all() else _difference(reference, found, int(apart.argmax()))
    first = _difference(reference, found, int(misplaced.argmax())) if count else None
    allowed = tolerance.bound(scale)
    within = max_abs <= allowed
    return make(
        "ok" if within and not count else "MISMATCH",
        max_abs,
        _ratio(max_abs, scale),
        _ratio(float(np.linalg.norm(apart.ravel())), float(np.linalg.norm(size.ravel()))),
        scale,
        worst=worst if max_abs else None,
        nan=int(np.isnan(b).sum()),
        inf=int(np.isinf(b).sum()),
        misplaced=count,
        first_misplaced=first,
        reason=_reason(within, worst, count, first),
        excess=float("inf") if count else _ratio(max_abs, allowed),
    )


def _reason(within: bool, worst: Difference | None, count: int, first: Difference | None) -> str:
    said: list[str] = []
    if count:
        plural = "elements are" if count > 1 else "element is"
        said.append(f"{count} {plural} NaN or infinite on one side only; {first}")
    if not within:
        said.append(f"worst {worst}")
    return "; ".join(said)


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else float("inf")


def _difference(reference: Array, found: Array, at: int) -> Difference:
    index = tuple(int(i) for i in np.unravel_index(at, reference.shape))
    return Difference(index, _element(reference[index]), _element(found[index]))


def _element(value: object) -> str:
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, np.floating | np.complexfloating):
        return f"{value:.9g}"
    return str(value)
