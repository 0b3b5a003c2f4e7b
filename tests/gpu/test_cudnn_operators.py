"""Elementwise chains and normalizations on cuDNN: against float64, with special numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import FLOATS, DType, bfloat16, float16, float32, float64, name_of
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops import elementwise as ops
from tercet.runtime.ops.norm import (
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..cudnn.operators import BINARY, PAIRS, UNARY, X
from ..kernels.dry import normal

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

pytestmark = pytest.mark.gpu

HALVES = (float16, bfloat16)
#: Makes the outputs of a graph of its inputs, for elements of a dtype.
Make = Callable[[Graph, Mapping[str, Value], DType], Mapping[str, Value]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def computed(
    make: Make, feeds: Mapping[str, Array], dtype: DType, backend: str, cache: Path
) -> dict[str, Array]:
    """Run a graph in a dtype; on cuDNN all of it must be cuDNN's."""
    graph = Graph("operators")
    given = {
        name: data.astype(dtype if data.dtype in FLOATS else data.dtype)
        for name, data in feeds.items()
    }
    inputs = {n: graph.add_input(n, TensorType(a.dtype, a.shape)) for n, a in given.items()}
    graph.set_outputs(dict(make(graph, inputs, dtype)))
    infer(graph)
    asked = {node.kind: "cudnn" for node in graph.nodes} if backend == "cudnn" else {}
    options = Options(cache=cache, skip=("fold_constants",), algorithms=asked)
    with Model(graph, open_backends(backend, options), options, evaluate) as model:
        results = model.run(given)
        left = [row for row in model.placement() if row.kind == "step" and row.backend != backend]
    assert not left, "\n".join(map(str, left))
    return results


def check(
    make: Make,
    feeds: Mapping[str, Array],
    cache: Path,
    dtype: DType = float32,
    relative: float = 2e-5,
    absolute: float = 2e-6,
) -> None:
    """Compare a graph on cuDNN with the same graph in float64, element by element."""
    with np.errstate(over="ignore"):
        rounded = {n: a.astype(dtype) if a.dtype in FLOATS else a for n, a in feeds.items()}
    got = computed(make, rounded, dtype, "cudnn", cache)
    with np.errstate(all="ignore"):
        want = computed(make, rounded, np.dtype(np.float64), "numpy", cache)
    for name, y in got.items():
        y64, z = y.astype(np.float64), want[name].astype(np.float64)
        with np.errstate(over="ignore"):
            z = np.where(np.isfinite(z.astype(y.dtype).astype(np.float64)), z, z.astype(y.dtype))
        z = z.astype(np.float64)
        np.testing.assert_allclose(y64, z, rtol=relative, atol=absolute, err_msg=name)


# ── elementwise ──────────────────────────────────────────────────────────────────────────────────


