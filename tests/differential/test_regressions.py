"""Samples that tercet was once wrong about, and that chance may leave out."""

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import bfloat16, float16, float32, float64

from .generate import Dice, ints
from .oracles import disagreements
from .sample import Sample, smooth

DICE = Dice("regressions")
X = DICE.array(float64, (2, 3, 12))
SMALL = [DICE.array(bfloat16, (3,)) for _ in range(3)]

SAMPLES = {
    # warned of the mean of nothing
    "mean of nothing": Sample("ReduceMean", (np.zeros((3, 0, 2), float32), ints([1])), {}, 18,
                              bound=smooth(), want=lambda x, axes: x.mean(1, keepdims=True)),
    # computed in the precision of the parameters
    "small parameters": Sample("BatchNormalization", (X, *SMALL, np.abs(SMALL[0])), {}, 15,
                               bound=smooth(4)),
    # defaults were not rounded to float32, as attributes in a file are
    "default epsilon": Sample("InstanceNormalization", (X, X[0, :, 0], X[1, :, 0]), {}, 22,
                              bound=smooth(4)),
    "default epsilon of an upgrade": Sample(
        "BatchNormalization",
        (X, X[0], X[1], X[0], np.abs(X[1]) / 1e4),
        {"spatial": 0},
        7,
        bound=smooth(4),
    ),
    # numpy gives scalars where an operand is one
    "a scalar that folds": Sample(
        "Sigmoid", (np.array(0.5, float32),), {}, 13, (0,), bound=smooth(4)
    ),
    "an integer scalar that folds": Sample("Erf", (np.array(2),), {}, 13, (0,)),
    # random graphs have masks of scores in front of a pool
    "a window of -inf": Sample(
        "MaxPool", (np.full((1, 1, 4), -np.inf, float32),), {"kernel_shape": [2]}, 22,
        want=lambda x: x[..., :3],
    ),
    # numpy pads no scalars
    "a scalar that is padded by nothing": Sample(
        "Pad", (np.array(0.5, float32), np.zeros(0, np.int64)), {"mode": "wrap"}, 19,
        want=lambda x, pads: x,
    ),
    # refused, as the specification does; PyTorch's models of an empty batch compute such shapes
    **{
        f"{shape} in the shape of {target}, {'constant' if where else 'computed'}": Sample(
            "Reshape", (np.zeros(shape, float32), ints(target)), {"allowzero": 1}, 18, where,
            want=lambda x, _, result=result: x.reshape(result),
        )
        for shape, target, result in (
            ((0, 3, 8), [0, 3, 4, -1], (0, 3, 4, 2)),
            ((3, 0, 8), [-1, 0, 8], (3, 0, 8)),
            ((0, 2, 0, 3), [0, -1, 3], (0, 2, 3)),
        )
        for where in ((), (1,))
    },
    # took a vector of unknown length for one with elements
    "scales that turn out to be none": Sample(
        "Resize",
        (X.astype(float16), np.zeros(0, float32), np.zeros(0, float32), ints([2, 3, 7])),
        {"mode": "linear"},
        11,
        bound=smooth(8),
        symbolic=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_agrees(name: str) -> None:
    with np.errstate(all="ignore"):
        wrong = list(disagreements(SAMPLES[name]))
    assert not wrong, wrong
