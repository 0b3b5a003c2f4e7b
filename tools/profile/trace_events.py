"""Trace event files for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...runtime.base.files import write_text
from .profile_rows import ProfiledRow
from .profiling import Profile

_HOST = 1


def trace_events(found: Profile) -> list[dict[str, Any]]:
    """Return the trace of the median run: a process per device, and a counter for its memory.

    The run is followed by its phases: feeding inputs, rows, fetching results. Memory is counted if
    the run is one plan. Rows start when the host called them, with the duration on their device.
    Times are microseconds from the start of the run.
    """
    devices = dict.fromkeys(["cpu", *(row.device for row in found.rows)])
    numbers = {device: _HOST + i for i, device in enumerate(devices)}
    events = [_name("process_name", number, device) for device, number in numbers.items()]
    events += [_name("thread_name", _HOST, "the run", 0), _name("thread_name", _HOST, "rows", 1)]
    start = found.recording.begin
    whole = found.recording.end - start
    events.append(_event("run", _HOST, 0, 0.0, whole, {"backend": found.backend}))
    fed, fetched = found.recording.feed, whole - found.recording.fetch
    phases = ("feed", 0.0, fed), ("rows", fed, fetched), ("fetch", fetched, whole)
    for phase, begin, end in phases:
        events.append(_event(phase, _HOST, 0, begin, end - begin, {}))
    one_plan = not any(arena.plan for arena in found.arenas)
    arenas = {arena.device: arena.live() for arena in found.arenas if one_plan}
    for span in found.recording.spans:
        number = found.keys.get(span.key)
        if number is None:
            continue
        row = found.rows[number]
        begin = span.begin - start
        events.append(_event(row.title, numbers[row.device], 1, begin, span.seconds, _about(row)))
        for device, live in arenas.items():
            args = {"live": live[number]}
            events.append(_counter(f"arena on {device}", numbers[device], begin, args))
    return events


def write_trace(found: Profile, file: Path) -> None:
    """Write a trace file; open it at ui.perfetto.dev or chrome://tracing."""
    data = {"traceEvents": trace_events(found), "displayTimeUnit": "ms"}
    write_text(file, json.dumps(data))


def _about(row: ProfiledRow) -> dict[str, Any]:
    found = {
        "operators": row.operators,
        "kernel": row.kernel,
        "inputs": ", ".join(row.inputs),
        "outputs": ", ".join(row.outputs),
        "MACs": row.macs,
        "bytes": row.nbytes,
        "body of": row.owner,
    }
    return {name: value for name, value in found.items() if value}


def _event(
    name: str, process: int, thread: int, begin: float, seconds: float, about: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": begin * 1e6,
        "dur": seconds * 1e6,
        "args": about,
    }


def _counter(name: str, process: int, begin: float, values: dict[str, int]) -> dict[str, Any]:
    return {"name": name, "ph": "C", "pid": process, "ts": begin * 1e6, "args": values}


def _name(kind: str, process: int, name: str, thread: int = 0) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
