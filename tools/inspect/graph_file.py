"""Drawings of graphs: .svg and .html, and .dot for Graphviz.

A page and a .dot file have the bodies of control flow behind the graph; an .svg file is one graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...runtime.base.files import write_text
from ...runtime.errors import UsageError
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import body_names
from ...runtime.plan.macs import macs
from ..common.console import count_text
from ..report.report_graph import GraphNode, graph_picture
from ..report.report_markup import Markup, element, figure, page
from ..report.report_style import DRAWING, LIGHT, STYLE

SUFFIXES = (".svg", ".html", ".dot")
#: Maximum number of nodes: larger images take minutes and are unreadable.
MAX_NODES = 3000


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The boxes and edges of one graph; the caption is empty for that of the model."""

    caption: str
    nodes: list[GraphNode]
    edges: list[tuple[int, int]]


def check_graph_name(file: Path) -> None:
    """Raise UsageError unless a graph can be drawn to a file of this name."""
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--graph {file}: graphs are drawn to {', '.join(SUFFIXES)} files")


def write_graph(file: Path, graph: Graph, title: str) -> None:
    """Draw a graph: one box per node, redder with more MACs.

    Args:
        file: .svg, .html or .dot.
        graph: the graph.
        title: of the image.

    Raises:
        UsageError: another kind of file, or too many nodes.
        OSError: the file cannot be written.
    """
    check_graph_name(file)
    suffix = file.suffix.lower()
    drawings = [next(_drawings(graph))] if suffix == ".svg" else [*_drawings(graph)]
    count = sum(len(each.nodes) for each in drawings)
    if suffix == ".dot":
        text = _dot(drawings, title)
    elif count > MAX_NODES:
        raise UsageError(
            f"{count} nodes are too many for a picture of {MAX_NODES} at most: write a .dot "
            "file, or cut a part out with `tercet extract`"
        )
    elif suffix == ".html":
        text = _html(drawings, title)
    else:
        text = _svg(graph_picture(drawings[0].nodes, drawings[0].edges, title))
    write_text(file, text)


def _drawings(graph: Graph, caption: str = "") -> Iterator[_Drawing]:
    """Draw a graph, then the bodies of each of its nodes with theirs."""
    yield _Drawing(caption, *parts_of(graph))
    for node in graph.nodes:
        for name in body_names(type(node.op)):
            if (body := getattr(node.op, name)) is not None:
                yield from _drawings(body, f"{name} of {node.name} ({node.kind})")


def parts_of(graph: Graph) -> tuple[list[GraphNode], list[tuple[int, int]]]:
    """Return the boxes of a graph, inputs and outputs included, and their edges."""
    costs = {node: macs(node) or 0 for node in graph.nodes}
    maximum = max(costs.values(), default=0) or 1
    boxes: list[GraphNode] = []
    makers: dict[Value, int] = {}
    edges: list[tuple[int, int]] = []
    ends = [("input", value) for value in graph.inputs]
    ends += [("outer value", value) for value in graph.captures]
    for kind, value in ends:
        makers[value] = len(boxes)
        boxes.append(_end(value.name, kind, value))
    for node in graph.nodes:
        sources = (makers[value] for value in node.distinct_reads if value in makers)
        edges.extend((source, len(boxes)) for source in sources)
        makers |= dict.fromkeys(node.outputs, len(boxes))
        boxes.append(_box(node, costs[node], maximum))
    for name, value in graph.outputs.items():
        if value in makers:
            edges.append((makers[value], len(boxes)))
        boxes.append(_end(name, "output", value))
    return boxes, edges


def _end(name: str, kind: str, value: Value) -> GraphNode:
    return GraphNode(name, str(value.type or "?"), f"{kind} {name}: {value.type or '?'}", end=True)


def _box(node: Node, cost: int, maximum: int) -> GraphNode:
    types = ", ".join(str(value.type or "?") for value in node.outputs)
    constants = ", ".join(f"{v.name} {v.type}" for v in node.distinct_reads if v.is_constant)
    said = [f"{node.name}: {node.kind}{node.signature()}"]
    said += [f"{count_text(cost)} MACs"] if cost else []
    said += [f"constants: {constants}"] if constants else []
    return GraphNode(node.kind, types, "\n".join(said), 0.6 * cost / maximum)


def _svg(picture: Markup) -> str:
    """Return an image with its own colours, for light and dark viewers."""
    style = element("style", Markup(f"svg {{ background: {LIGHT['page']}; }}{DRAWING}"))
    start = picture.index(">") + 1
    return f"{picture[:start]}{style}{picture[start:]}\n"


def _html(drawings: Iterable[_Drawing], title: str) -> str:
    note = "Redder boxes multiply more. Hover for names, types and constants."
    whole = f"{STYLE}body {{ max-width: none; }} .scroll {{ max-height: none; }}"
    figures = [
        figure("graph", each.caption, graph_picture(each.nodes, each.edges, each.caption))
        if each.caption
        else figure("graph", "Graph", graph_picture(each.nodes, each.edges, title), note)
        for each in drawings
    ]
    return page(title, whole, element("h1", title), figures)


def _dot(drawings: Iterable[_Drawing], title: str) -> str:
    lines = [f"digraph {_quoted(title)} {{", '  node [shape=box, fontname="sans-serif"];']
    for number, each in enumerate(drawings):
        begin = [f"subgraph cluster_{number} {{", f"label={_quoted(each.caption)};"]
        parts = _dot_parts(each, f"b{number}_" if each.caption else "n")
        lines += [f"  {part}" for part in ([*begin, *parts, "}"] if each.caption else parts)]
    return "\n".join([*lines, "}"]) + "\n"


def _dot_parts(drawing: _Drawing, prefix: str) -> Iterator[str]:
    for number, node in enumerate(drawing.nodes):
        shape = ", shape=ellipse" if node.end else ""
        label = f"{node.name}\n{node.detail}"
        yield f"{prefix}{number} [label={_quoted(label)}, tooltip={_quoted(node.title)}{shape}];"
    for first, second in dict.fromkeys(drawing.edges):
        yield f"{prefix}{first} -> {prefix}{second};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
