"""The sections of a report, each made from one command's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from ..common.console import bytes_text, count_text, ms_text
from .report_charts import Bar, Cell, Dot, arena_map, bars, heat_map, roofline, strip
from .report_graph import rows_picture
from .report_markup import Content, Markup, Part, element, facts, figure, table

Found = Mapping[str, Any]

WORST, SLOWEST = 20, 25
_OF_FILE = "the steps are those of the file's graph: the optimised one lacks the wrong node"
_UNREAD = "what importing the file changes has not been compared"


def _section(name: str, title: str, *parts: Content) -> Markup:
    return element("section", element("h2", title), *parts, id=name)


def _number(value: float | None, form: str = ".2g") -> str:
    return "-" if value is None or not isfinite(value) else format(value, form)


def _ms(value: float | None) -> str:
    return "-" if value is None else ms_text(value / 1e3)


def _inputs(found: Found) -> str:
    return "\n".join(
        f"{i['name']} {i['dtype']}{i['shape']}, {i['origin']}" for i in found["inputs"]
    )


# ── compare ──────────────────────────────────────────────────────────────────────────────────────


def compare_section(found: Sequence[Found]) -> Markup:
    """Return the section on runners' latencies and differences."""
    return _section("compare", "Runners", [_comparison(one) for one in found])


def _comparison(found: Found) -> list[Markup]:
    runs = [c for c in found["runners"] if c["steady_ms"]["median"] is not None]
    latencies = [_bar(c["name"], c["steady_ms"]) for c in runs]
    rows = [
        (
            output["output"],
            runner["name"],
            _number(output["max_abs"], ".1e"),
            _number(output["max_rel"], ".1e"),
            _number(output["rel_l2"], ".1e"),
            *_spread(output.get("differences") or {}),
            _verdict(output["verdict"], output.get("reason", "")),
        )
        for runner in found["runners"]
        for output in runner["outputs"]
    ]
    phases = [
        (
            c["name"],
            c["about"],
            *(_ms(c[name]) for name in ("load_ms", "cold_ms")),
            _number(c.get("error"), ".1e"),
        )
        for c in found["runners"]
    ]
    titles = ("output", "against", "max abs", "max rel", "rel L2", *_SPREAD, "verdict")
    note = "Median, with a whisker from the 10th to the 90th percentile."
    return [
        element("h3", found["model"]),
        facts([("reference", found["reference"]), ("inputs", _inputs(found))]),
        element("p", "verdict: ", _verdict(found["verdict"])),
        figure("latency", "Latency of a run", bars(latencies, "latency by runner"), note),
        table(("runner", "what it is", "load ms", "cold ms", "from float64"), phases, left=2),
        table(titles, rows, left=2),
    ]


def _verdict(word: str, reason: str = "") -> Markup:
    """Return a coloured verdict, with the reason on hover."""
    kinds = {"MISMATCH": "bad", "wrong": "bad", "not run": "bad", "inconclusive": "unsure"}
    said = {"title": reason} if reason else {}
    return element("span", word, class_=kinds.get(word, "good"), **said)


#: Column titles of `_spread`.
_SPREAD = ("median", "99 % below", "cosine", "PSNR", "ulp", "top-1", "top-5")


def _spread(found: Found) -> tuple[str, ...]:
    ulp = found.get("ulp")
    return (
        *(_number(found.get(name), ".1e") for name in ("median", "p99")),
        _number(found.get("cosine"), ".6f"),
        _number(found.get("psnr"), ".0f"),
        "-" if ulp is None else count_text(ulp),
        *(_number(found.get(name), ".1%") for name in ("top1", "top5")),
    )


def _bar(label: str, times: Found, note: str = "", kind: str = "") -> Bar:
    middle = times.get("median", times.get("p50"))
    return Bar(label, times["p10"], middle, times["p90"], note, kind)


# ── layers ───────────────────────────────────────────────────────────────────────────────────────


