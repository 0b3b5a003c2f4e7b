"""Graphs, and rows that refer to them, as bytes.

A pickle in which graphs are tables, and arrays are numbers of places in files. It names classes and
functions, of which only those of this package and a few others are looked up.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from operator import attrgetter
from typing import Any, cast

import numpy as np

from ..base.file_parts import Block
from ..base.record import record
from ..ir.dtypes import BY_ONNX, TO_ONNX, DType, string
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.types import Array, ValueType

#: The number of the file of arrays whose bytes are with the pickle.
BESIDE = -1
#: What is kept of other packages: by module, the names of classes and functions.
_OTHERS = {
    "builtins": {"complex", "frozenset", "range", "set", "slice"},
    "functools": {"partial"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
}
_PACKAGE = __name__.partition(".")[0]
#: Each array starts at a multiple of these bytes.
_ALIGNMENT = 64
#: A value: its name, array, type, declared type, and nodes that read it with the number of times.
_ValueRow = tuple[str, int | None, int, int, tuple[tuple[int, int], ...]]
#: A node: operator, name, origin, position, inputs, captures and outputs.
_NodeRow = tuple[
    Op, str, tuple[str, ...], float, tuple[int | None, ...], tuple[int, ...], tuple[int, ...]
]


class Unkept(Exception):
    """Something that cannot be kept, or that nothing like it was; the message says what."""


# ── arrays ───────────────────────────────────────────────────────────────────────────────────────


@record
class Place:
    """Where the elements of an array are.

    Attributes:
        file: number of the file, or `BESIDE`.
        offset: of the first element.
        dtype: ONNX's number.
        shape: of the array.
        strides: in bytes.
    """

    file: int
    offset: int
    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def bounds(self) -> tuple[int, int]:
        """The places in the file of its first byte, and behind its last one."""
        if 0 in self.shape:
            return self.offset, self.offset
        ways = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        first = self.offset + sum(way for way in ways if way < 0)
        return first, first + sum(map(abs, ways)) + BY_ONNX[self.dtype].itemsize

    def array(self, blocks: Sequence[Block]) -> Array:
        """Return the array, which is read-only.

        Args:
            blocks: parts of the file in order, one of which has it.
        """
        block = blocks[bisect_right(blocks, self.bounds[0], key=attrgetter("offset")) - 1]
        buffer, at = cast(Any, block.data), self.offset - block.offset
        found: Array = np.ndarray(self.shape, BY_ONNX[self.dtype], buffer, at, self.strides)
        found.flags.writeable = False
        return found


class Arrays:
    """Arrays by number, as they are written.

    Args:
        known: those with the first numbers.
        blocks: bytes of the model's files in memory.
        most: bytes of others.
        file: number of the file of these others.

    Attributes:
        all: the arrays.
        places: of those that are not known.
        others: those that are in no file, as they are in memory.
    """

    def __init__(
        self, known: Sequence[Array], blocks: Iterable[Block], most: int, file: int = BESIDE
    ) -> None:
        self.all, self.places, self.others = list(known), list[Place](), list[Array]()
        self._numbers = {id(data): number for number, data in enumerate(known)}
        self._blocks = [(each.data.ctypes.data, each) for each in blocks]
        self._most, self._file, self._end = most, file, 0

    def number(self, data: Array) -> int:
        """Return the number of an array.

        Raises:
            Unkept: its type is not ONNX's, or there are too many bytes.
        """
        if id(data) not in self._numbers:
            if data.dtype == string or data.dtype not in TO_ONNX:
                raise Unkept(f"a constant of {data.dtype}")
            self.places.append(self._place(data))
            self._numbers[id(data)] = len(self.all)
            self.all.append(data)
        return self._numbers[id(data)]

    def _place(self, data: Array) -> Place:
        dtype = TO_ONNX[data.dtype]
        first, end = np.lib.array_utils.byte_bounds(data)
        for start, block in self._blocks:
            if start <= first and end <= start + len(block.data):
                at = block.offset + data.ctypes.data - start
                return Place(block.file, at, dtype, data.shape, data.strides)
        dense, strides = _in_memory(data)
        at = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._end = at + dense.nbytes
        if self._end > self._most:
            raise Unkept(f"more than {self._most} bytes of computed constants")
        self.others.append(dense)
        return Place(self._file, at, dtype, data.shape, strides)

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes of those that are in no file."""
        end = 0
        for data in self.others:
            yield bytes(-end % _ALIGNMENT)
            yield data.tobytes()
            end += -end % _ALIGNMENT + data.nbytes


