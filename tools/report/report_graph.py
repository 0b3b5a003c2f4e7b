"""Layered drawings of graphs: nodes from top to bottom, edges leading down.

The usual four steps: the layer of a node is its longest path from a source; an edge over several
layers gets a bend in each; nodes are ordered within layers by sweeps that move them to the mean
position of their neighbours above, then below; and each node is placed near the median of its
neighbours, as far as adjacent ones permit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from .report_markup import Markup, element, svg
from .report_style import mixed

BOX, TALL, ACROSS, DOWN = 168.0, 36.0, 20.0, 26.0
BEND = 12.0
SWEEPS = 8
MARGIN = 12.0


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A box.

    Attributes:
        name: its first line.
        detail: its second line.
        title: shown on hover.
        heat: colour intensity from 0 to 1.
        end: whether it is a graph input or output.
    """

    name: str
    detail: str
    title: str
    heat: float = 0.0
    end: bool = False


@dataclass(slots=True, eq=False)
class _Place:
    """A node, or a bend of an edge, in its layer."""

    node: int | None
    layer: int
    above: list[_Place] = field(default_factory=list["_Place"])
    below: list[_Place] = field(default_factory=list["_Place"])
    x: float = 0.0

    @property
    def width(self) -> float:
        return BEND if self.node is None else BOX


def graph_picture(
    nodes: Sequence[GraphNode], edges: Iterable[tuple[int, int]], label: str
) -> Markup:
    """Return a drawing of a graph.

    Args:
        nodes: in topological order.
        edges: pairs of node indices, from producer to reader.
        label: of the drawing.
    """
    wanted = [edge for edge in dict.fromkeys(edges) if edge[0] != edge[1]]
    layers, chains = _layered(len(nodes), wanted)
    _order(layers)
    _settle(layers)
    places = {place.node: place for layer in layers for place in layer if place.node is not None}
    left = min((p.x - p.width / 2 for layer in layers for p in layer), default=0.0) - MARGIN
    right = max((p.x + p.width / 2 for layer in layers for p in layer), default=0.0) + MARGIN
    for layer in layers:
        for place in layer:
            place.x -= left
    parts = [element("path", d=_curve(chain), class_="edge") for chain in chains]
    parts += [_box(node, places[i]) for i, node in enumerate(nodes)]
    height = len(layers) * (TALL + DOWN) - DOWN + 2 * MARGIN
    return svg(right - left, max(height, 2 * MARGIN), label, parts)