def unary(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
    return {str(op): graph.insert(op, [inputs["x"]]).output for op in UNARY}


def binary(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
    return {str(op): graph.insert(op, list(inputs.values())).output for op in BINARY}


def test_functions_of_one_variable(cache: Path) -> None:
    check(unary, {"x": X}, cache, absolute=6e-6)


def test_functions_of_two_variables(cache: Path) -> None:
    check(binary, PAIRS, cache)


@pytest.mark.parametrize("dtype", HALVES, ids=name_of)
def test_16_bits_are_computed_in_float32(dtype: DType, cache: Path) -> None:
    def make(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
        chosen = (ops.Gelu(), ops.Tanh(), ops.Softplus(), ops.IsNaN())
        x, y = inputs.values()
        found = {str(op): graph.insert(op, [x]).output for op in chosen}
        chosen = (ops.Add(), ops.Div(), ops.Max(), ops.Less())
        return found | {str(op): graph.insert(op, [x, y]).output for op in chosen}

    rounding = 2.0**-11 if dtype == float16 else 2.0**-8
    check(make, PAIRS, cache, dtype, relative=1.1 * rounding, absolute=2e-6)


@pytest.mark.parametrize("limits", [(-0.5, 0.25), (None, 0.25), (-0.5, None), (0.0, 6.0)])
def test_clip(limits: tuple[float | None, float | None], cache: Path) -> None:
    def make(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
        given = [None if n is None else graph.constant(np.asarray(n, dtype)) for n in limits]
        return {"y": graph.insert(ops.Clip(), [inputs["x"], *given]).output}

    check(make, {"x": X}, cache)


def test_booleans_in_memory(cache: Path) -> None:
    def make(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
        x, y, m, n = inputs.values()
        chosen = {
            "where": (ops.Where(), m, x, y),
            "and": (ops.And(), m, n),
            "or": (ops.Or(), m, n),
            "xor": (ops.Xor(), m, n),
            "not": (ops.Not(), m),
            "cast": (ops.Cast(to=dtype), m),
            "to bool": (ops.Cast(to=np.dtype(bool)), x),
        }
        return {name: graph.insert(op, given).output for name, (op, *given) in chosen.items()}

    rng = np.random.default_rng(3)
    masks = {name: rng.integers(0, 2, (16, 32)).astype(bool) for name in "mn"}
    check(make, PAIRS | masks, cache)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((1, 12, 9, 11), (12, 1, 1)),
        ((7, 12, 9, 11), (11,)),
        ((7, 12, 9, 11), (7, 1, 9, 11)),
        ((7, 1, 1, 11), (12, 9, 11)),
        ((1009,), (1009,)),
        ((3, 1 << 19), (3, 1)),
        ((), (5, 3)),
    ],
)
def test_chains_of_any_shape(x: tuple[int, ...], y: tuple[int, ...], cache: Path) -> None:
    def make(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
        x, y = inputs.values()
        total = graph.insert(ops.Mean(), [x, y, x]).output
        scaled = graph.insert(ops.Mul(), [total, graph.constant(np.asarray(0.5, dtype))]).output
        gate = graph.insert(ops.Greater(), [scaled, x]).output
        chosen = graph.insert(ops.Where(), [gate, scaled, y]).output
        return {"y": graph.insert(ops.Tanh(), [chosen]).output}

    feeds = {"x": normal(*x) if x else np.float32(0.3).reshape(()), "y": normal(*y)}
    check(make, feeds, cache)


# ── normalizations ───────────────────────────────────────────────────────────────────────────────

ROUNDING = {float32: (1e-5, 5e-6), float16: (1e-3, 2e-3), bfloat16: (8e-3, 1.6e-2)}


def parameters(graph: Graph, shape: tuple[int, ...], dtype: DType, count: int) -> list[Value]:
    """Return constants that all dtypes have."""
    numbers = (np.round(32 * normal(*shape, i + 1)[..., 0]) / 64 for i in range(count))
    return [graph.constant(data.astype(dtype)) for data in numbers]


@pytest.mark.parametrize("dtype", ROUNDING, ids=name_of)
@pytest.mark.parametrize("shape", [(3, 33, 768), (5, 129), (2, 40000)])
def test_normalizations_of_rows(shape: tuple[int, ...], dtype: DType, cache: Path) -> None:
    def make(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
        (x,) = inputs.values()
        scale, shift = parameters(graph, shape[-1:], dtype, 2)
        layer = graph.insert(LayerNormalization(), [x, scale, shift]).output
        unshifted = graph.insert(LayerNormalization(epsilon=0.1), [x, scale]).output
        root = graph.insert(RMSNormalization(), [x, scale]).output
        behind = graph.insert(RMSNormalization(), [x, shift]).output
        gelu = graph.insert(ops.Gelu(), [behind]).output
        return {"layer": layer, "unshifted": unshifted, "root": root, "gelu": gelu}

    x = normal(*shape) * 2 + 1
    x[0, 0] = 3.0
    x[1, -1] = nan
    relative, absolute = ROUNDING[dtype]
    check(make, {"x": x}, cache, dtype, relative, absolute)


def test_layer_normalization_gives_its_statistics(cache: Path) -> None:
    def make(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
        scale, shift = parameters(graph, (8, 96), dtype, 2)
        op = LayerNormalization(axis=-2, stash_type=dtype)
        outputs = graph.insert(op, [inputs["x"], scale, shift], 3).outputs
        return dict(zip(("y", "mean", "deviation"), outputs, strict=True))

    check(make, {"x": normal(4, 5, 8, 96) + 1}, cache)


@pytest.mark.parametrize("dtype", ROUNDING, ids=name_of)
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 13, 11), 2), ((3, 64, 400), 16), ((1, 3, 4, 5, 6), 1)]
)
def test_normalizations_of_channels(
    shape: tuple[int, ...], groups: int, dtype: DType, cache: Path
) -> None:
    def make(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
        (x,) = inputs.values()
        scale, shift = parameters(graph, shape[1:2], dtype, 2)
        wide = dtype if dtype == float64 else float32
        grouped = GroupNormalization(num_groups=groups, stash_type=wide)
        return {
            "instance": graph.insert(InstanceNormalization(), [x, scale, shift]).output,
            "group": graph.insert(grouped, [x, scale, shift]).output,
        }

    x = normal(*shape) * 2 + 1
    x[0, 0, 0] = inf
    relative, absolute = ROUNDING[dtype]
    check(make, {"x": x}, cache, dtype, relative, absolute)


@pytest.mark.parametrize("dtype", ROUNDING, ids=name_of)
@pytest.mark.parametrize("shape", [(1, 5, 13, 11), (6, 64)])
def test_batch_normalization_with_what_is_behind_it(
    shape: tuple[int, ...], dtype: DType, cache: Path
) -> None:
    def make(graph: Graph, inputs: Mapping[str, Value], dtype: DType) -> dict[str, Value]:
        (x,) = inputs.values()
        scale, shift, mean, variance = parameters(graph, shape[1:2], dtype, 4)
        variance = graph.constant(np.abs(np.asarray(variance.data)) + dtype.type(0.5))
        found = graph.insert(BatchNormalization(), [x, scale, shift, mean, variance]).output
        return {"relu": graph.insert(ops.Relu(), [found]).output}

    feeds = {"x": normal(*shape) * 2 + 1}
    relative, absolute = ROUNDING[dtype]
    check(make, feeds, cache, dtype, relative, absolute)
