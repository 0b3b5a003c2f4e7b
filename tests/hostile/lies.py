"""Declarations that are wrong: every kind of lie about the results of a model's nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import GraphProto, ModelProto, TensorProto, TypeProto, helper

#: From the true dims of a tensor to those that the file declares.
Lie = Callable[[Sequence[int]], Sequence[int | str]]

LIES: dict[str, Lie] = {
    "greater": lambda dims: [3 * d + 2 for d in dims] or [5],
    "one axis much greater": lambda dims: [3000, *dims[1:]] if dims else [3000],
    "smaller": lambda dims: [max(1, d // 2) for d in dims],
    "higher rank": lambda dims: [*dims, 3],
    "lower rank": lambda dims: [*dims[1:]],
    "one vector": lambda dims: [70000],
    "empty": lambda dims: [0] * max(1, len(dims)),
    "equal symbols": lambda dims: ["n"] * len(dims),
    "symbols of inputs, reversed": lambda dims: [f"d{i}" for i in range(len(dims))][::-1],
}


def dims_of(type_: TypeProto) -> list[int]:
    """Return the declared dims, 2 for those that are not integers."""
    return [d.dim_value or 2 for d in type_.tensor_type.shape.dim]


def declare(type_: TypeProto, dims: Sequence[int | str] | None, other_dtype: bool = False) -> None:
    """Declare a tensor, or the tensors in a sequence or an optional, with other dims.

    Args:
        type_: changed in place.
        dims: None for a declaration without a shape.
        other_dtype: whether to declare another element type, too.
    """
    if type_.HasField("sequence_type"):
        declare(type_.sequence_type.elem_type, dims, other_dtype)
    elif type_.HasField("optional_type"):
        declare(type_.optional_type.elem_type, dims, other_dtype)
    elif type_.HasField("tensor_type"):
        element = type_.tensor_type.elem_type
        if other_dtype:
            element = TensorProto.INT64 if element != TensorProto.INT64 else TensorProto.FLOAT
        type_.CopyFrom(helper.make_tensor_type_proto(element, dims))


def observed(model: ModelProto) -> ModelProto:
    """Return a model whose results are inner values, too, that a view and a Shape read."""
    made = ModelProto()
    made.CopyFrom(model)
    if not any(each.domain in ("", "ai.onnx") for each in made.opset_import):
        made.opset_import.add(version=21)
    graph = made.graph
    for info in list(graph.output):
        if not info.type.HasField("tensor_type"):
            continue
        graph.value_info.append(info)
        seen, shape = f"{info.name}/seen", f"{info.name}/shape"
        graph.node.append(helper.make_node("Identity", [info.name], [seen]))
        graph.node.append(helper.make_node("Shape", [seen], [shape]))
        graph.output.add(name=seen).type.CopyFrom(info.type)
        graph.output.add(name=shape).type.CopyFrom(
            helper.make_tensor_type_proto(TensorProto.INT64, None)
        )
    return made


def in_branch(model: ModelProto) -> ModelProto:
    """Return a model that computes the same in a branch that the data choose."""
    made = ModelProto()
    made.CopyFrom(model)
    body = GraphProto(name="body")
    body.node.extend(model.graph.node)
    body.value_info.extend(model.graph.value_info)
    for field in ("node", "value_info"):
        made.graph.ClearField(field)
    made.graph.input.append(helper.make_tensor_value_info("choice", TensorProto.BOOL, []))
    outputs = [info.name for info in model.graph.output]
    for info in model.graph.output:
        body.output.add(name=info.name).type.CopyFrom(info.type)
    node = helper.make_node("If", ["choice"], outputs, then_branch=body, else_branch=body)
    made.graph.node.append(node)
    return made


def lied(model: ModelProto, lie: Lie | None, other_dtype: bool = False) -> ModelProto:
    """Return the model with this lie told of every result and inner value, bodies included.

    Args:
        model: stays as it is.
        lie: None for declarations without shapes, which leave nothing to lie about.
        other_dtype: see `declare`.
    """
    made = ModelProto()
    made.CopyFrom(model)
    _lie(made.graph, lie, other_dtype)
    return made


def _lie(graph: GraphProto, lie: Lie | None, other_dtype: bool, is_body: bool = False) -> None:
    inputs = graph.input if is_body else ()
    for info in (*graph.value_info, *graph.output, *inputs):
        dims = None if lie is None else lie(dims_of(info.type))
        declare(info.type, dims, other_dtype)
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    for body in (attribute.g for attribute in attributes if attribute.HasField("g")):
        _lie(body, lie, other_dtype, is_body=True)