def _in_memory(data: Array) -> tuple[Array, tuple[int, ...]]:
    """Return an array with the bytes of one as they are in memory, and the strides in it.

    Each element is there once. Where there are gaps, it is in C order.
    """
    once = data[tuple(slice(None) if step else slice(1) for step in data.strides)]
    dense = once.transpose(sorted(range(data.ndim), key=lambda axis: -once.strides[axis]))
    for found in (data, dense):
        if found.flags.c_contiguous:
            return found, data.strides
    whole = np.ascontiguousarray(data)
    return whole, whole.strides


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def dumped(root: object, arrays: Arrays, given: Mapping[str, object]) -> bytes:
    """Return an object with all that it refers to.

    Args:
        root: graphs in front of what refers to them.
        arrays: gets the arrays.
        given: what is there when it is read, by name.

    Raises:
        Unkept: it refers to something that is not kept.
    """
    stream = BytesIO()
    try:
        _Writer(stream, arrays, given).dump(root)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise Unkept(str(error)) from error
    return stream.getvalue()


def _again(kind: str, *_: Any) -> Any:
    """Stand for `_Maker.make`."""
    raise Unkept(f"{kind} without a reader")


class _Writer(pickle.Pickler):
    def __init__(self, stream: BytesIO, arrays: Arrays, given: Mapping[str, object]) -> None:
        super().__init__(stream, 5)
        self._arrays = arrays
        self._given = {id(each): name for name, each in given.items()}
        self._places = dict[Value | Node, tuple[int, int]]()
        self._graphs = 0

    def reducer_override(self, obj: Any, /) -> Any:
        """Return what makes an object again; see `pickle.Pickler`."""
        if (name := self._given.get(id(obj))) is not None:
            return _again, ("known", name)
        if isinstance(obj, Value | Node):
            if obj in self._places:
                return _again, (type(obj).__name__.lower(), *self._places[obj])
            if isinstance(obj, Node) or obj.producer is not None or obj.consumers:
                raise Unkept(f"'{obj.name}' of another graph")
            type_ = None if obj.is_constant else obj.type
            return _again, ("loose", obj.name, type_, obj.declared, obj.data)
        if type(obj) is np.ndarray and cast("Array", obj).dtype in TO_ONNX and obj.dtype != string:
            return _again, ("array", self._arrays.number(obj))
        if issubclass(type(obj), np.dtype) and obj in TO_ONNX:
            return _again, ("dtype", TO_ONNX[cast(Any, obj)])
        return self._graph(obj) if type(obj) is Graph else NotImplemented

    def _graph(self, graph: Graph) -> Any:
        """Return a graph as rows with numbers, so that the longest one is no deeper than others."""
        number, self._graphs = self._graphs, self._graphs + 1
        at = {value: place for place, value in enumerate(graph.values.values())}
        node_at = {node: place for place, node in enumerate(graph.nodes)}
        for places in (at, node_at):
            self._places.update((each, (number, place)) for each, place in places.items())
        types = dict[Any, int]()

        def kind(found: ValueType | None) -> int:
            key = found, id(getattr(found, "value", None))  # which equality ignores
            return types.setdefault(key, len(types))

        values: list[_ValueRow] = [
            (
                v.name,
                None if v.data is None else self._arrays.number(v.data),
                kind(None if v.is_constant else v.type),
                kind(v.declared),
                tuple((node_at[node], count) for node, count in v.consumers.items()),
            )
            for v in at
        ]
        nodes: list[_NodeRow] = [
            (
                node.op,
                node.name,
                node.origin,
                node.position,
                tuple(None if v is None else at[v] for v in node.inputs),
                tuple(at[v] for v in node.captures),
                tuple(at[v] for v in node.outputs),
            )
            for node in graph.nodes
        ]
        ends = (
            tuple(at[v] for v in graph.inputs),
            tuple(at[v] for v in graph.captures),
            {name: at[v] for name, v in graph.outputs.items()},
        )
        about = graph.name, graph.general, dict(graph.needs)
        return _again, ("graph", number, about, [type_ for type_, _ in types], values, nodes, ends)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def loaded(data: bytes, arrays: Sequence[Array], given: Mapping[str, object]) -> Any:
    """Return what `dumped` wrote.

    Args:
        data: the pickle.
        arrays: by number.
        given: what is there, by name.

    Raises:
        Unkept: it names something else.
    """
    return _Reader(BytesIO(data), arrays, given).load()


