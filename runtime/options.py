"""What a user may choose, built once and handed down."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from .errors import UsageError, did_you_mean

Precision = Literal["float32", "tf32", "float16", "bfloat16"]


def default_cache() -> Path:
    """Return the folder for compiled kernels and plans: ``$TERCET_CACHE`` or the user's cache."""
    if chosen := os.environ.get("TERCET_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tercet"


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that decides how a model is optimised, planned and run.

    Attributes:
        precision: arithmetic of float32 tensors; float32 means no TF32 anywhere, tf32 allows it on
            backends that have it, float16 and bfloat16 compute in half precision what bears it (see
            `passes.to_half`) and give float32.
        stop_at: number of graph rewrites after which the passes stop; None for no limit.
        skip: names of graph passes that do not run.
        fold_bytes: greatest constant, in bytes, that folding may create.
        fold_total: bytes of all constants together that folding may create.
        finite: whether all numbers that the model meets are finite; then a product with weights
            that are zero may be left out, which hands on no NaN and no infinity any more.
        max_bytes: memory of the host that a plan, or one result, may take; what the machine has
            where None.
        workspace: greatest scratch memory of one step in bytes; None for no limit.
        tune: measure the vendor libraries' algorithms and keep the fastest, instead of trusting
            their heuristics; the choices are kept in `cache`.
        max_plans: plans that a model keeps, one per set of input shapes.
        check_each: wait after every step, so that a fault names its node.
        cache: folder for compiled kernels and measured choices, a path or its text.
        conv: ``direct`` keeps numpy from Winograd's algorithm, whose rounding is a few times that
            of the products; ``naive`` runs every convolution of the cuda backend one thread an
            output, for teaching and as a baseline.
    """

    precision: Precision = "float32"
    stop_at: int | None = None
    skip: tuple[str, ...] = ()
    fold_bytes: int = 64 << 20
    fold_total: int = 256 << 20
    finite: bool = False
    max_bytes: int | None = None
    workspace: int | None = None
    tune: bool = False
    max_plans: int = 8
    check_each: bool = False
    cache: Path = field(default_factory=default_cache)
    conv: Literal["naive", "direct"] | None = None

    def __post_init__(self) -> None:
        known = get_args(Precision)
        if self.precision not in known:
            hint = did_you_mean(self.precision, known)
            raise UsageError(f"precision '{self.precision}' is none of {', '.join(known)}{hint}")
        object.__setattr__(self, "cache", Path(self.cache))
        if self.conv not in (None, "naive", "direct"):
            hint = did_you_mean(str(self.conv), ("naive", "direct"))
            raise UsageError(f"conv '{self.conv}' is neither naive nor direct{hint}")
        for name in ("fold_bytes", "fold_total", "max_plans"):
            if getattr(self, name) < (1 if name == "max_plans" else 0):
                raise UsageError(f"{name}={getattr(self, name)} is too small")
        if self.max_bytes is not None and self.max_bytes < 0:
            raise UsageError(f"max_bytes={self.max_bytes} is too small")