def layers_section(found: Sequence[Found]) -> Markup:
    """Return the section with a heat map of errors by layer, and the worst layers."""
    found = [each for one in found for each in (one, *one.get("others", ()))]
    lines = {f"{i + 1}. {one['runner']}, {one['mode']}": _cells(one) for i, one in enumerate(found)}
    note = (
        "Relative L2 distance from the reference, one column a step in the order of execution; "
        "framed where it is more than rounding. Hover for the step."
    )
    picture = (
        figure("heat", "Error by layer", heat_map(lines, "error by layer"), note)
        if any(lines.values())
        else None
    )
    return _section("layers", "Layers", picture, [_layers(one) for one in found])


def _cells(found: Found) -> list[Cell]:
    cells: list[Cell] = []
    for layer in found["layers"]:
        errors = [tensor["rel_l2"] for tensor in layer["tensors"]]
        value = max((e for e in errors if e is not None), default=None)
        if not errors:
            value = 0.0
        name = " + ".join(layer["nodes"])
        title = f"{layer['number']}. {name} ({layer['operators']}): {_number(value, '.1e')}, "
        cells.append(
            Cell(title + layer["verdict"], value, layer["verdict"] in ("wrong", "not run"))
        )
    return cells


def _layers(found: Found) -> list[Markup]:
    ranked = sorted(found["layers"], key=_excess, reverse=True)
    shown = [layer for layer in ranked if _excess(layer) > 0][:WORST]
    rows = [_layer_row(layer) for layer in shown]
    titles = ("step", "nodes", "operators", "verdict", "rel L2", "max abs", "of rounding")
    return [
        element("h3", f"{found['runner']} against {found['reference']}, {found['mode']}"),
        facts([("model", found["model"]), ("against", found["other"]), ("inputs", _inputs(found))]),
        element("p", "verdict: ", _verdict(found["verdict"]), _first(found)),
        *(element("p", said) for said in _remarks(found)),
        table(titles, rows, left=4),
    ]


def _remarks(found: Found) -> list[str]:
    """Return what is known besides the steps, in sentences."""
    where = f", first in {found['imported_in']}" if found["imported_in"] else ""
    lists = (
        ("whole", "{} of the whole graph, of which no step is wrong alone"),
        ("rewritten", "a graph pass changes {}"),
        ("imported", f"importing changes {{}}{where}"),
    )
    return [
        *(
            f"{words.format(each['output'])}: {each['reason']}"
            for name, words in lists
            for each in found[name]
        ),
        *(
            f"{' + '.join(layer['nodes'])} was not run: {layer['refused']}"
            for layer in found["layers"]
            if layer["refused"]
        ),
        *([f"the first NaN on {found['runner']} is from {found['nan']}"] if found["nan"] else []),
        *([_OF_FILE] if found["of_file"] else []),
        *([f"{_UNREAD}: {found['unread']}"] if found["unread"] else []),
        *([f"not complete: {found['stopped']}"] if found["stopped"] else []),
    ]


def _first(found: Found) -> str:
    return f"; the first step that is wrong is {found['first']}" if found["first"] else ""


def _excess(layer: Found) -> float:
    """Return the difference relative to the allowed one; JSON has null for infinity."""
    return float("inf") if layer["excess"] is None else layer["excess"]


def _layer_row(layer: Found) -> Sequence[Part]:
    worst = max(layer["tensors"], key=_excess, default=None)
    numbers = ("-", "-") if worst is None else (worst["rel_l2"], worst["max_abs"])
    texts = (n if isinstance(n, str) else _number(n, ".1e") for n in numbers)
    return (
        str(layer["number"]),
        " + ".join(layer["nodes"]),
        layer["operators"],
        _verdict(layer["verdict"], "" if worst is None else worst["reason"]),
        *texts,
        "∞" if layer["excess"] is None else f"{layer['excess']:.1%}",
    )


# ── profile ──────────────────────────────────────────────────────────────────────────────────────


