"""The roofline: the shortest time in which a machine can do some work, and where time is lost.

A row takes no less than its arithmetic at the rate of its unit, its traffic at the rate of the
memory, and the launches of its kernels: the longest of the three is its limit. It may be faster
where a cache holds the data, or where an algorithm multiplies less than the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Protocol, TypeVar

from ...runtime.plan.work import Work


@dataclass(frozen=True, slots=True)
class Limit:
    """The shortest time of a row.

    Attributes:
        seconds: of one call.
        bound: what takes them: ``compute``, ``memory`` or ``launch``; empty for nothing.
    """

    seconds: float
    bound: str


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine can do in a second.

    Attributes:
        memory: bytes read and written.
        flops: operations, two per multiply-accumulate, by dtype of the factors as in `Work.macs`;
            factors of other dtypes are multiplied at the highest rate.
        launch: seconds from one kernel to the next.
    """

    memory: float
    flops: Mapping[str, float]
    launch: float = 0.0

    def limit(self, work: Work) -> Limit | None:
        """Return the shortest time of some work; None if its arithmetic is unknown."""
        if work.macs is None:
            return None
        flops = {name: 2 * count for name, count in work.macs.items()}
        return self.floor(flops, work.nbytes, work.launches)

    def floor(self, flops: Mapping[str, float], nbytes: float, launches: int = 0) -> Limit:
        """Return the shortest time of operations by dtype, traffic and launches."""
        fastest = max(self.flops.values())
        parts = {
            "memory": nbytes / self.memory,
            "compute": sum(n / self.flops.get(name, fastest) for name, n in flops.items()),
            "launch": launches * self.launch,
        }
        bound = max(parts, key=lambda name: parts[name])
        return Limit(parts[bound], bound if parts[bound] else "")

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self)


class Costed(Protocol):
    """A row with a time, measured or estimated, and a limit."""

    @property
    def kind(self) -> str:
        """``step``, or what it is otherwise."""
        ...

    @property
    def kernel(self) -> str:
        """What runs."""
        ...

    @property
    def calls(self) -> int:
        """How often it runs."""
        ...

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of one call; None if unknown."""
        ...

    @property
    def factors(self) -> tuple[str, ...]:
        """Dtypes of what is multiplied."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes to read and to write in one call."""
        ...

    @property
    def seconds(self) -> float | None:
        """Of all calls; None if it has no separate time."""
        ...

    @property
    def limit(self) -> float | None:
        """Seconds that all calls take at least; None if unknown."""
        ...

    @property
    def bound(self) -> str:
        """What determines the limit; see `Limit`."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """A group of rows.

    Attributes:
        name: the group's name.
        rows: number of rows.
        calls: total calls per run.
        macs: per run, as far as known.
        nbytes: per run.
        seconds: per run.
        limit: of the seconds of rows with a limit, those within it.
        lost: of these, those beyond it.
    """

    name: str
    rows: int
    calls: int
    macs: int
    nbytes: int
    seconds: float
    limit: float
    lost: float

    @property
    def roof(self) -> float | None:
        """The limit as a fraction of the time of the rows that have one; None without."""
        return self.limit / (self.limit + self.lost) if self.limit else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything, times in milliseconds, for JSON."""
        found = asdict(self)
        times = {"ms": "seconds", "limit_ms": "limit", "lost_ms": "lost"}
        inside = {name: found.pop(key) * 1e3 for name, key in times.items()}
        return {**found, **inside, "roof": self.roof}


R = TypeVar("R", bound=Costed)


def shares_of(rows: Iterable[R], key: Callable[[R], str]) -> tuple[Share, ...]:
    """Group the rows that have a time by a key, longest first."""
    groups: dict[str, list[R]] = {}
    for row in rows:
        if row.seconds is not None:
            groups.setdefault(key(row), []).append(row)
    found = [_share(name, group) for name, group in groups.items()]
    return tuple(sorted(found, key=lambda share: -share.seconds))


def _share(name: str, rows: Sequence[Costed]) -> Share:
    limited = [(row.seconds or 0.0, row.limit) for row in rows if row.limit is not None]
    within = sum(map(min, limited))
    return Share(
        name,
        len(rows),
        sum(row.calls for row in rows),
        sum((row.macs or 0) * row.calls for row in rows),
        sum(row.nbytes * row.calls for row in rows),
        sum(row.seconds or 0.0 for row in rows),
        within,
        sum(seconds for seconds, _ in limited) - within,
    )


def kernel_kind(row: Costed) -> str:
    """Return the name of a row's kernel up to its sizes; what it is, if it has no kernel."""
    if row.kind != "step":
        return row.kind
    first, *rest = row.kernel.split()
    named = takewhile(lambda word: not any(map(str.isdigit, word)), rest)
    return " ".join((first, *named)).rstrip(":")


def lost_where(rows: Iterable[R]) -> tuple[Share, ...]:
    """Group the rows by kind of kernel, those that lose most time beyond their limits first."""
    return tuple(sorted(shares_of(rows, kernel_kind), key=lambda share: -share.lost))
