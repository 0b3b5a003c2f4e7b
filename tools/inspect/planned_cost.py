"""The cost of the rows of a placement: their work, estimates, and limits on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ...runtime.plan.backend import Backend
from ...runtime.session.placement import PlacedRow
from ..common.data_sheets import rates_of
from ..common.roofline import Limit, Rates


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """A row of a placement with its limit.

    Attributes:
        row: the row.
        limit_of_row: the shortest time of one call; None if unknown.
    """

    row: PlacedRow
    limit_of_row: Limit | None

    @property
    def kind(self) -> str:
        """``step``, or what it is otherwise."""
        return self.row.kind

    @property
    def kernel(self) -> str:
        """What runs."""
        return self.row.kernel

    @property
    def calls(self) -> int:
        """How often it runs: what is in a body counts once."""
        return 1

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates; None if unknown."""
        return self.row.work.total_macs

    @property
    def factors(self) -> tuple[str, ...]:
        """Dtypes of what is multiplied."""
        return tuple(self.row.work.macs or ())

    @property
    def nbytes(self) -> int:
        """Bytes to read and to write."""
        return self.row.work.nbytes

    @property
    def seconds(self) -> float | None:
        """Its estimate; its limit where nothing was estimated."""
        return self.limit if self.row.estimate is None else self.row.estimate

    @property
    def limit(self) -> float | None:
        """Seconds that it takes at least; None if unknown."""
        return None if self.limit_of_row is None else self.limit_of_row.seconds

    @property
    def bound(self) -> str:
        """What determines the limit; see `Limit`."""
        return "" if self.limit_of_row is None else self.limit_of_row.bound

    def to_dict(self) -> dict[str, Any]:
        """Return the row with its limit, times in milliseconds, for JSON."""
        found = asdict(self.row)
        estimate = found.pop("estimate")
        times = {"estimate_ms": estimate, "limit_ms": self.limit}
        inside = {name: None if s is None else s * 1e3 for name, s in times.items()}
        return {**found, **inside, "bound": self.bound}


def planned_costs(rows: Iterable[PlacedRow], rates: Rates | None) -> tuple[PlannedCost, ...]:
    """Return the rows of a placement with their limits.

    Args:
        rows: the placement.
        rates: of the GPU; None if unknown. Rows on the host and copies have no limit.
    """

    def limit(row: PlacedRow) -> Limit | None:
        on_gpu = row.kind == "reformat" or (row.kind == "step" and row.work.launches)
        return rates.limit(row.work) if rates is not None and on_gpu else None

    return tuple(PlannedCost(row, limit(row)) for row in rows)


def rates_here(backends: Iterable[Backend], precision: str) -> Rates | None:
    """Return the rates of the first GPU of some backends, by its data sheet; None if none has one.

    Args:
        backends: of a model.
        precision: compute precision of float32 tensors.
    """
    for backend in backends:
        if backend.device.name.startswith("cuda"):
            from ...backends.cuda.device import CudaDevice

            device = backend.device
            if isinstance(device, CudaDevice):
                return rates_of(device.compiler.target, precision, device.memory_bandwidth)
    return None
