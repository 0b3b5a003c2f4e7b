"""Type and shape inference of graphs, and specialisation from symbolic to integer shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType

from ..base.guard import check_time
from ..errors import (
    FAILURES,
    InputSizeError,
    ModelError,
    OperatorRuleError,
    ShapeError,
    ShapeRuleError,
    out_of_memory,
)
from .constraints import Element, check_inputs, check_outputs
from .dtypes import FLOATS
from .fresh_names import named
from .graph import Graph, Node, Value
from .hints import without_shapes
from .op import Op, input_kinds, input_names
from .types import MapType, OptionalType, SequenceType, TensorType, ValueType

Types = tuple[ValueType | None, ...]


def infer(graph: Graph, *, file: str | None = None) -> None:
    """Set the type of every computed value in place, from the types of the inputs.

    Raises:
        ModelError: an operator does not accept its input types; names file, node and types.
        OperatorRuleError: the shape rule of a custom operator fails.
    """
    for node in graph.nodes:
        check_time()
        infer_node(node, file=file)


def infer_node(node: Node, *, file: str | None = None) -> None:
    """Set the types of one node's outputs; see `infer`."""
    types = [None if v is None else v.type for v in node.inputs]
    known = all(v is None or v.type is not None for v in node.inputs)
    try:
        bound = check_types(node.op, types) if known else {}
        _enter_bodies(node, types if known else None, file)
        found = node.op.infer(*types) if known else None
        results = found if isinstance(found, tuple) else (found,)
        check_outputs(node.op, results, bound)
    except ShapeError as error:
        reason = f"{error}; inputs: {_inputs_text(node)}"
        kind = OperatorRuleError if isinstance(error, ShapeRuleError) else ModelError
        raise kind(reason, file=file, where=_where(node)) from error
    except MemoryError as error:
        raise out_of_memory(_where(node), error) from error
    except FAILURES as error:
        reason = f"the types make no sense: {error}; inputs: {_inputs_text(node)}"
        raise ModelError(reason, file=file, where=_where(node)) from error
    if found is None:
        results = (None,) * len(node.outputs)
    if len(results) < len(node.outputs):
        reason = f"has {len(node.outputs)} outputs; the operator gives {len(results)}"
        raise ModelError(reason, file=file, where=_where(node))
    for value, type_ in zip(node.outputs, results, strict=False):
        value.type = named(_merge(type_, value.type) or without_shapes(value.declared))


#: The names of types of values in errors.
_KINDS = {
    TensorType: "a tensor",
    SequenceType: "a sequence",
    OptionalType: "an optional",
    MapType: "a map",
}


def check_types(op: Op, types: Sequence[ValueType | None]) -> dict[str, Element]:
    """Check the kinds and dtypes of an operator's inputs; None stands for an omitted one.

    Returns:
        The dtypes by type parameter, for `check_outputs`.

    Raises:
        ShapeError: a required input is missing, is a sequence instead of a tensor, or has a dtype
            that ONNX does not allow.
    """
    kinds, names = input_kinds(type(op)), input_names(type(op))
    for i, found in enumerate(types):
        wanted = min(i, len(kinds) - 1)
        if not isinstance(found, kinds[wanted]):
            expected = " or ".join(_KINDS[k] for k in kinds[wanted] if k is not NoneType)
            raise ShapeError(f"{names[wanted]} is {found or 'left out'}; expected {expected}")
    return check_inputs(op, types)


def _enter_bodies(node: Node, types: Sequence[ValueType | None] | None, file: str | None) -> None:
    bodies = node.op.graphs()
    if not bodies:
        return
    for formal, actual in node.captured.items():
        formal.type = actual.type
    entering = node.op.body_inputs(*types) if types else tuple(() for _ in bodies)
    for body, inputs in zip(bodies, entering, strict=True):
        try:
            _infer_body(node.op, body, inputs, file)
        except ModelError:
            if types and not node.op.may_skip(*types):
                raise


