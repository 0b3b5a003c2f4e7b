"""Samples of activations and normalizations."""

import numpy as np

from .samples import Draw, Sample

Rng = np.random.Generator
DTYPES = ("float32", "float32", "float16")


def floats(rng: Rng, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def perhaps(rng: Rng, x: np.ndarray, chance: float = 0.5) -> np.ndarray | None:
    return x if rng.random() < chance else None


def activation(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        dtype = str(rng.choice(DTYPES))
        shape = [int(rng.integers(1, 6)) for _ in range(rng.integers(1, 5))]
        inputs: dict[str, np.ndarray | None] = {"x": 3 * floats(rng, *shape, dtype=dtype)}
        attributes = {}
        if name in ("BiasGelu", "FastGelu"):
            bias = floats(rng, shape[-1], dtype=dtype)
            inputs["bias"] = perhaps(rng, bias, 1 if name == "BiasGelu" else 0.5)
        if name == "QuickGelu" and rng.random() < 0.7:
            attributes["alpha"] = float(rng.choice([1.0, -0.5, 1.702, 3.0]))
        return Sample(name, inputs, attributes, wide=dtype == "float16")

    return draw


def skip(name: str) -> Draw:
    def draw(rng: Rng) -> Sample:
        dtype = str(rng.choice(DTYPES))
        b, s, h = (int(rng.integers(1, 5)) for _ in range(3))
        h *= 4
        shapes = [(b, s, h), (1, s, h), (s, h)]
        whole = (b, s, h) if rng.random() < 0.7 else (s, h)
        other = shapes[rng.integers(3)] if len(whole) == 3 else whole
        inputs: dict[str, np.ndarray | None] = {
            "x": floats(rng, *whole, dtype=dtype),
            "skip": floats(rng, *other, dtype=dtype),
            "gamma": floats(rng, h, dtype=dtype),
        }
        if name == "SkipLayerNormalization":
            inputs["beta"] = perhaps(rng, floats(rng, h, dtype=dtype))
        inputs["bias"] = perhaps(rng, floats(rng, h, dtype=dtype))
        outputs = (True, False, False, True) if rng.random() < 0.6 else (True,)
        attributes = {"epsilon": 1e-5} if rng.random() < 0.6 else {}
        return Sample(name, inputs, attributes, outputs)

    return draw


def simplified(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    shape = [int(rng.integers(1, 6)) for _ in range(rng.integers(1, 5))]
    axis = int(rng.integers(-len(shape), 0)) if rng.random() < 0.5 else -1
    inputs: dict[str, np.ndarray | None] = {
        "x": floats(rng, *shape, dtype=dtype),
        "scale": floats(rng, *shape[axis:], dtype=dtype),
    }
    attributes = {"axis": axis, "epsilon": 1e-3, "stash_type": 1}
    outputs = (True, True) if rng.random() < 0.3 else (True,)
    return Sample("SimplifiedLayerNormalization", inputs, attributes, outputs, domain="")


DRAWS: dict[str, Draw] = {
    **{name: activation(name) for name in ("Gelu", "BiasGelu", "FastGelu", "QuickGelu")},
    **{
        f"{name}Normalization": skip(f"{name}Normalization")
        for name in ("SkipLayer", "SkipSimplifiedLayer")
    },
    "SimplifiedLayerNormalization": simplified,
}
