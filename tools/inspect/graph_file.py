"""Drawings of graphs: .svg and .html, and .dot for Graphviz."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...runtime.base.files import write_text
from ...runtime.errors import UsageError
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.plan.macs import macs
from ..common.console import count_text
from ..report.report_graph import GraphNode, graph_picture
from ..report.report_markup import Markup, element, figure, page
from ..report.report_style import STYLE

SUFFIXES = (".svg", ".html", ".dot")
#: Maximum number of nodes: larger images take minutes and are unreadable.
MAX_NODES = 3000


def check_graph_name(file: Path) -> None:
    """Raise UsageError unless a graph can be drawn to a file of this name."""
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--graph {file}: graphs are drawn to {', '.join(SUFFIXES)} files")


def write_graph(file: Path, graph: Graph, title: str) -> None:
    """Draw a graph: one box per node, redder with more MACs.

    Args:
        file: .svg, .html or .dot.
        graph: the graph, without control-flow bodies.
        title: of the image.

    Raises:
        UsageError: another kind of file, or too many nodes.
        OSError: the file cannot be written.
    """
    check_graph_name(file)
    suffix = file.suffix.lower()
    nodes, edges = parts_of(graph)
    if suffix == ".dot":
        text = _dot(nodes, edges, title)
    elif len(nodes) > MAX_NODES:
        raise UsageError(
            f"{len(nodes)} nodes are too many for a picture of {MAX_NODES} at most: write a .dot "
            "file, or cut a part out with `tercet extract`"
        )
    else:
        picture = graph_picture(nodes, edges, title)
        text = _html(picture, title) if suffix == ".html" else _svg(picture)
    write_text(file, text)


def parts_of(graph: Graph) -> tuple[list[GraphNode], list[tuple[int, int]]]:
    """Return the boxes of a graph, inputs and outputs included, and their edges."""
    costs = {node: macs(node) or 0 for node in graph.nodes}
    maximum = max(costs.values(), default=0) or 1
    boxes: list[GraphNode] = []
    makers: dict[Value, int] = {}
    edges: list[tuple[int, int]] = []
    for value in graph.inputs:
        makers[value] = len(boxes)
        boxes.append(_end(value.name, "input", value))
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
    style = element("style", Markup(f"{STYLE}svg {{ background: var(--page); }}"))
    start = picture.index(">") + 1
    return f"{picture[:start]}{style}{picture[start:]}\n"


def _html(picture: Markup, title: str) -> str:
    note = "Redder boxes multiply more. Hover for names, types and constants."
    whole = f"{STYLE}body {{ max-width: none; }} .scroll {{ max-height: none; }}"
    return page(title, whole, element("h1", title), figure("graph", "Graph", picture, note))


def _dot(nodes: Iterable[GraphNode], edges: Iterable[tuple[int, int]], title: str) -> str:
    lines = [f"digraph {_quoted(title)} {{", '  node [shape=box, fontname="sans-serif"];']
    for number, node in enumerate(nodes):
        shape = ", shape=ellipse" if node.end else ""
        label = f"{node.name}\n{node.detail}"
        lines.append(f"  n{number} [label={_quoted(label)}, tooltip={_quoted(node.title)}{shape}];")
    lines += [f"  n{first} -> n{second};" for first, second in dict.fromkeys(edges)]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
