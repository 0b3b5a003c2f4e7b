"""Bucketing of growing sizes: see `rewriting`, which is imported when sizes grow."""

from ...ir.graph import Graph
from .bucket import Bucket

__all__ = ["Bucket", "bucketed"]


def bucketed(graph: Graph, room: int) -> Bucket:
    """Rewrite a graph with growing sizes to a bucket, in place; see `rewriting.bucketed`."""
    from . import rewriting

    return rewriting.bucketed(graph, room)
