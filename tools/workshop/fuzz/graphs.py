"""Random models of many operators: what rewrites meet that nobody thought of."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from onnx import ModelProto, TensorProto, helper

from ....runtime.ir.types import Array
from .draws import DRAWS
from .draws_attributes import RARE
from .draws_bodies import BODIES
from .draws_types import TYPE_DRAWS
from .growing import Maker, RandomGraph, captured
from .motifs import MOTIFS
from .motifs_averages import AVERAGES
from .motifs_blocks import BLOCKS
from .motifs_counts import COUNTS
from .motifs_decoders import DECODERS
from .motifs_images import IMAGES
from .motifs_moves import MOVES
from .motifs_pixels import PIXELS
from .motifs_rows import ROWS
from .motifs_scans import SCANS
from .motifs_volumes import VOLUMES

_MOTIFS = (
    *(MOTIFS, DECODERS, IMAGES, PIXELS, ROWS, BLOCKS, MOVES, SCANS, VOLUMES, COUNTS),
    AVERAGES,
)
#: What random graphs grow by, by name.
MOTIFS_OF_ALL_KINDS: dict[str, Maker] = {
    f"{maker.__module__.rpartition('.')[2]}.{maker.__name__.strip('_')}": maker
    for makers in _MOTIFS
    for maker in makers
}
EVERYTHING: dict[str, Maker] = {
    f"{maker.__module__.rpartition('.')[2]}.{maker.__name__.strip('_')}": maker
    for makers in (DRAWS, TYPE_DRAWS, BODIES, RARE)
    for maker in makers
}
#: Sizes at which kernels have edges, and sizes that tensor cores like.
_WIDTHS = ((1, 2, 3, 4, 6, 8), (8, 16, 24, 32, 64))
#: What graphs grow by: some by everything, others by what has to do with each other.
_DIETS: tuple[tuple[float, dict[Maker, float]], ...] = (
    (3, DRAWS | MOTIFS),
    (3, DRAWS | MOTIFS | DECODERS),
    (3, DRAWS | TYPE_DRAWS),
    (2, DRAWS | TYPE_DRAWS | MOTIFS | DECODERS | BODIES),
    (1, {**{maker: often / 3 for maker, often in DRAWS.items()}, **DECODERS}),
    (1, {**{maker: often / 3 for maker, often in DRAWS.items()}, **BODIES}),
    (4, {**{maker: often / 6 for maker, often in DRAWS.items()}, **IMAGES, **PIXELS}),
    (4, {**{maker: often / 6 for maker, often in DRAWS.items()}, **ROWS}),
    (1, {**{maker: often / 6 for maker, often in DRAWS.items()}, **IMAGES, **PIXELS, **ROWS}),
    (4, {**{maker: often / 6 for maker, often in DRAWS.items()}, **BLOCKS}),
    (3, {**{maker: often / 6 for maker, often in DRAWS.items()}, **MOVES}),
    (3, {**{maker: often / 6 for maker, often in DRAWS.items()}, **SCANS, **VOLUMES}),
    (3, {**{maker: often / 6 for maker, often in DRAWS.items()}, **COUNTS}),
    (3, {**{maker: often / 4 for maker, often in DRAWS.items()}, **RARE}),
    (2, {**{maker: often / 6 for maker, often in DRAWS.items()}, **AVERAGES}),
)


def motif_model(dice: Random, maker: Maker) -> tuple[ModelProto, dict[str, Array]]:
    """Return a model of one motif, now and then with some more nodes, and values for its inputs.

    Raises:
        ValueError: the motif found nothing that it could be made of.
    """
    graph = RandomGraph(dice, dice.choice(_WIDTHS))
    batch, width = dice.choice((1, 2, 3)), graph.width()
    rows, columns = dice.choice((1, 2, 4, 6)), dice.choice((2, 3, 4, 8))
    for shape in ((batch, width), (batch, width, rows, columns), (batch, rows, width)):
        graph.input(shape)
    if maker in TYPE_DRAWS:
        for kind in dice.sample(list(_RANGES), 3):
            graph.input(dice.choice(((3,), (2, 4), (2, 3, 4))), kind, _RANGES[kind])
    graph.grow(1, {maker: 1})
    if not graph.nodes:
        raise ValueError("no such motif")
    if dice.random() < 0.4:
        graph.grow(len(graph.nodes) + dice.randrange(1, 4), DRAWS)
    read = {name for node in graph.nodes for name in (*node.input, *captured(node))}
    graph.inputs = [name for name in graph.inputs if name in read]
    rng = np.random.default_rng(dice.getrandbits(32))
    feeds = {n: _values(rng, *graph.types[n], graph.values[n]) for n in graph.inputs}
    return graph.model(), feeds


def random_model(seed: int, size: int = 16) -> tuple[ModelProto, dict[str, Array]]:
    """Return a model of about so many nodes, and values for its inputs.

    Args:
        seed: the same one gives the same model.
        size: how many nodes; motifs may add some.
    """
    dice = Random(seed)
    graph = RandomGraph(dice, dice.choice(_WIDTHS))
    lengths = (1, 2, 3, 4, 6, 7, 8)
    for _ in range(dice.choice((1, 1, 2, 3))):
        batch, width = dice.choice((1, 2, 3, 8)), graph.width()
        rows, columns = dice.choice(lengths), dice.choice(lengths)
        shapes = ((batch, width), (batch, rows, width), (batch, width, rows, columns))
        graph.input(dice.choice((*shapes, shapes[1])))
    (diet,) = dice.choices([diet for _, diet in _DIETS], [often for often, _ in _DIETS])
    if diet.keys() & TYPE_DRAWS.keys():
        for _ in range(dice.randrange(3)):
            kind = dice.choice(list(_RANGES))
            graph.input(dice.choice(((), (3,), (2, 4), (2, 3, 4))), kind, _RANGES[kind])
    graph.grow(size, diet)
    rng = np.random.default_rng(seed)
    feeds = {n: _values(rng, *graph.types[n], graph.values[n]) for n in graph.inputs}
    return graph.model(), feeds


#: Inputs of other types, and what they may hold; floats hold what is from a normal distribution.
_RANGES: dict[int, Sequence[int]] = {
    TensorProto.INT64: range(-4, 9),
    TensorProto.INT32: range(-100, 100),
    TensorProto.UINT8: range(256),
    TensorProto.INT8: range(-128, 128),
    TensorProto.BOOL: range(2),
    TensorProto.FLOAT16: (),
    TensorProto.DOUBLE: (),
}


def _values(
    rng: np.random.Generator, dtype: int, shape: tuple[int, ...], values: Sequence[int]
) -> Array:
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    if len(values):
        return np.asarray(rng.choice(list(values), shape)).astype(kind)
    return np.asarray(rng.standard_normal(shape)).astype(kind)
