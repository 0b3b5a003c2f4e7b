"""The first node of a model that a runtime does not survive."""

from __future__ import annotations

from collections.abc import Callable

from onnx import ModelProto, NodeProto, helper

from ..common.search import smallest


def fatal_node(model: ModelProto, is_fatal: Callable[[ModelProto], bool]) -> NodeProto | None:
    """Return the first node that ends a runtime, by bisection of the model's length.

    Args:
        model: its nodes in order; it is shortened.
        is_fatal: whether a runtime ends in a model of its first nodes, all of whose results that no
            other node reads are outputs.

    Returns:
        None if it ends for the original outputs alone.
    """
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]

    def ends(count: int) -> bool:
        made = [name for node in nodes[:count] for name in node.output if name]
        read = {name for node in nodes[:count] for name in node.input}
        del model.graph.output[:], model.graph.node[:]
        model.graph.node.extend(nodes[:count])
        model.graph.output.extend(
            helper.make_empty_tensor_value_info(name) for name in made if name not in read
        )
        return is_fatal(model)

    if not nodes:
        return None
    count = smallest(len(nodes), ends)
    return nodes[count - 1] if count < len(nodes) or ends(count) else None
