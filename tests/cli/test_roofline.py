"""Limits of rows, and where time is lost beyond them."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO

import pytest
from rich.console import Console

from tercet.runtime.plan.work import Work
from tercet.tools.common.console import SafeConsole
from tercet.tools.common.roofline import Limit, Rates, kernel_kind, lost_where
from tercet.tools.common.roofline_view import show_lost

RATES = Rates(1e12, {"float32": 1e14, "int8": 4e14}, 1e-6)


@dataclass(frozen=True)
class Row:
    """A row with a time."""

    kernel: str
    seconds: float | None
    limit: float | None
    kind: str = "step"
    calls: int = 2
    macs: int | None = 5
    factors: tuple[str, ...] = ("float32",)
    nbytes: int = 7
    bound: str = "compute"


@pytest.mark.parametrize(
    ("work", "limit"),
    [
        (Work({}, 0, 0), Limit(0, "")),
        (Work({"float32": 10**10}, 10**9, 1), Limit(1e-3, "memory")),
        (Work({"float32": 10**11}, 10**9, 1), Limit(2e-3, "compute")),
        (Work({"float32": 10**11, "int8": 10**11}, 0, 1), Limit(2.5e-3, "compute")),
        (Work({"float8e5m2": 10**11}, 0, 0), Limit(0.5e-3, "compute")),
        (Work({"int8": 10}, 10, 3), Limit(3e-6, "launch")),
        (Work(None, 10, 3), None),
    ],
)
def test_the_longest_part_is_the_limit(work: Work, limit: Limit | None) -> None:
    """Factors without a rate of their own are multiplied at the highest one."""
    found = RATES.limit(work)
    if limit is None or found is None:
        assert found is limit
        return
    assert found.bound == limit.bound
    assert found.seconds == pytest.approx(limit.seconds)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("mma 32x32 Swish", "mma"),
        ("f16_tma 128x64 split 2 Relu", "f16_tma"),
        ("elementwise Add+Relu", "elementwise Add+Relu"),
        ("Conv + Relu: direct product 64x128", "Conv + Relu: direct product"),
        ("ConvInteger: 48x192x16 in float32", "ConvInteger"),
    ],
)
def test_kinds_of_kernels_have_no_sizes(kernel: str, kind: str) -> None:
    assert kernel_kind(Row(kernel, 1, 1)) == kind
    assert kernel_kind(Row(kernel, 1, 1, kind="copy")) == "copy"


def test_lost_time_is_what_is_beyond_the_limits() -> None:
    """A row that is faster than its limit makes up for no other."""
    rows = [
        Row("mma 8x8", 3e-3, 1e-3),
        Row("mma 9x9", 1e-3, 5e-3),
        Row("pad", 9e-3, 1e-3),
        Row("pad", None, 1e-3),
        Row("host thing", 20e-3, None),
    ]
    found = {share.name: share for share in lost_where(rows)}
    assert list(found) == ["pad", "mma", "host thing"]
    assert (found["mma"].rows, found["mma"].calls, found["mma"].nbytes) == (2, 4, 28)
    assert [share.lost for share in found.values()] == pytest.approx([8e-3, 2e-3, 0])
    assert [share.limit for share in found.values()] == pytest.approx([1e-3, 2e-3, 0])
    assert [share.roof for share in found.values()] == [*map(pytest.approx, (1 / 9, 0.5)), None]
    entry = found["mma"].to_dict()
    assert (entry["ms"], entry["limit_ms"], entry["lost_ms"]) == pytest.approx((4, 2, 2))


@pytest.mark.parametrize("width", [80, 120])
def test_the_sum_says_where(width: int) -> None:
    console = Console(width=width, record=True, file=StringIO())
    show_lost(console, lost_where([Row("mma 8x8", 3e-3, 1e-3), Row("pad", 9e-3, 1e-3)]), 1)
    text = " ".join(console.export_text().split())
    assert "pad 1 9.00 20 14 B 1.00 11% 8.00 80.0%" in text
    assert "1 more line not shown" in text
    assert "12.0 ms, 2.00 ms of them within the limits, 10.0 ms lost: pad 8.00, mma 2.00" in text


def test_names_of_kernels_are_whole_in_a_narrow_terminal() -> None:
    """Folded, they would have eight characters a line."""
    console = SafeConsole(width=70, record=True, file=StringIO())
    rows = [Row(name, 3e-3, 1e-3) for name in ("find_scale + quantize", "pad 3", "mma_integer 8")]
    show_lost(console, lost_where(rows), 0)
    text = console.export_text()
    assert all(f"\n{name}" in text for name in ("find_scale + quantize", "pad", "mma_integer"))
    assert max(map(len, text.splitlines())) <= 70