def layers_of(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: the longest path from a source."""
    found = [0] * count
    for first, second in sorted(edges, key=lambda edge: edge[1]):
        found[second] = max(found[second], found[first] + 1)
    return found


def _layered(
    count: int, edges: Sequence[tuple[int, int]]
) -> tuple[list[list[_Place]], list[list[_Place]]]:
    """Return the layers, and the positions through which each edge runs."""
    numbers = layers_of(count, edges)
    reads: dict[int, list[int]] = {}
    for first, second in edges:
        reads.setdefault(first, []).append(numbers[second])
    led_to = {second for _, second in edges}
    for node in range(count):  # a source is placed right above its first reader
        if node in reads and node not in led_to:
            numbers[node] = min(reads[node]) - 1
    places = [_Place(node, numbers[node]) for node in range(count)]
    layers: list[list[_Place]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for place in places:
        layers[place.layer].append(place)
    chains: list[list[_Place]] = []
    for first, second in edges:
        chain = [places[first]]
        for layer in range(numbers[first] + 1, numbers[second]):
            bend = _Place(None, layer)
            layers[layer].append(bend)
            chain.append(bend)
        chain.append(places[second])
        for one, other in pairwise(chain):
            one.below.append(other)
            other.above.append(one)
        chains.append(chain)
    return layers, chains


def _order(layers: Sequence[list[_Place]]) -> None:
    """Sort each layer by the mean rank of its neighbours, alternately downwards and upwards."""
    rank: dict[_Place, float] = {}

    def number(layer: Sequence[_Place]) -> None:
        rank.update((place, float(at)) for at, place in enumerate(layer))

    for layer in layers:
        number(layer)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            means: dict[_Place, float] = {}
            for place in layer:
                near = place.above if downwards else place.below
                means[place] = sum(rank[p] for p in near) / len(near) if near else rank[place]
            layer.sort(key=means.__getitem__)
            number(layer)


def _settle(layers: Sequence[list[_Place]]) -> None:
    """Assign each position an x, near its neighbours and clear of adjacent ones."""
    for layer in layers:
        _clear(layer, [0.0] * len(layer))
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            wishes: list[float] = []
            for place in layer:
                near = place.above if downwards else place.below
                wishes.append(median(p.x for p in near) if near else place.x)
            _clear(layer, wishes)


def _clear(layer: Sequence[_Place], wishes: Sequence[float]) -> None:
    """Place positions as close to their targets as order and widths permit, on average."""

    def gap(at: int) -> float:
        return (layer[at - 1].width + layer[at].width) / 2 + ACROSS

    right = list(wishes)
    left = list(wishes)
    for at in range(1, len(layer)):
        right[at] = max(right[at], right[at - 1] + gap(at))
    for at in reversed(range(len(layer) - 1)):
        left[at] = min(left[at], left[at + 1] - gap(at + 1))
    for place, one, other in zip(layer, left, right, strict=True):
        place.x = (one + other) / 2


def _curve(chain: Sequence[_Place]) -> str:
    """Return a path from the bottom of the first position to the top of the last."""
    points: list[tuple[float, float]] = []
    for place in chain:
        top = MARGIN + place.layer * (TALL + DOWN)
        if place is not chain[0]:
            points.append((place.x, top))
        if place is not chain[-1]:
            points.append((place.x, top + TALL))
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 == x1:
            path.append(f"V{y1:.1f}")
        else:
            middle = (y0 + y1) / 2
            path.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    return "".join(path)


def _box(node: GraphNode, place: _Place) -> Markup:
    x, y = place.x - BOX / 2, MARGIN + place.layer * (TALL + DOWN)
    style, fill = (None, None) if node.end else (f"--heat: {node.heat:.0%}", mixed(node.heat))
    kind = "node ends" if node.end else "node heat"
    radius = TALL / 2 if node.end else 5.0
    lines = [(_fit(node.name, 22), y + 15, None), (_fit(node.detail, 25), y + 29, "soft small")]
    return element(
        "g",
        element("title", node.title),
        element(
            "rect",
            **{"x": x, "y": y, "width": BOX, "height": TALL, "rx": radius},
            **{"class_": kind, "style": style, "fill": fill},
        ),
        [
            element("text", text, x=place.x, y=at, text_anchor="middle", class_=class_ or None)
            for text, at, class_ in lines
        ],
    )


def _fit(text: str, maximum: int) -> str:
    return text if len(text) <= maximum else f"{text[: maximum - 1]}…"


# ── what a profile ran ───────────────────────────────────────────────────────────────────────────


def rows_picture(profile: Mapping[str, Any], label: str) -> Markup | None:
    """Return a drawing of a profiled model's rows; None if there are none.

    Rows in control-flow bodies are omitted: their owner stands for them.

    Args:
        profile: `Profile.to_dict`.
        label: of the drawing.
    """
    rows = [row for row in profile["rows"] if not row["owner"]]
    if not rows:
        return None
    whole = sum(row["ms"] or 0.0 for row in rows) or 1.0
    nodes: list[GraphNode] = []
    edges: list[tuple[int, int]] = []
    makers: dict[tuple[str, str], int] = {}
    unread: dict[tuple[str, str], int] = {}
    for row in rows:
        source, target = _ends(row)
        for key in [(name, source) for name in row["reads"] if (name, source) not in makers]:
            makers[key] = len(nodes)
            nodes.append(GraphNode(key[0], "input", f"input {key[0]}", end=True))
        for name in row["reads"]:
            unread.pop((name, source), None)
        edges += [(makers[name, source], len(nodes)) for name in row["reads"]]
        makers |= {(name, target): len(nodes) for name in row["writes"]}
        unread |= {(name, target): len(nodes) for name in row["writes"]}
        nodes.append(_row_node(row, whole))
    for (name, _), maker in unread.items():
        edges.append((maker, len(nodes)))
        nodes.append(GraphNode(name, "output", f"output {name}", end=True))
    return graph_picture(nodes, edges, label)


def _ends(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the devices that a row reads from and writes to."""
    if row["kind"] == "copy":
        source, _, target = row["kernel"].partition(" to ")
        return source, target
    return row["device"], row["device"]


def _row_node(row: Mapping[str, Any], whole: float) -> GraphNode:
    ms = row["ms"] or 0.0
    name = " + ".join(row["nodes"]) or ", ".join(row["reads"])
    kind = row["operators"] or row["kind"]
    where = f"{kind} on {row['backend']}, {row['kernel']}"
    title = f"{name}: {where}, {ms:.4g} ms, {ms / whole:.1%}"
    return GraphNode(kind, name, title, min(1.0, 3 * ms / whole))
