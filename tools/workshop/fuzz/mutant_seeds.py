"""What valid mutants are made of: motifs of the random graphs, and parts of networks' files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import overload

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto, helper

from .... import load
from ....runtime.errors import TercetError
from ....runtime.ir.types import Array
from ...common.inputs import random_inputs
from ...common.nested import flat
from ...common.shapes import input_shapes
from .graphs import EVERYTHING, MOTIFS_OF_ALL_KINDS, motif_model
from .mutation import reads

#: Nodes of a part of a network.
_PART = (*range(2, 30), *range(30, 90, 3))
#: Networks that stay in memory, with all that they compute.
_KEPT = 64
Made = tuple[str, ModelProto, dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Network:
    """A file, and all that it computes.

    Attributes:
        name: the file's.
        proto: the model; its constants are initializers.
        values: inputs and results of nodes, by name.
    """

    name: str
    proto: ModelProto
    values: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class MutantSeeds:
    """Draws models to change.

    Attributes:
        networks: parts of them are seeds.
        only: names of motifs, or of what random graphs grow by; all if empty.
    """

    networks: Sequence[Network] = ()
    only: Sequence[str] = field(default_factory=tuple)

    def draw(self, dice: Random) -> Made:
        """Return a model with its name and values for its inputs.

        Raises:
            ValueError: the network that is drawn does not run.
        """
        if self.networks and dice.random() < 0.4 and not self.only:
            network = dice.choice(self.networks)
            nodes = network.proto.graph.node
            count = min(dice.choice(_PART), len(nodes))
            first = dice.randrange(len(nodes) - count + 1)
            return f"{network.name} {first}", *part_of(network, range(first, first + count))
        makers = MOTIFS_OF_ALL_KINDS | EVERYTHING if self.only else MOTIFS_OF_ALL_KINDS
        if not self.only and dice.random() < 0.2:
            makers = EVERYTHING
        names = [name for name in makers if not self.only or name in self.only]
        name = dice.choice(names)
        return name, *motif_model(dice, makers[name])


def networks_of(folders: Iterable[Path]) -> Sequence[Network]:
    """Return the files of folders with what they compute: each is run as soon as it is drawn."""
    return _Files(sorted(each for folder in folders for each in folder.rglob("*.onnx")))


class _Files(Sequence[Network]):
    """Networks of files; one that does not run is a ValueError."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> Network: ...
    @overload
    def __getitem__(self, index: slice) -> _Files: ...
    def __getitem__(self, index: int | slice) -> Network | _Files:
        if isinstance(index, slice):
            return _Files(self._files[index])
        found = _of_file(self._files[index])
        if isinstance(found, str):
            raise ValueError(f"{self._files[index]}: {found}")
        return found


@lru_cache(_KEPT)
def _of_file(file: Path) -> Network | str:
    """Return a network, or why there is none."""
    try:
        return network(file.stem, onnx.load(file))
    except (TercetError, DecodeError, ValueError) as error:
        return str(error)


def network(name: str, proto: ModelProto, feeds: Mapping[str, Array] | None = None) -> Network:
    """Run a model and keep what it computes.

    Raises:
        TercetError: it does not run.
        ValueError: what it computes is random.
    """
    with load(proto, stop_at=0) as model:
        if not all(node.op.deterministic for node in model.imported.walk()):
            raise ValueError(f"'{name}' draws numbers")
        given = feeds or random_inputs(model.inputs, input_shapes(model.inputs), 0)
        names = [value.name for node in model.imported.nodes for value in node.outputs]
        values = flat(model.run(given, list(dict.fromkeys([*model.imported.outputs, *names]))))
    own = {name for node in proto.graph.node for name in node.output}
    return Network(name, proto, {**{n: x for n, x in values.items() if n in own}, **given})


def part_of(network: Network, places: Iterable[int]) -> tuple[ModelProto, dict[str, Array]]:
    """Return some nodes of a network as a model, and values for what they read.

    Raises:
        ValueError: they read what has no value.
    """
    graph = network.proto.graph
    nodes: list[NodeProto] = [graph.node[at] for at in places]
    constants = {one.name: one for one in graph.initializer}
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in reads(node) if name)
    inner = {name for node in nodes for name in _inside(node)}
    missing = [n for n in read if n not in made and n not in constants and n not in inner]
    if not all(name in network.values for name in missing):
        raise ValueError("no value")
    feeds = {name: network.values[name] for name in missing}
    wanted = {output.name for output in graph.output}
    ends = [n for n in made if n and (n not in read or n in wanted) and n in network.values]
    order = [n for node in nodes for n in node.output if n in ends]

    def info(name: str, data: Array, *, fixed: bool) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        shape = data.shape if fixed else [None] * data.ndim
        return helper.make_tensor_value_info(name, kind, shape)

    model = ModelProto()
    model.CopyFrom(network.proto)
    del model.graph.node[:], model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    del model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(info(name, data, fixed=True) for name, data in feeds.items())
    model.graph.output.extend(info(name, network.values[name], fixed=False) for name in order)
    model.graph.initializer.extend(one for name, one in constants.items() if name in read)
    return model, feeds


def _inside(node: NodeProto) -> Iterable[str]:
    """Yield the names that the bodies of a node define."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (one.name for one in (*graph.input, *graph.initializer))
            for inner in graph.node:
                yield from inner.output
                yield from _inside(inner)
