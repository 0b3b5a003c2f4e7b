"""The charts of a report: bars, strips, heat maps, rooflines and memory maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10, sqrt
from typing import Any

from ..common.console import bytes_text, count_text, ms_text
from .report_markup import Markup, element, svg

WIDTH = 960.0
COLOURS = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """One latency.

    Attributes:
        label: its label.
        low: 10th percentile in milliseconds.
        middle: median.
        high: 90th percentile.
        note: a note, such as the error.
        kind: determines the colour; the label if empty.
    """

    label: str
    low: float
    middle: float
    high: float
    note: str = ""
    kind: str = ""


def bars(found: Sequence[Bar], label: str) -> Markup:
    """Return medians as bars with whiskers from the 10th to the 90th percentile."""
    left, right, step = 220.0, 190.0, 26.0
    maximum = max((bar.high for bar in found), default=0.0) or 1.0
    kinds = list(dict.fromkeys(bar.kind or bar.label for bar in found))
    parts: list[Markup] = []
    for number, bar in enumerate(found):
        y = number * step + 4
        scale = (WIDTH - left - right) / maximum
        middle = y + step / 2 - 2
        ends = f"M{left + bar.low * scale:.1f} {middle}H{left + bar.high * scale:.1f}"
        said = f"{ms_text(bar.middle / 1e3)} ms{f', {bar.note}' if bar.note else ''}"
        title = f"{bar.label}: p10 {bar.low:.4g}, p50 {bar.middle:.4g}, p90 {bar.high:.4g} ms"
        parts += [
            element("text", _short(bar.label, 34), x=left - 10, y=middle + 4, text_anchor="end"),
            element(
                "rect",
                element("title", title),
                x=left,
                y=y,
                width=max(1.0, bar.middle * scale),
                height=step - 8,
                rx=2.0,
                class_=f"k{kinds.index(bar.kind or bar.label) % COLOURS}",
            ),
            element("path", d=ends, class_="whisker"),
            element("text", said, x=left + bar.high * scale + 8, y=middle + 4, class_="soft"),
        ]
    return svg(WIDTH, len(found) * step + 8, label, parts)


def strip(parts: Sequence[tuple[str, str, float]], label: str) -> Markup:
    """Return the parts of a run as a stacked strip with a legend.

    Args:
        parts: name, kind and milliseconds of each.
        label: of the chart.
    """
    sums: dict[str, float] = {}
    for _, kind, ms in parts:
        sums[kind] = sums.get(kind, 0.0) + ms
    order = sorted(sums, key=lambda kind: -sums[kind])
    classes = {kind: f"k{i}" if i < COLOURS else "rest" for i, kind in enumerate(order)}
    whole = sum(sums.values()) or 1.0
    drawn: list[Markup] = []
    x = 0.0
    for name, kind, ms in parts:
        width = ms / whole * WIDTH
        title = element("title", f"{name} ({kind}): {ms:.4g} ms, {ms / whole:.1%}")
        look = f"{classes[kind]} part"
        drawn.append(element("rect", title, x=x, y=0.0, width=width, height=44.0, class_=look))
        x += width
    legend = [
        (f"{_short(kind, 35)} {sums[kind] / whole:.0%}", classes[kind]) for kind in order[:COLOURS]
    ]
    if len(order) > COLOURS:
        others = sum(sums[kind] for kind in order[COLOURS:])
        legend.append((f"others {others / whole:.0%}", "rest"))
    below, bottom = _legend(legend, 54.0)
    return svg(WIDTH, bottom, label, drawn, below)


def _legend(entries: Iterable[tuple[str, str]], top: float) -> tuple[list[Markup], float]:
    """Return a wrapped legend, and its height."""
    parts: list[Markup] = []
    x, y = 0.0, top + 12
    for text, class_ in entries:
        said = _short(text, 40)
        width = 34 + 6.3 * len(said)
        if x and x + width > WIDTH:
            x, y = 0.0, y + 18
        parts.append(element("rect", x=x, y=y - 10, width=11.0, height=11.0, rx=2.0, class_=class_))
        parts.append(element("text", said, x=x + 16, y=y, class_="soft small"))
        x += width
    return parts, y + 6


# ── heat map ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Cell:
    """One layer of one comparison.

    Attributes:
        title: shown on hover.
        value: the error; None if there is none.
        wrong: whether it exceeds rounding.
    """

    title: str
    value: float | None
    wrong: bool


def heat_map(lines: Mapping[str, Sequence[Cell]], label: str) -> Markup:
    """Return errors by layer from left to right, one line per comparison, on a log scale."""
    longest = max((len(_short(name, 24)) for name in lines), default=0)
    left, height = max(120.0, 14 + 7.0 * longest), 30.0
    columns = max((len(cells) for cells in lines.values()), default=1)
    width = min(26.0, max(5.0, (WIDTH - left) / columns))
    finite = [c.value for cells in lines.values() for c in cells if c.value and isfinite(c.value)]
    low, high = (log10(min(finite)), log10(max(finite))) if finite else (-8.0, 0.0)
    low, high = float(floor(low)), float(max(ceil(high), floor(low) + 1))
    parts: list[Markup] = []
    for number, (name, cells) in enumerate(lines.items()):
        y = number * (height + 6)
        parts.append(element("text", _short(name, 24), x=left - 8, y=y + 19, text_anchor="end"))
        for at, cell in enumerate(cells):
            share = _share(cell.value, low, high)
            parts.append(
                element(
                    "rect",
                    element("title", cell.title),
                    x=left + at * width,
                    y=y,
                    width=width - 1,
                    height=height,
                    class_="heat wrong" if cell.wrong else "heat",
                    style=f"--heat: {share:.0%}",
                )
            )
    bottom = len(lines) * (height + 6)
    for step in range(11):
        x = left + step * 20
        style = f"--heat: {6 + 9.4 * step:.0f}%"
        parts.append(
            element("rect", x=x, y=bottom + 8, width=20.0, height=10.0, class_="heat", style=style)
        )
    scale = f"1e{low:.0f}", f"1e{high:.0f}"
    for text, x, anchor in ((scale[0], left - 6, "end"), (scale[1], left + 226, "start")):
        parts.append(
            element("text", text, x=x, y=bottom + 17, class_="soft small", text_anchor=anchor)
        )
    return svg(max(WIDTH, left + columns * width), bottom + 26, label, parts)


def _share(value: float | None, low: float, high: float) -> float:
    """Return the heat of a value: 0 for none, from 0.06 up for any difference."""
    if value is None:
        return 1.0
    if value == 0:
        return 0.0
    return 0.06 + 0.94 * min(1.0, max(0.0, (log10(value) - low) / (high - low)))


# ── roofline ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Dot:
    """One row of a profile: FLOP per byte, FLOP per second, and its share of the time.

    The share is None if the dots are not parts of a whole.

    Attributes:
        label: shown next to it.
        other: FLOP per second of a comparison, drawn as a ring.
    """

    title: str
    kind: str
    intensity: float
    rate: float
    share: float | None
    label: str = ""
    other: float | None = None


def roofline(dots: Sequence[Dot], copy: float, flops: float, label: str) -> Markup:
    """Return rows below the roofline of a machine's bandwidth and throughput."""
    left, top, width, height = 90.0, 12.0, WIDTH - 110, 330.0
    ridge = flops / copy
    xs = [dot.intensity for dot in dots] + [ridge / 4, ridge * 8]
    ys = [dot.rate for dot in dots] + [flops, min(copy * min(xs), flops)]
    ys += [dot.other for dot in dots if dot.other is not None]
    x0, x1 = floor(log10(min(xs))), ceil(log10(max(xs)))
    y0, y1 = floor(log10(min(ys))), ceil(log10(max(ys)))

    def px(value: float) -> float:
        return left + (log10(value) - x0) / (x1 - x0) * width

    def py(value: float) -> float:
        return top + (y1 - log10(value)) / (y1 - y0) * height

    parts = _axes((x0, x1), (y0, y1), px, py)
    begin = max(10.0**x0, 10.0**y0 / copy)
    corner = f"{px(ridge):.1f} {py(flops):.1f}"
    roof = f"M{px(begin):.1f} {py(begin * copy):.1f}L{corner}H{px(10.0**x1):.1f}"
    parts.append(element("path", d=roof, class_="roof"))
    kinds = list(dict.fromkeys(dot.kind for dot in dots))
    for dot in sorted(dots, key=lambda dot: -(dot.share or 0)):
        at = kinds.index(dot.kind)
        part = "" if dot.share is None else f", {dot.share:.1%} of the time"
        title = (
            f"{dot.title} ({dot.kind}): {dot.intensity:.3g} FLOP/B, "
            f"{count_text(int(dot.rate))}FLOP/s{part}"
        )
        colour = f"k{at}" if at < COLOURS else "rest"
        x, y = px(dot.intensity), py(dot.rate)
        if dot.other is not None:
            z = py(dot.other)
            parts.append(element("line", x1=x, x2=x, y1=y, y2=z, class_="grid"))
            parts.append(element("circle", cx=x, cy=z, r=3.5, class_=f"ring {colour}"))
        radius = 4 + 22 * sqrt(max(0.0, dot.share or 0))
        circle = element("title", title)
        parts.append(element("circle", circle, cx=x, cy=y, r=radius, class_=f"dot {colour}"))
        if dot.label:
            parts.append(element("text", dot.label, x=x + 7, y=y + 3, class_="soft small"))
    said = f"{count_text(int(flops))}FLOP/s, {bytes_text(int(copy))}/s"
    parts.append(
        element("text", said, x=left + width, y=py(flops) - 6, text_anchor="end", class_="soft")
    )
    legend = [(kind, f"k{i}" if i < COLOURS else "rest") for i, kind in enumerate(kinds[:8])]
    below, bottom = _legend(legend, top + height + 46)
    return svg(WIDTH, bottom, label, parts, below)