def profile_section(found: Sequence[Found]) -> Markup:
    """Return the section on where time is spent, relative to the machine's peaks."""
    return _section("profile", "Profile", [_profile(one) for one in found])


def _profile(found: Found) -> list[Content]:
    total = found["total_ms"]
    cover = f"{found['covered']:.1%} of a run; profiling overhead {found['overhead']:+.1%}"
    phases = ", ".join(f"{name} {_ms(ms)} ms" for name, ms in found["phases_ms"].items() if ms)
    parts = [
        (" + ".join(row["nodes"]) or row["kernel"], row["operators"] or row["kind"], row["ms"])
        for row in found["rows"]
        if row["ms"]
    ]
    graph = rows_picture(found, "the graph that ran")
    return [
        element("h3", f"{found['model']} on {found['backend']}, {found['precision']}"),
        facts(
            [
                (
                    "run",
                    f"{_ms(total['median'])} ms, {total['runs']} uninstrumented runs",
                ),
                ("phases", phases),
                ("rows, feed and fetch", cover),
                ("inputs", _inputs(found)),
                *found["environment"].items(),
            ]
        ),
        figure("strip", "A run from beginning to end", strip(parts, "rows by time"))
        if parts
        else None,
        _operators(found),
        _lost(found),
        [_roofline(found, peaks) for peaks in found["peaks"]],
        _slowest(found),
        [_arena(arena) for arena in _largest(found["arenas"])],
        None
        if graph is None
        else figure("graph", "The graph that ran", graph, "Redder boxes take longer."),
    ]


def _operators(found: Found) -> Markup:
    whole = found["rows_ms"] or 1.0
    rows = [
        (
            share["name"],
            str(share["rows"]),
            _ms(share["ms"]),
            f"{share['ms'] / whole:.1%}",
            f"{share['macs'] / share['ms'] / 1e6:.1f}" if share["macs"] and share["ms"] else "",
            f"{share['nbytes'] / share['ms'] / 1e6:.1f}" if share["nbytes"] and share["ms"] else "",
        )
        for share in found["by_operator"]
    ]
    return table(("operator", "rows", "ms", "share", "GMAC/s", "GB/s"), rows)


def _lost(found: Found) -> Markup | None:
    """Return the table of kinds of kernels, those first that lose most; None without limits."""
    if not found["peaks"]:
        return None
    rows = [
        (
            share["name"],
            str(share["rows"]),
            _ms(share["ms"]),
            _ms(share["limit_ms"]),
            "" if share["roof"] is None else f"{share['roof']:.0%}",
            _ms(share["lost_ms"]),
        )
        for share in found["by_kernel"]
    ]
    return table(("kernel", "rows", "ms", "within the limit", "of limit", "lost"), rows)


def _roofline(found: Found, peaks: Found) -> Markup | None:
    whole = found["rows_ms"] or 1.0
    dots = [
        Dot(
            " + ".join(row["nodes"]),
            row["operators"],
            row["intensity"],
            2e3 * row["macs"] * row["calls"] / row["ms"],
            row["ms"] / whole,
        )
        for row in found["rows"]
        if row["device"] == peaks["device"] and row["macs"] and row["ms"] and row["nbytes"]
    ]
    if not dots:
        return None
    dots.sort(key=lambda dot: -(dot.share or 0.0))
    note = (
        "Each row that multiplies, by FLOP for each byte of inputs, outputs and constants; its "
        "area is its share of the time. The roof is what this machine was measured to copy and to "
        "multiply. A dot may be above it where a cache holds the data, or where an algorithm "
        "multiplies less than the specification."
    )
    picture = roofline(dots, peaks["copy"], peaks["flops"], f"roofline of {peaks['device']}")
    return figure("roofline", f"Roofline of {peaks['device']}", picture, note)