class _Reader(pickle.Unpickler):
    def __init__(
        self, stream: BytesIO, arrays: Sequence[Array], given: Mapping[str, object]
    ) -> None:
        super().__init__(stream)
        self._maker = _Maker(arrays, given)

    def find_class(self, module: str, name: str, /) -> Any:
        """Return a class or function; see `pickle.Unpickler`."""
        if (module, name) == (__name__, _again.__name__):
            return self._maker.make
        if name in _OTHERS.get(module, ()):
            return super().find_class(module, name)
        if module.partition(".")[0] == _PACKAGE:
            found = super().find_class(module, name)
            if str(getattr(found, "__module__", "")).partition(".")[0] == _PACKAGE:
                return found  # not what a module of this package has imported
        raise Unkept(f"{module}.{name} is not kept")


class _Maker:
    """Makes what `_again` stands for; not the reader, which would wait for garbage collection."""

    def __init__(self, arrays: Sequence[Array], given: Mapping[str, object]) -> None:
        self._arrays, self._given = arrays, given
        self._values = dict[int, list[Value]]()
        self._nodes = dict[int, list[Node]]()

    def make(self, kind: str, *parts: Any) -> Any:
        """Return what was replaced by these arguments."""
        return getattr(self, f"_{kind}")(*parts)

    def _value(self, graph: int, at: int) -> Value:
        return self._values[graph][at]

    def _node(self, graph: int, at: int) -> Node:
        return self._nodes[graph][at]

    def _loose(
        self, name: str, type_: ValueType | None, declared: ValueType | None, data: Array | None
    ) -> Value:
        return Value(name, type_, data=data, declared=declared)

    def _array(self, number: int) -> Array:
        return self._arrays[number]

    def _known(self, name: str) -> object:
        return self._given[name]

    def _dtype(self, number: int) -> DType:
        return BY_ONNX[number]

    def _graph(
        self,
        number: int,
        about: tuple[str, Graph | None, Mapping[str, int]],
        types: Sequence[ValueType | None],
        values: Sequence[_ValueRow],
        nodes: Sequence[_NodeRow],
        ends: tuple[tuple[int, ...], tuple[int, ...], Mapping[str, int]],
    ) -> Graph:
        made = self._values[number] = [
            Value(
                name,
                types[kind],
                data=None if data is None else self._arrays[data],
                declared=types[declared],
            )
            for name, data, kind, declared, _ in values
        ]
        placed = self._nodes[number] = list[Node]()
        for op, name, origin, position, inputs, captures, outputs in nodes:
            node = Node(op, name, origin)
            node.position = position
            node.inputs = tuple([None if at is None else made[at] for at in inputs])
            node.captures = tuple([made[at] for at in captures])
            node.outputs = tuple([made[at] for at in outputs])
            for value in node.outputs:
                value.producer = node
            placed.append(node)
        for value, (*_, consumers) in zip(made, values, strict=True):
            value.consumers = {placed[at]: count for at, count in consumers}
        graph = Graph()
        graph.name, graph.general, graph.needs = about
        graph.inputs = tuple([made[at] for at in ends[0]])
        graph.captures = tuple([made[at] for at in ends[1]])
        graph.set_outputs({name: made[at] for name, at in ends[2].items()})
        graph.fill(made, placed)
        return graph
