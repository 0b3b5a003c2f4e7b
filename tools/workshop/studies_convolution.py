"""Studies of one convolution: its algorithms, the size of its window, and more work."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from ...backends.cuda import ALGORITHMS
from .studies_lab import Lab, StudiedConv, Taken, floor_seconds, normal
from .studies_report import Column, Curves, Study, Table

#: Times on a GV100 in a talk on cuDNN: milliseconds for 3x3 and 11x11, by algorithm.
GV100 = {
    "explicit_gemm": (0.76, 8.47),
    "implicit_gemm": (0.62, 6.82),
    "implicit_precomp_gemm": (0.47, 6.58),
    "fft": (3.69, 5.13),
    "winograd_f2": (0.26, None),
    "winograd_f2_nonfused": (2.73, None),
}
#: Algorithms for single pixels, few channels or volumes, which an image of 128 channels has not.
_OTHERS = ("gemm", "depthwise", "few_channels", "grouped", "volume")
WAYS = tuple(w for w, able in ALGORITHMS.items() if "Conv" in able and not w.startswith(_OTHERS))
_MB = 1 << 20


def best_of(found: Mapping[str, Taken | str]) -> tuple[str, Taken]:
    """Return the fastest algorithm by the time of its kernels."""
    able = {way: taken for way, taken in found.items() if isinstance(taken, Taken)}
    way = min(able, key=lambda name: able[name].seconds)
    return way, able[way]


# ── every way ────────────────────────────────────────────────────────────────────────────────────


def algorithms(lab: Lab) -> Study:
    """Time every way to run two convolutions, and what is chosen within a workspace."""
    tables: list[Table] = []
    findings: list[str] = []
    for number, kernel in enumerate((3, 11)):
        case = StudiedConv((1, 128, 128, 128), 128, kernel)
        lab.say(f"every way, {kernel}x{kernel}")
        feeds = case.feeds
        model = case.model(feeds)
        found = lab.ways(model, feeds, WAYS)
        rows = [_way_row(case, way, taken, number) for way, taken in found.items()]
        floor = 1e3 * floor_seconds(case.flops, case.nbytes)
        title = f"{case.title}, float32; {case.flops / 1e9:.2f} GFLOP, floor {floor:.4f} ms"
        tables.append(Table(title, _WAY_COLUMNS, tuple(rows)))
        for limit in (None, 0, 64 * _MB):
            chosen = lab.take(model, feeds, "Conv", fetch=False, workspace=limit)
            allowed = {
                way: taken
                for way, taken in found.items()
                if isinstance(taken, Taken) and (limit is None or taken.workspace <= limit)
            }
            way, best = best_of(allowed)
            within = "any" if limit is None else f"{limit // _MB} MiB of"
            findings.append(
                f"{kernel}x{kernel}, {within} workspace: chosen {chosen.kernels} in "
                f"{chosen.ms:.4f} ms, best of the table {way} in {best.ms:.4f} ms "
                f"({chosen.seconds / best.seconds - 1:+.1%})"
            )
    return Study(
        "algorithms",
        "Every algorithm for convolving an image of 128x128 pixels and 128 channels with 128 "
        "filters, next to the times that a talk measured on a GV100 (2018, cuDNN 7). Kernels "
        "only, each with tensors in its preferred layout. The talk's transform of whole images "
        "(45.3 and 44.7 ms, 8.3 GB) has no counterpart here: fft works on tiles.",
        tuple(tables),
        tuple(findings),
    )


_WAY_COLUMNS = (
    Column("way", "way"),
    Column("ms", "ms", ".4f"),
    Column("rate", "TFLOP/s", ".1f"),
    Column("workspace", "MiB", ".2f"),
    Column("error", "error", ".1e"),
    Column("layout", "layout"),
    Column("gv100", "GV100 ms", ".2f"),
    Column("reason", "why not"),
)


def _way_row(case: StudiedConv, way: str, taken: Taken | str, number: int) -> dict[str, Any]:
    peer = GV100.get(way, (None, None))[number]
    if isinstance(taken, str):
        return {"way": way, "gv100": peer, "reason": taken}
    return {
        "way": way,
        "ms": taken.ms,
        "rate": case.flops / taken.seconds / 1e12,
        "workspace": taken.workspace / _MB,
        "error": case.error(taken.result),
        "layout": "→".join(dict.fromkeys(taken.formats)),
        "gv100": peer,
    }


# ── windows ──────────────────────────────────────────────────────────────────────────────────────

_FFT_WAYS = ("fft", "tensor_cores", "implicit_precomp_gemm", "direct")


def fft(lab: Lab) -> Study:
    """Time Fourier transforms against the others over the size of the window."""
    rows: list[dict[str, Any]] = []
    for kernel in (3, 5, 7, 9, 11, 15, 21, 31):
        case = StudiedConv((1, 64, 64, 64), 64, kernel)
        lab.say(f"fft, {kernel}x{kernel}")
        feeds = case.feeds
        found = lab.ways(case.model(feeds), feeds, _FFT_WAYS)
        taken = found["fft"]
        row: dict[str, Any] = {"kernel": kernel}
        row |= {way: t.us for way, t in found.items() if isinstance(t, Taken)}
        if isinstance(taken, Taken):
            row["error"] = case.error(taken.result)
        rows.append(row)
    lines = {
        way: [(row["kernel"], row[way] / 1e3) for row in rows if way in row] for way in _FFT_WAYS
    }
    columns = (
        Column("kernel", "window", "d"),
        *(Column(way, way, ".1f") for way in _FFT_WAYS),
        Column("error", "error of fft", ".1e"),
    )
    return Study(
        "fft",
        "64 channels, 64 filters, 64x64 pixels, float32: the time of Fourier transforms hardly "
        "depends on the size of the window.",
        (Table("microseconds", columns, tuple(rows)),),
        tuple(_crossover(rows, way) for way in _FFT_WAYS[1:]),
        (Curves("fft", "Convolution by Fourier transforms", "side of the window", "ms", lines),),
    )


def _crossover(rows: list[dict[str, Any]], way: str) -> str:
    """Return from which window on Fourier transforms are faster than a way."""
    both = [row for row in rows if way in row and "fft" in row]
    behind = max((row["kernel"] for row in both if row["fft"] >= row[way]), default=0)
    first = next((row["kernel"] for row in both if row["kernel"] > behind), None)
    if first is None:
        return f"fft is nowhere faster than {way} here"
    return f"fft is faster than {way} from {first}x{first} on"


def winograd(lab: Lab) -> Study:
    """Count the multiplications of Winograd's algorithm, and measure its time and its error."""
    rows: list[dict[str, Any]] = []
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7), (128, 128)):
        case = StudiedConv((1, channels, size, size), channels, 3)
        lab.say(f"winograd, {case.title}")
        feeds = case.feeds
        model = case.model(feeds)
        straight = lab.take(model, feeds, "Conv", fetch=False, conv="implicit_precomp_gemm")
        for out in (2, 4):
            fused, apart = (
                lab.take(model, feeds, "Conv", conv=f"winograd_f{out}{end}")
                for end in ("", "_nonfused")
            )
            tiles = (-(-size // out)) ** 2
            rows.append(
                {
                    "case": f"{case.title}, F{out}",
                    "saved": 9 * size * size / ((out + 2) ** 2 * tiles),
                    "straight": straight.us,
                    "fused": fused.us,
                    "apart": apart.us,
                    "error": case.error(fused.result),
                    "error_apart": case.error(apart.result),
                }
            )
    columns = (
        Column("case", "convolution"),
        Column("saved", "fewer", ".2f"),
        Column("straight", "GEMM us", ".1f"),
        Column("fused", "fused us", ".1f"),
        Column("apart", "in steps us", ".1f"),
        Column("error", "error, fused", ".1e"),
        Column("error_apart", "in steps", ".1e"),
    )
    worst = {
        out: max(
            max(row["error"], row["error_apart"]) for row in rows if row["case"].endswith(f"F{out}")
        )
        for out in (2, 4)
    }
    return Study(
        "winograd",
        "3x3 windows with Winograd's minimal filtering, float32. *Fewer* is the ratio of the "
        "multiplications of the definition to those of all tiles, including those over the edge: "
        "at most 36 / 16 = 2.25 (F2) and 144 / 36 = 4 (F4). GEMM is implicit_precomp_gemm.",
        (Table("kernels alone", columns, tuple(rows)),),
        (
            f"maximum error of F2 {worst[2]:.1e} (at most 2e-6 wanted), of F4 {worst[4]:.1e} "
            "(at most 2e-5)",
        ),
    )


# ── more work ────────────────────────────────────────────────────────────────────────────────────


IMAGES, EXTENTS, FILTERS = (1, 2, 4, 8, 16, 32), (64, 128, 256), (128, 256)


def sweep(lab: Lab) -> Study:
    """Measure the arithmetic of a 3x3 convolution over images, their size and filters."""
    rows: list[dict[str, Any]] = []
    lines: dict[str, list[tuple[float, float]]] = {}
    for size, filters in product(EXTENTS, FILTERS):
        everything = normal(IMAGES[-1], 128, size, size)
        for images in IMAGES:
            case = StudiedConv((images, 128, size, size), filters, 3)
            lab.say(f"sweep, {case.title}")
            feeds = {"x": everything[:images]}
            taken = lab.take(case.model(feeds), feeds, "Conv", fetch=False)
            rate = case.flops / taken.seconds / 1e12
            lines.setdefault(f"{size}x{size}, K={filters}", []).append((images, rate))
            if images in (IMAGES[0], IMAGES[-1]):
                outputs = images * filters * size * size
                rows.append(
                    {
                        "case": case.title,
                        "outputs": outputs / 2**20,
                        "mib": 4 * outputs / 2**20,
                        "ms": taken.ms,
                        "rate": rate,
                        "kernel": taken.kernels,
                    }
                )
    columns = (
        Column("case", "convolution"),
        Column("outputs", "M outputs", ".1f"),
        Column("mib", "MiB", ".0f"),
        Column("ms", "ms", ".4f"),
        Column("rate", "TFLOP/s", ".1f"),
    )
    rising = sum(line[-1][1] > line[0][1] for line in lines.values())
    return Study(
        "sweep",
        "3x3 windows, 128 channels, float32, for 1 to 32 images of 64x64 to 256x256 pixels and K "
        "= 128 and 256 filters, with the kernel that the planner selects.",
        (Table("the ends of each line", columns, tuple(rows)),),
        (f"32 images give more TFLOP/s than one in {rising} of {len(lines)} lines",),
        (Curves("sweep", "More work, more TFLOP/s", "images", "TFLOP/s", lines),),
    )
