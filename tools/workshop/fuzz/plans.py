"""Everything that is decided about a model, as text: its graph, and its plans with every address.

    PYTHONHASHSEED=1 python -m tercet.tools.workshop.fuzz.plans --graphs 100 --seed 1 > 1.txt

Plans must not depend on the order of sets, on hashes or addresses of objects, or on what was loaded
before: two processes print the same.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ....api import Loadable, load
from ....backends.numpy import NumpyBackend
from ....runtime.errors import TercetError
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.options import Precision
from ....runtime.plan.arena import Allocation, aligned, pack
from ....runtime.plan.backend import Backend
from ....runtime.plan.host import HOST
from ....runtime.plan.layout import lay_out
from ....runtime.plan.plan import Plan
from ....runtime.plan.rows import Layout, Slot, lives_of
from ....runtime.plan.streams import assign
from ....runtime.plan.weights import WeightStore
from ....runtime.session.model import Model
from ....runtime.session.placement import placement_of
from ...inspect.paper import paper_backend, target_of
from .graphs import random_model

STREAMS = 4
PRECISIONS: tuple[Precision, ...] = ("float32", "float16")


def described(
    source: Loadable,
    shapes: Mapping[str, tuple[int, ...]],
    targets: Sequence[str] = (),
    precision: Precision = "float32",
) -> Iterator[str]:
    """Yield the optimised graph and the plans of a model, line by line.

    Args:
        source: the model.
        shapes: of its inputs.
        targets: GPUs to plan for besides numpy, such as ``sm_90a``.
        precision: see `tercet.load`.
    """
    with load(source, precision=precision) as model:
        yield from _graph(model.graph)
        for target in ("", *targets):
            yield f"plan for {target or 'numpy'}"
            yield from _plans(model, shapes, target)


def _graph(graph: Graph, indent: str = "") -> Iterator[str]:
    for node in graph.nodes:
        given = (*node.inputs, *node.captures)
        reads = ", ".join("_" if value is None else _text(value) for value in given)
        yield f"{indent}{node.name} {node.origin} {_text(node.op)} {reads} -> {node.outputs}"
        for body in node.op.graphs():
            yield from _graph(body, indent + "  ")


def _plans(model: Model, shapes: Mapping[str, tuple[int, ...]], target: str) -> list[str]:
    front = (paper_backend(target_of(target)),) if target else ()
    backends: tuple[Backend, ...] = (*front, NumpyBackend())
    found: list[str] = []

    def note(plan: Plan) -> Iterator[Any]:
        stores = {device: WeightStore(device) for device in {b.device for b in backends} | {HOST}}
        options = replace(model.options, tune=False)
        layout, offered = lay_out(plan.graph.clone(), backends, options, stores)
        found.extend(_layout(layout))
        found.extend(map(str, offered.refusals))
        yield from ()

    placement_of(model.prepare(dict(shapes)), note)
    return found


def _layout(layout: Layout) -> Iterator[str]:
    lives = lives_of(layout, assign(layout.rows, STREAMS).begins)
    roots = [slot for slot in layout.slots if slot.alias is None and slot in lives]
    blocks = {slot: Allocation(aligned(slot.nbytes), *lives[slot]) for slot in roots}
    for device in dict.fromkeys(slot.device for slot in roots):
        size = pack([blocks[slot] for slot in roots if slot.device is device])
        yield f"{device.name} {size} bytes"

    def place(slot: Slot) -> str:
        at = blocks[slot.root].offset if slot.root in blocks else None
        parts = (slot.type, slot.format.name, slot.pitch, at, slot.offset_in_root)
        return f"{slot.value.name} {' '.join(map(str, parts))}"

    for row in layout.rows:
        slots = (", ".join(map(place, each)) for each in (row.inputs, row.outputs))
        names = " + ".join(node.name for node in row.nodes)
        title = f"{row.kind} {row.backend} {row.kernel} {names} stream {row.stream}"
        yield f"{title}: {' -> '.join(slots)}"
        yield from (f"  {_text(launch)}" for launch in getattr(row.step, "launches", ()))


def _text(thing: Any) -> str:
    """Return a text without addresses of objects; long data by a hash."""
    if isinstance(thing, Value):
        return f"%{thing.name}" if thing.data is None else f"%{thing.name}={_text(thing.data)}"
    if isinstance(thing, Node):
        return thing.name
    if isinstance(thing, Graph):
        return "graph"
    if isinstance(thing, np.ndarray):
        data = repr(thing.tolist()).encode() if thing.dtype.kind in "OUT" else thing.tobytes()
        return f"{thing.dtype}{list(thing.shape)} {sha256(data).hexdigest()[:16]}"
    if is_dataclass(thing) and not isinstance(thing, type):
        parts = (f"{each.name}={_text(getattr(thing, each.name))}" for each in fields(thing))
        return f"{type(thing).__name__}({', '.join(parts)})"
    if isinstance(thing, Mapping):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in thing.items())}}}"
    if isinstance(thing, tuple | list):
        return f"[{', '.join(map(_text, thing))}]"
    if callable(thing):
        return getattr(thing, "__qualname__", type(thing).__name__)
    return str(thing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; always returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=20, help="how many random ones")
    parser.add_argument("--seed", type=int, default=0, help="number of the campaign")
    parser.add_argument("--backwards", action="store_true", help="the last one first")
    parser.add_argument("--target", action="append", default=[], help="also plan for a GPU")
    parser.add_argument("files", type=Path, nargs="*", help="models, whose sizes are known")
    given = parser.parse_args(arguments)
    sources: list[tuple[str, Loadable, Mapping[str, tuple[int, ...]]]] = [
        (str(file), file, {}) for file in given.files
    ]
    for number in range(given.graphs):
        proto, feeds = random_model(1_000_000 * given.seed + number)
        sources.append((str(number), proto, {name: data.shape for name, data in feeds.items()}))
    found: dict[tuple[str, str], list[str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, source, shapes in reversed(sources) if given.backwards else sources:
            for precision in PRECISIONS:
                try:
                    lines = list(described(source, shapes, given.target, precision))
                except TercetError as error:
                    lines = [f"{type(error).__name__}: {error}"]
                found[name, precision] = lines
    for name, precision in sorted(found):
        print(f"model {name} in {precision}", *found[name, precision], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