def _slowest(found: Found) -> Markup:
    whole = found["rows_ms"] or 1.0
    rows = sorted((row for row in found["rows"] if row["ms"]), key=lambda row: -row["ms"])
    cells = [
        (
            " + ".join(row["nodes"]) or ", ".join(row["reads"]),
            row["operators"] or row["kind"],
            row["kernel"],
            _ms(row["ms"]),
            f"{row['ms'] / whole:.1%}",
            count_text(row["macs"]) if row["macs"] else "",
            bytes_text(row["nbytes"]) if row["nbytes"] else "",
            "" if row["roof"] is None else f"{row['roof']:.0%} {row['bound']}",
        )
        for row in rows[:SLOWEST]
    ]
    titles = ("node", "operator", "kernel", "ms", "share", "MACs", "bytes", "of limit")
    return table(titles, cells, left=3)


def _largest(arenas: Sequence[Found]) -> list[Found]:
    found: dict[str, Found] = {}
    for arena in sorted(arenas, key=lambda arena: -arena["nbytes"]):
        if arena["nbytes"]:
            found.setdefault(arena["device"], arena)
    return list(found.values())


def _arena(arena: Found) -> Markup:
    note = "Tensors by row, from left to right, and by address. Hover for names."
    title = f"Arena on {arena['device']}, {bytes_text(arena['nbytes'])}"
    return figure("arena", title, arena_map(arena, f"arena of {arena['device']}"), note)


# ── bench ────────────────────────────────────────────────────────────────────────────────────────


def bench_section(found: Sequence[Found]) -> Markup:
    """Return the section on latencies, rates and errors of benchmarks."""
    return _section("bench", "Benchmark", [_bench(one) for one in found])


def _bench(found: Found) -> list[Content]:
    models = dict.fromkeys(case["model"] for case in found["cases"])
    failed = [element("p", text, class_="bad") for text in found["complaints"]]
    pictures = [
        part
        for model in models
        for part in _bench_model(model, [c for c in found["cases"] if c["model"] == model])
    ]
    return [
        facts(found["environment"].items()),
        failed,
        pictures,
        _against(found.get("against", [])),
    ]


def _bench_model(model: str, cases: Sequence[Found]) -> list[Markup]:
    latencies = [
        _bar(_who(case), case["steady_ms"], _error_text(case), case["runner"]) for case in cases
    ]
    rows = [
        (
            _who(case),
            *(_ms(case[name]) for name in ("load_ms", "cold_ms", "warm_ms")),
            *(_ms(case["steady_ms"][name]) for name in ("p10", "p50", "p90", "p99")),
            _ms(case["device_ms"]["p50"]) if case["device_ms"] else "",
            _rate(case["items_per_second"]),
            _number(case["error"], ".1e"),
        )
        for case in cases
    ]
    titles = ("load ms", "cold", "warm", "p10", "p50", "p90", "p99", "device", "items/s", "error")
    note = "Median, with a whisker from the 10th to the 90th percentile; error against float64."
    return [
        element("h3", model),
        figure("latency", "Latency", bars(latencies, f"latency of {model}"), note),
        table(("runner", *titles), rows),
    ]


def _error_text(case: Found) -> str:
    return "" if case["error"] is None else f"error {case['error']:.0e}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _who(case: Found) -> str:
    parts = [case["runner"], f"batch {case['batch']}"]
    if case["precision"] != "float32":
        parts.append(case["precision"])
    if case["concurrency"] != 1:
        parts.append(f"{case['concurrency']} callers")
    return ", ".join(parts)


def _against(found: Sequence[Found]) -> Markup | None:
    if not found:
        return None
    styles = {"faster": "good", "slower": "bad"}
    rows = [
        (
            f"{each['model']}, {_who(each)}",
            _ms(each["before"]),
            _ms(each["after"]),
            f"{each['ratio']:.2f}",
            element("span", each["verdict"], class_=styles.get(each["verdict"])),
        )
        for each in found
    ]
    return table(("since then", "p50 before", "p50 now", "ratio", ""), rows)
