"""A graph that grows node by node, by choices of a seeded generator.

An operator is drawn, then inputs among the tensors that are there, and attributes; ONNX's own shape
inference says whether that is a node and what comes out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    defs,
    helper,
    numpy_helper,
)
from onnx.shape_inference import InferenceError, infer_node_outputs

from ....runtime.ir.types import Array

OPSET = 21
#: Elements of a tensor at most.
_LARGEST = 16000
FLOAT = TensorProto.FLOAT
#: Formats that ONNX lets few operators read; tensors of them that a node reads are no outputs.
FEW_BITS = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E5M2,
    TensorProto.INT4,
    TensorProto.UINT4,
)
Shape = tuple[int, ...]


@dataclass
class RandomGraph:
    """A graph that grows; the same seed gives the same graph.

    Attributes:
        dice: where choices come from.
        nodes: so far.
        types: element type and shape of each tensor.
        constants: by name.
        inputs: names.
        values: what elements of an input may be, by name; if empty, any of a normal
            distribution.
        results: tensors that are outputs of the model, whatever else reads them.
        widths: how many channels or columns weights make.
        prefix: of all names, for bodies.
        outer: constants of the graphs around a body.
    """

    dice: Random
    widths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    prefix: str = ""
    outer: Mapping[str, Array] = field(default_factory=dict[str, Array])
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    types: dict[str, tuple[int, Shape]] = field(default_factory=dict[str, tuple[int, Shape]])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    inputs: list[str] = field(default_factory=list[str])
    values: dict[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    results: list[str] = field(default_factory=list[str])
    bodies: int = 0

    # ── tensors ──────────────────────────────────────────────────────────────────────────────

    def input(self, shape: Shape, dtype: int = FLOAT, values: Sequence[int] = ()) -> str:
        """Add an input.

        Args:
            shape: its shape.
            dtype: its element type.
            values: what its elements may be, of whole numbers.
        """
        return self.argument("x", dtype, shape, values)

    def argument(self, stem: str, dtype: int, shape: Shape, values: Sequence[int] = ()) -> str:
        """Add an input of that name, with a number behind it; see `input`."""
        name = f"{self.prefix}{stem}{len(self.inputs)}"
        self.inputs.append(name)
        self.types[name] = dtype, shape
        self.values[name] = values
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a constant."""
        name = f"{self.prefix}c{len(self.constants)}"
        self.constants[name] = data = np.asarray(value, dtype)
        self.types[name] = helper.np_dtype_to_tensor_dtype(data.dtype), data.shape
        return name

    def ints(self, *values: int) -> str:
        """Add a constant of int64: sizes, axes, places."""
        return self.constant(list(values), np.int64)

    def weights(self, *shape: int) -> str:
        """Add a constant of random numbers, smaller ones where many of them are added up.

        Now and then it is one that others read already.
        """
        same = [n for n, t in self.types.items() if n in self.constants and t == (FLOAT, shape)]
        if same and self.dice.random() < 0.15:
            return self.dice.choice(same)
        rng = np.random.default_rng(self.dice.getrandbits(32))
        terms = prod(shape[1:]) if len(shape) > 2 else prod(shape[:-1])
        scale = max(terms, 4) ** -0.5
        return self.constant(scale * rng.standard_normal(shape))

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        return self.types[name][1]

    def any(self, *ranks: int, dtype: int = FLOAT) -> str | None:
        """Draw a tensor with elements, newer ones more often; None if there is none."""
        able = [
            name
            for name, (kind, shape) in self.types.items()
            if kind == dtype
            and name not in self.constants
            and name not in self.outer
            and (not ranks or len(shape) in ranks)
            and 0 not in shape  # of which onnxruntime reduces some in its own way, or divides by 0
        ]
        if not able:
            return None
        return able[-1 - min(int(self.dice.expovariate(0.4)), len(able) - 1)]

    # ── nodes ────────────────────────────────────────────────────────────────────────────────

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; return its first result.

        Raises:
            ValueError: the inputs and attributes make no node, or too large a tensor.
        """
        names = [f"{self.prefix}t{len(self.types) + i}" for i in range(outputs)]
        title = f"{self.prefix}{kind}_{len(self.nodes)}"
        node = helper.make_node(kind, inputs, names, title, **attributes)
        known = {name: helper.make_tensor_type_proto(*self.types[name]) for name in inputs if name}
        data = {
            name: numpy_helper.from_array(data)
            for name in inputs
            if (data := self.constants.get(name, self.outer.get(name))) is not None
        }
        try:
            found = infer_node_outputs(defs.get_schema(kind, OPSET), node, known, data)
        except (InferenceError, RuntimeError) as error:
            raise ValueError(str(error)) from error
        types = [found[name].tensor_type for name in names]
        dims = [
            [d.dim_value if d.HasField("dim_value") else -1 for d in t.shape.dim] for t in types
        ]
        if any(not t.HasField("shape") for t in types) or any(min(d, default=1) < 0 for d in dims):
            raise ValueError(f"{kind}: no static shape")
        if any(prod(d) > _LARGEST for d in dims):
            raise ValueError(f"{kind}: too large")
        self.nodes.append(node)
        for name, type_, dim in zip(names, types, dims, strict=True):
            self.types[name] = type_.elem_type, tuple(dim)
        return names[0]

    def raw(
        self, kind: str, inputs: Sequence[str], shape: Shape, dtype: int = FLOAT, **attributes: Any
    ) -> str:
        """Add a node whose type inference does not know; return its result."""
        return self.complex(kind, inputs, [(dtype, shape)], **attributes)

    def complex(
        self,
        kind: str,
        inputs: Sequence[str],
        types: Sequence[tuple[int, Shape]],
        **attributes: Any,
    ) -> str:
        """Add a node of some results, whose types are given; return the first one.

        Raises:
            ValueError: a result is too large.
        """
        if any(prod(shape) > _LARGEST for _, shape in types):
            raise ValueError(f"{kind}: too large")
        title = f"{self.prefix}{kind}_{len(self.nodes)}"
        names = [f"{self.prefix}t{len(self.types) + i}" for i in range(len(types))]
        self.nodes.append(helper.make_node(kind, inputs, names, title, **attributes))
        self.types.update(zip(names, types, strict=True))
        return names[0]

    def inner(self) -> RandomGraph:
        """Return an empty body, whose nodes may read what is here."""
        self.bodies += 1
        return RandomGraph(
            self.dice,
            self.widths,
            f"{self.prefix}b{self.bodies}_",
            {**self.outer, **self.constants},
            types=dict(self.types),
        )

    def body(self, inputs: Sequence[str], outputs: Sequence[str]) -> GraphProto:
        """Return what was added to a body, as the graph of an attribute."""
        return helper.make_graph(
            self.nodes,
            f"{self.prefix}body",
            [helper.make_tensor_value_info(n, *self.types[n]) for n in inputs],
            [helper.make_tensor_value_info(n, *self.types[n]) for n in outputs],
            [numpy_helper.from_array(data, name) for name, data in self.constants.items()],
        )

    def grow(self, count: int, makers: Mapping[Maker, float]) -> None:
        """Add nodes until there are so many.

        Args:
            count: how many.
            makers: what adds one or more, and how often it is drawn.
        """
        tries = 0
        while len(self.nodes) < count and tries < 20 * count:
            tries += 1
            nodes, results, types = len(self.nodes), len(self.results), dict(self.types)
            try:
                self.dice.choices(list(makers), list(makers.values()))[0](self)
            except (ValueError, IndexError, ZeroDivisionError):
                del self.nodes[nodes:]
                del self.results[results:]
                kept = (*self.constants, *self.inputs)
                self.types = {**types, **{name: self.types[name] for name in kept}}

    def model(self) -> ModelProto:
        """Return the model: all that nobody reads is an output, and some of what is read."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        read |= set().union(*map(captured, self.nodes))
        made = [name for name in made if name in self.types]
        outputs = [
            name
            for name in made
            if name not in read
            or name in self.results
            or (self.dice.random() < 0.1 and self.types[name][0] not in FEW_BITS)
        ]
        free = self.dice.random() < 0.3
        batch: dict[int, str] = {}

        def described(name: str, *, symbolic: bool) -> ValueInfoProto:
            kind, shape = self.types[name]
            dims: list[int | str] = list(shape)
            if symbolic and dims:
                dims[0] = batch.setdefault(shape[0], f"n{shape[0]}")
            return helper.make_tensor_value_info(name, kind, dims)

        graph = helper.make_graph(
            self.nodes,
            "random",
            [described(name, symbolic=free) for name in self.inputs],
            [
                helper.make_tensor_value_info(n, self.types[n][0], [None] * len(self.shape(n)))
                for n in outputs
            ],
            [numpy_helper.from_array(data, name) for name, data in self.constants.items()],
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
        )

    # ── choices ──────────────────────────────────────────────────────────────────────────────

    def need(self, *ranks: int, dtype: int = FLOAT) -> str:
        """Draw a tensor.

        Raises:
            ValueError: there is none of that kind.
        """
        found = self.any(*ranks, dtype=dtype)
        if found is None:
            raise ValueError("no such tensor")
        return found

    def width(self) -> int:
        """Draw a number of channels or columns."""
        return self.dice.choice(self.widths)

    def axis(self, shape: Shape) -> int:
        """Draw an axis, counted from either end."""
        axis = self.dice.randrange(len(shape))
        return axis if self.dice.random() < 0.5 else axis - len(shape)

    def factors(self, size: int) -> list[int]:
        """Draw a shape of so many elements.

        Raises:
            ValueError: there are none, and 0 stands for the size that an axis has.
        """
        if not size:
            raise ValueError("no elements")
        dims: list[int] = []
        while size > 1 and len(dims) < 4:
            able = [d for d in range(1, size + 1) if size % d == 0]
            dims.append(self.dice.choice(able))
            size //= dims[-1]
        if size > 1 or not dims:
            dims.append(size)
        self.dice.shuffle(dims)
        return dims

    def coin(self, share: float = 0.5) -> bool:
        """Return True with that probability."""
        return self.dice.random() < share


def captured(node: NodeProto) -> Iterator[str]:
    """Yield all names that the bodies of a node read, their own ones too."""
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from inner.input
            yield from captured(inner)
        yield from (output.name for output in attribute.g.output)


def swapped(rank: int) -> list[int]:
    """Return the permutation that transposes matrices."""
    return [*range(rank - 2), rank - 1, rank - 2]


#: Adds one node, or some that belong together; raises `ValueError` where it cannot.
Maker = Callable[[RandomGraph], object]
