"""Random models of many operators: what rewrites meet that nobody thought of."""

from __future__ import annotations

from random import Random

import numpy as np
from onnx import ModelProto

from ....runtime.ir.types import Array
from .draws import DRAWS
from .growing import RandomGraph
from .motifs import MOTIFS

#: Sizes at which kernels have edges, and sizes that tensor cores like.
_WIDTHS = ((1, 2, 3, 4, 6, 8), (8, 16, 24, 32, 64))


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
    graph.grow(size, DRAWS | MOTIFS)
    rng = np.random.default_rng(seed)
    feeds = {n: rng.standard_normal(graph.shape(n)).astype(np.float32) for n in graph.inputs}
    return graph.model(), feeds