def _infer_body(op: Op, body: Graph, inputs: Types, file: str | None) -> None:
    """Infer a body for these input types, or for the wider ones that later iterations need."""
    made = (value for node in body.walk() for value in node.outputs)
    before = {value: value.type for value in (*body.inputs, *made)}
    while True:
        for formal, type_ in zip(body.inputs, inputs, strict=False):
            formal.type = _merge(type_, before[formal])
        infer(body, file=file)
        wider = op.widened(body, inputs) if inputs else inputs
        if wider == inputs:
            return
        inputs = wider
        for value, type_ in before.items():
            value.type = type_


def _where(node: Node) -> str:
    return f"node '{node.name}' ({node.kind})"


def _inputs_text(node: Node) -> str:
    return ", ".join("(left out)" if v is None else f"{v.name}: {v.type}" for v in node.inputs)


def _merge(found: ValueType | None, known: ValueType | None) -> ValueType | None:
    """Return the inferred type completed by the previous one; declarations are not used."""
    if found is None:
        return known
    if not isinstance(found, TensorType) or not isinstance(known, TensorType):
        return found
    if found.dtype != known.dtype or known.shape is None:
        return found
    if found.shape is None:
        return TensorType(found.dtype, known.shape)
    if None not in found.shape or len(found.shape) != len(known.shape):
        return found
    shape = tuple(b if a is None else a for a, b in zip(found.shape, known.shape, strict=True))
    return TensorType(found.dtype, shape, found.value)


def specialise(
    graph: Graph,
    types: Mapping[str, ValueType | None],
    *,
    floats: bool = True,
    fold: bool = True,
) -> Graph:
    """Return a copy of `graph` for inputs of these types, with shape arithmetic folded.

    Values whose elements follow from shapes alone become constants, so that none of the shape
    arithmetic that exporters write around Reshape and Slice is left to execute.

    Args:
        graph: a graph with symbolic dimensions; not modified.
        types: the type of every graph input, by name.
        floats: whether values of floats, which inference rounds, become constants as well.
        fold: whether any values do.
    """
    bound = graph.clone()
    bound.general = graph
    for value in bound.inputs:
        value.type = types[value.name]
    for node in bound.walk():
        for value in node.outputs:
            value.type = _forget_symbols(value.type)
    infer(bound)
    if fold:
        fold_known(bound, floats=floats)
    return bound


def blame_sizes(
    error: ModelError, inputs: Sequence[Value], types: Mapping[str, ValueType | None]
) -> None:
    """Raise an error of specialising as one of inputs, if the model leaves their sizes open.

    Args:
        error: what `specialise` raised.
        inputs: of the model.
        types: those that were given, by name.

    Raises:
        InputSizeError: a node cannot run with the sizes that were given.
    """
    given = [
        f"'{value.name}' is {type_.without_value()}"
        for value in inputs
        if isinstance(type_ := types.get(value.name), TensorType)
        and isinstance(value.type, TensorType)
        and type_.shape != value.type.shape
    ]
    if given and not isinstance(error, OperatorRuleError):
        said = f"{error.reason}; the model leaves sizes open: {', '.join(given)}"
        raise InputSizeError(said, file=error.file, where=error.where) from error


def specialise_as_asked(
    graph: Graph, types: Mapping[str, ValueType | None], *, fold: bool = True
) -> Graph:
    """Specialise for sizes that the caller has chosen; see `specialise`.

    Raises:
        InputSizeError: a node cannot run with sizes that the graph leaves open.
        ModelError: nor with those that it declares.
    """
    try:
        return specialise(graph, types, fold=fold)
    except ModelError as error:
        blame_sizes(error, graph.inputs, types)
        raise


def _forget_symbols(type_: ValueType | None) -> ValueType | None:
    """Drop from a type what depends on symbols that were just bound."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    return TensorType(type_.dtype, tuple(d if isinstance(d, int) else None for d in type_.shape))


def fold_known(graph: Graph, *, floats: bool = True) -> int:
    """Replace values whose elements inference knows by constants; return how many.

    Args:
        graph: the graph.
        floats: whether also those of floats.
    """
    folded = 0
    for node in list(graph.nodes):
        known = [value.known for value in node.outputs]
        found = [data for data in known if data is not None]
        if not floats and any(data.dtype in FLOATS for data in found):
            continue
        if found and len(found) == len(known) and node.op.deterministic:
            graph.settle(node, found)
            folded += 1
    graph.sweep()
    return folded