def _axes(xs: tuple[int, int], ys: tuple[int, int], px: Any, py: Any) -> list[Markup]:
    """Return a labelled line for each power of ten."""
    parts: list[Markup] = []
    bottom, left = py(10.0 ** ys[0]), px(10.0 ** xs[0])
    for power in range(xs[0], xs[1] + 1):
        x = px(10.0**power)
        parts.append(element("line", x1=x, x2=x, y1=py(10.0 ** ys[1]), y2=bottom, class_="grid"))
        text = f"{10.0**power:g}"
        parts.append(
            element("text", text, x=x, y=bottom + 16, text_anchor="middle", class_="soft small")
        )
    for power in range(ys[0], ys[1] + 1):
        y = py(10.0**power)
        parts.append(element("line", x1=left, x2=px(10.0 ** xs[1]), y1=y, y2=y, class_="grid"))
        text = f"{count_text(10**power) if power >= 0 else f'{10.0**power:g}'}FLOP/s"
        parts.append(
            element("text", text, x=left - 6, y=y + 4, text_anchor="end", class_="soft small")
        )
    said = "FLOP for each byte"
    parts.append(element("text", said, x=left, y=bottom + 32, class_="soft small"))
    return parts


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def arena_map(arena: Mapping[str, Any], label: str) -> Markup:
    """Return tensors by row (left to right) and address (upwards), with live bytes below.

    Args:
        arena: `Arena.to_dict`.
        label: of the chart.
    """
    left, height, below = 80.0, 260.0, 80.0
    rows, size = max(1, arena["rows"]), max(1, arena["nbytes"])
    column = (WIDTH - left) / rows
    parts: list[Markup] = []
    for number, tensor in enumerate(arena["tensors"]):
        first, last = max(0, tensor["first"]), min(rows - 1, tensor["last"])
        tall = tensor["nbytes"] / size * height
        title = (
            f"{tensor['name']}: {bytes_text(tensor['nbytes'])} at {tensor['offset']}, "
            f"rows {first} to {last}"
        )
        parts.append(
            element(
                "rect",
                element("title", title),
                x=left + first * column,
                y=height - (tensor["offset"] + tensor["nbytes"]) / size * height,
                width=(last - first + 1) * column,
                height=tall,
                class_=f"block k{number % COLOURS}",
            )
        )
    for share in (0.0, 0.5, 1.0):
        y = height * (1 - share)
        text = bytes_text(int(size * share))
        parts.append(element("line", x1=left, x2=WIDTH, y1=y, y2=y, class_="grid"))
        parts.append(
            element(
                "text", text, x=left - 6, y=max(11.0, y), text_anchor="end", class_="soft small"
            )
        )
    parts.append(_live(arena["live"], left, height + 16, below, size, column))
    said = f"live bytes, {bytes_text(arena['floor'])} at most"
    bottom = height + 16 + below
    parts.append(element("text", said, x=left, y=bottom + 15, class_="soft small"))
    return svg(WIDTH, bottom + 22, label, parts)


def _live(
    live: Sequence[int], left: float, top: float, height: float, size: int, column: float
) -> Markup:
    base = top + height
    path = [f"M{left:.1f} {base:.1f}"]
    for number, nbytes in enumerate(live):
        y = base - nbytes / size * height
        path.append(f"L{left + number * column:.1f} {y:.1f}H{left + (number + 1) * column:.1f}")
    path.append(f"V{base:.1f}Z")
    return element("path", d="".join(path), class_="area")


def _short(text: str, maximum: int) -> str:
    return text if len(text) <= maximum else f"{text[: maximum - 1]}…"
