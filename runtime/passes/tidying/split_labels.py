"""Splits string labels off classifiers: classes are found as numbers, which devices can hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...ir.graph import Graph, Node
from ...ir.infer import infer_node
from ...ir.op import Op
from ...ops.ml import LabelEncoder, LinearClassifier, SVMClassifier
from ...ops.ml_trees import TreeEnsembleClassifier
from ..driver import Context
from ..editing import Builder


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a classifier with string labels by one with integers and a LabelEncoder."""
    for node in list(graph.nodes):
        texts = getattr(node.op, "classlabels_strings", None)
        numbered = _numbered(node.op, len(texts or ()))
        if not texts or numbered is None:
            continue
        classifier = _stand_in(graph, node, numbered, texts)
        yield f"LabelEncoder names the {len(texts)} classes of '{classifier.name}'"


def _numbered(op: Op, count: int) -> Op | None:
    """Return the classifier with classes numbered from 0."""
    names = tuple(range(count))
    if isinstance(op, TreeEnsembleClassifier):
        return replace(op, classlabels_strings=None, classlabels_int64s=names)
    if isinstance(op, LinearClassifier | SVMClassifier):
        return replace(op, classlabels_strings=None, classlabels_ints=names)
    return None


def _stand_in(graph: Graph, node: Node, numbered: Op, texts: tuple[str, ...]) -> Node:
    name = node.name
    build = Builder(graph, node, origin=(node,))
    made = build.node(numbered, *node.inputs, outputs=len(node.outputs))
    encoder = LabelEncoder(keys_int64s=tuple(range(len(texts))), values_strings=texts)
    named = build.node(encoder, made.outputs[0])
    infer_node(named)
    graph.replace(node, (named.output, *made.outputs[1:]))
    graph.rename(made, name)
    return made
