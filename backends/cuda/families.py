"""Operator families: one file each, named as in `runtime/ops`, which fills the table of kernels.

A family is imported when a graph has one of its operators. Those that a network lacks take a tenth
of the time in which this backend is imported.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ...runtime.ir.op import Op
from . import custom as _custom  # noqa: F401 - registers the kernels of users
from .algorithms.registry import KERNELS, kernel_of
from .algorithms.selection import SELECTORS

__all__ = ["KERNELS", "SELECTORS", "files_of", "kernel_of", "provide", "provide_all"]

#: The files, in `ops`.
FILES = (
    "attention",
    "boxes",
    "contrib_distance",
    "contrib_linalg",
    "conv",
    "conv_variants",
    "counted",
    "experts",
    "gather",
    "loss",
    "matmul",
    "ml",
    "ml_linear",
    "ml_trees",
    "movement",
    "norm",
    "packed",
    "pool",
    "quantize",
    "random",
    "recurrent",
    "reduce",
    "reduce_cumulative",
    "resize",
    "search",
    "shape",
    "signal",
    "text",
    "training",
)
#: Families that need files besides those of their names: one of their operators is of a kind of
#: kernel that another family has, or is in another package.
ALSO = {
    "elementwise": ("codegen.elementwise", "ops.movement"),
    "gather": ("ops.counted",),
    "matmul": ("gemm.product",),
    "ml": ("ops.gather",),
    "norm": ("ops.random",),
    "pool": ("ops.gather",),
    "search": ("ops.counted",),
}


def provide(operator: type[Op]) -> None:
    """Import the family of an operator, if it has one here."""
    _import(operator.__module__.rpartition(".")[2])


def provide_all() -> None:
    """Import all families."""
    for family in (*FILES, *ALSO):
        _import(family)


def files_of(family: str) -> tuple[str, ...]:
    """Return the modules that register kernels of a family, as seen from this package."""
    own = (f"ops.{f}" for f in FILES if f == family or f.startswith(f"{family}_"))
    return *own, *ALSO.get(family, ())


@cache
def _import(family: str) -> None:
    for name in files_of(family):
        import_module(f".{name}", __package__)
