"""Operands of epilogues: one element per row, and rows that are further apart than the result's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen.epilogue import Epilogue, epilogue_of
from tercet.backends.cuda.codegen.epilogue_operands import row_of, size_of
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Gelu, Mul, Relu, Sigmoid, Sin, Sub, Tanh, Where
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.norm import (
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
)
from tercet.runtime.ops.pool import GlobalAveragePool
from tercet.runtime.ops.reduce import ReduceMax
from tercet.runtime.ops.shape import Reshape, Unsqueeze
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.nets import Net
from .cubins import assert_nothing_spills
from .dry import DryDevice, launches, normal, planned_model
from .emulator import needs_compiler

SKIPPED = Options(skip=("fold_constants", "merge_linear", "fold_affine"))
Case = Callable[[DType, int], tuple[Net, Value]]


def constant(net: Net, *shape: int, scale: float = 1.0) -> Value:
    return net.graph.constant((normal(*shape) * scale).astype(net.x.tensor.dtype), "")


def by_row(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Weights on the left: biases belong to rows, and every matrix of a stack has the same."""
    net = Net(batch, 33, 24, dtype=dtype)
    y = net.add(MatMul(), constant(net, 20, 33, scale=0.2), net.x)
    y = net.add(Gelu(), net.add(Add(), y, constant(net, 20, 1)))
    y = net.add(MatMul(), constant(net, 33, 20, scale=0.2), y)
    return net, net.add(Add(), net.add(Add(), y, constant(net, 33, 1)), net.x)


def by_number(dtype: DType, batch: int) -> tuple[Net, Value]:
    """A computed scalar is added to the single column of a product."""
    net = Net(batch, 33, 24, dtype=dtype)
    y = net.add(MatMul(), net.x, constant(net, 24, 1, scale=0.2))
    return net, net.add(Add(), y, net.add(ReduceMax(keepdims=False), net.x))


def by_scalar(dtype: DType, batch: int) -> tuple[Net, Value]:
    """A computed scalar is a factor of the single row of a product, if there is one."""
    net = Net(batch, 24, dtype=dtype)
    y = net.add(MatMul(), net.x, constant(net, 24, 16, scale=0.2))
    return net, net.add(Mul(), y, net.add(ReduceMax(keepdims=False), net.x))


def snake(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Branches that meet: y + sin²(a y) / a, as in vocoders, a gate, and a third layer."""
    net = Net(batch, 12, 30, dtype=dtype)
    y = net.add(Conv(), net.x, constant(net, 16, 12, 3, scale=0.2))
    waves = net.add(Sin(), net.add(Mul(), y, constant(net, 16, 1)))
    y = net.add(Add(), y, net.add(Mul(), net.add(Mul(), waves, waves), constant(net, 1, 16, 1)))
    y = net.add(Conv(), y, constant(net, 12, 16, 1, scale=0.3))
    gate = net.add(Sigmoid(), y)
    y = net.add(Sub(), net.add(Mul(), gate, net.add(Tanh(), y)), gate)
    return net, net.add(Conv(), y, constant(net, 8, 12, 1, scale=0.3))


def masked(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Columns of a layer, and scores of some heads, of which constant masks leave some."""
    net = Net(batch, 3, 20, 24, dtype=dtype)
    columns = net.graph.constant(np.arange(24) % 3 > 0, "")
    y = net.add(MatMul(), net.x, constant(net, 24, 24, scale=0.2))
    y = net.add(Where(), columns, y, constant(net, 1))
    keys = net.add(Transpose(perm=(0, 1, 3, 2)), net.x)
    y = net.add(Mul(), net.add(MatMul(), y, keys), constant(net, 1))
    lower = net.graph.constant(np.tri(20, dtype=bool), "")
    return net, net.add(Where(), lower, y, net.graph.constant(np.zeros((), dtype), ""))


def blocks(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Blocks of columns with layers of their own, as complex ones have them: x v - x + b."""
    net = Net(3, 20 * batch, 16, dtype=dtype)
    x = net.add(MatMul(), net.x, constant(net, 3, 16, 24, scale=0.2))
    y = net.add(MatMul(), x, constant(net, 3, 24, 24, scale=0.2))
    return net, net.add(Relu(), net.add(Add(), net.add(Sub(), y, x), constant(net, 3, 1, 24)))


def gated(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Half of a layer's columns are factors of the other half's product, as in gMLP."""
    net = Net(batch, 20, 16, dtype=dtype)
    wide = net.add(Relu(), net.add(MatMul(), net.x, constant(net, 16, 48, scale=0.3)))
    u, v = net.add(Split(axis=-1, num_outputs=2), wide, outputs=2, name="split")
    v = net.add(LayerNormalization(), v, constant(net, 24), constant(net, 24))
    v = net.add(MatMul(), constant(net, 20, 20, scale=0.2), v)
    return net, net.add(Mul(), u, net.add(Add(), v, constant(net, 20, 1)))


def halves(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Half of an image's channels is added to a convolution of itself, as in CSPNet."""
    net = Net(batch, 16, 5, 6, dtype=dtype)
    wide = net.add(Relu(), net.add(Conv(), net.x, constant(net, 32, 16, 1, 1, scale=0.3)))
    a, b = net.add(Split(axis=1, num_outputs=2), wide, outputs=2, name="split")
    y = net.add(Conv(), b, constant(net, 16, 16, 1, 1, scale=0.3))
    whole = net.join(a, net.add(Relu(), net.add(Add(), y, b)))
    return net, net.add(Conv(), whole, constant(net, 8, 32, 1, 1, scale=0.2))


def parallel(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Two layers of one tensor are added to it, as in GPT-J and Phi."""
    net = Net(batch, 20, 16, dtype=dtype)
    rows = net.add(Relu(), net.x)
    p, q = (
        net.add(Add(), net.add(MatMul(), rows, constant(net, 16, 16, scale=n)), constant(net, 16))
        for n in (0.3, 0.2)
    )
    return net, net.add(Add(), net.add(Add(), p, q), rows)


def positions(dtype: DType, batch: int) -> tuple[Net, Value]:
    """A constant for every element of a sample, as for positions, is added as well."""
    net = Net(batch, 20, 16, dtype=dtype)
    rows = net.add(Relu(), net.x)
    y = net.add(MatMul(), rows, constant(net, 16, 16, scale=0.3))
    y = net.add(Add(), net.add(Add(), y, constant(net, 16)), rows)
    return net, net.add(Add(), y, constant(net, 20, 16))


def tables(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Products of two computed stacks; every sample is multiplied by the same matrices."""
    net = Net(batch, 3, 20, 16, dtype=dtype)
    y = net.add(MatMul(), net.x, net.add(Transpose(perm=(0, 1, 3, 2)), net.x))
    return net, net.add(Mul(), y, constant(net, 3, 20, 20))


def rows_of_image(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Rows of pixels, to which two convolutions of their image are added, as in XCiT."""
    net = Net(batch, 30, 16, dtype=dtype)
    rows = net.add(Relu(), net.x)
    shape, back = (
        net.graph.constant(np.array(n), "") for n in ((batch, 5, 6, 16), (batch, 30, 16))
    )
    image = net.add(Transpose(perm=(0, 3, 1, 2)), net.add(Reshape(), rows, shape))
    image = net.add(Conv(pads=(1,) * 4), image, constant(net, 16, 16, 3, 3, scale=0.2))
    norm = [constant(net, 16) for _ in range(3)]
    ones = net.graph.constant(np.ones(16, net.x.tensor.dtype), "")
    image = net.add(BatchNormalization(), net.add(Gelu(), image), *norm, ones)
    image = net.add(Conv(pads=(1,) * 4), image, constant(net, 16, 16, 3, 3, scale=0.2))
    image = net.add(Transpose(perm=(0, 2, 3, 1)), image)
    return net, net.add(Add(), rows, net.add(Reshape(), image, back))


def modulated(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Parts of a vector of each sample scale and shift all its rows, as in diffusion transformers.

    A sample has as many rows as a warp group.
    """
    net = Net(batch, 16, dtype=dtype)
    rows, axis = (net.graph.constant(np.array(n), "") for n in ((batch, 64, 32), (1,)))
    one = net.graph.constant(np.ones((), net.x.tensor.dtype), "")
    given = net.add(Relu(), net.x)
    x = net.add(Reshape(), net.add(MatMul(), given, constant(net, 16, 64 * 32, scale=0.3)), rows)
    given = net.add(MatMul(), given, constant(net, 16, 96, scale=0.2))
    parts = net.add(Split(axis=-1, num_outputs=3), given, outputs=3, name="split")
    scale, shift, gate = (net.add(Unsqueeze(), each, axis) for each in parts)
    y = net.add(LayerNormalization(), x, constant(net, 32), constant(net, 32))
    y = net.add(Add(), net.add(Mul(), y, net.add(Add(), scale, one)), shift)
    y = net.add(Add(), net.add(MatMul(), y, constant(net, 32, 32, scale=0.3)), constant(net, 32))
    return net, net.add(Add(), x, net.add(Mul(), gate, y))


def modulated_image(dtype: DType, batch: int) -> tuple[Net, Value]:
    """The same of the pixels of an image, as in networks that remove noise."""
    net = Net(batch, 16, 6, 8, dtype=dtype)
    one = net.graph.constant(np.ones((), net.x.tensor.dtype), "")
    given = net.add(Conv(), net.add(GlobalAveragePool(), net.x), constant(net, 64, 16, 1, 1))
    parts = net.add(Split(axis=1, num_outputs=4), net.add(Relu(), given), outputs=4, name="split")
    first, scale, shift, gate = parts
    y = net.add(Conv(pads=(1,) * 4), net.x, constant(net, 16, 16, 3, 3, scale=0.2))
    y = net.add(Relu(), net.add(Add(), y, first))
    y = net.add(GroupNormalization(num_groups=4), y, constant(net, 16), constant(net, 16))
    y = net.add(Add(), net.add(Mul(), y, net.add(Add(), scale, one)), shift)
    y = net.add(Conv(pads=(1,) * 4, group=16), y, constant(net, 16, 1, 3, 3, scale=0.3))
    y = net.add(Relu(), net.add(Mul(), y, gate))
    return net, net.add(Conv(), y, constant(net, 8, 16, 1, 1, scale=0.2))


def modulated_planes(dtype: DType, batch: int) -> tuple[Net, Value]:
    """The same of signals in C order, as in networks that speak."""
    net = Net(batch, 12, 40, dtype=dtype)
    given = net.add(Conv(), net.add(GlobalAveragePool(), net.x), constant(net, 12, 12, 1))
    ones = net.graph.constant(np.ones(12, net.x.tensor.dtype), "")
    y = net.add(InstanceNormalization(), net.add(Relu(), net.x), ones, constant(net, 12))
    return net, net.add(Add(), net.add(Mul(), y, given), given)


def weighted(dtype: DType, batch: int) -> tuple[Net, Value]:
    """A number of each row, as of a gate or a mask, weighs what layers compute of the row."""
    net = Net(batch, 72, 16, dtype=dtype)
    weight = net.add(Sigmoid(), net.add(MatMul(), net.x, constant(net, 16, 1, scale=0.3)))
    y = net.add(
        Add(), net.add(MatMul(), net.x, constant(net, 16, 64, scale=0.3)), constant(net, 64)
    )
    y = net.add(Mul(), net.add(Relu(), y), weight)
    y = net.add(MatMul(), y, constant(net, 64, 24, scale=0.2))
    return net, net.add(Sub(), weight, y)


def weighted_rows(dtype: DType, batch: int) -> tuple[Net, Value]:
    """The same of a Gemm."""
    net = Net(24 * batch, 16, dtype=dtype)
    gate = net.add(Sigmoid(), net.add(MatMul(), net.x, constant(net, 16, 1, scale=0.3)))
    y = net.add(Gemm(), net.x, constant(net, 16, 32, scale=0.3), constant(net, 32))
    y = net.add(Relu(), net.add(Mul(), y, gate))
    y = net.add(Gemm(), y, constant(net, 32, 16, scale=0.3), constant(net, 16))
    return net, net.add(Add(), net.add(Mul(), gate, y), net.x)


def distances(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Squared distances of all rows from one another: |x|² - 2 x y + |y|²."""
    net = Net(batch, 24, 16, dtype=dtype)
    squares = net.add(Relu(), net.add(MatMul(), net.x, constant(net, 16, 1, scale=0.3)))
    shape = net.graph.constant(np.array((batch, 1, 24)), "")
    y = net.add(MatMul(), net.x, net.add(Transpose(perm=(0, 2, 1)), net.x))
    y = net.add(Sub(), squares, net.add(Mul(), y, constant(net, 1)))
    return net, net.add(Add(), y, net.add(Reshape(), squares, shape))


def decayed(dtype: DType, batch: int) -> tuple[Net, Value]:
    """Scores times decays below the greatest of a row, which is found where they are computed."""
    net = Net(batch, 24, 16, dtype=dtype)
    gates = net.add(MatMul(), net.x, constant(net, 16, 1, scale=0.3))
    shape = net.graph.constant(np.array((batch, 1, 24)), "")
    axis = net.graph.constant(np.array([-1]), "")
    decays = net.add(Sub(), gates, net.add(Reshape(), gates, shape))
    decays = net.add(Sub(), decays, net.add(ReduceMax(), decays, axis))
    y = net.add(MatMul(), net.x, net.add(Transpose(perm=(0, 2, 1)), net.x))
    return net, net.add(Mul(), y, net.add(Tanh(), decays))


def weighted_pixels(dtype: DType, batch: int) -> tuple[Net, Value]:
    """A number of each pixel, as of spatial attention, weighs the channels of convolutions."""
    net = Net(batch, 16, 6, 8, dtype=dtype)
    weight = net.add(Sigmoid(), net.add(Conv(), net.x, constant(net, 1, 16, 1, 1)))
    y = net.add(Conv(pads=(1,) * 4), net.x, constant(net, 16, 16, 3, 3, scale=0.2))
    y = net.add(Mul(), net.add(Relu(), y), weight)
    y = net.add(Conv(pads=(1,) * 4, group=16), y, constant(net, 16, 1, 3, 3, scale=0.3))
    y = net.add(Relu(), net.add(Mul(), weight, y))
    y = net.add(Conv(), y, constant(net, 8, 16, 1, 1, scale=0.2))
    return net, net.add(Add(), y, weight)


#: Cases with one number of each row, or of each pixel.
BY_LINE = weighted, weighted_rows, distances, decayed, weighted_pixels


def model_of(
    case: Case,
    backend: CudaBackend | NumpyBackend,
    dtype: DType,
    batch: int,
    options: Options = SKIPPED,
) -> Model:
    net, y = case(dtype, batch)
    net.graph.set_outputs({"y": y})
    return Model(net.graph, [backend], options, evaluate)


@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize(
    ("case", "batch", "count"),
    [
        *((by_row, batch, 2) for batch in (1, 3)),
        *((by_number, batch, 2) for batch in (1, 3)),
        (by_scalar, 1, 2),
        *((snake, batch, 3) for batch in (1, 3)),
        *((masked, batch, 2) for batch in (1, 3)),
        *((blocks, batch, 2) for batch in (1, 3)),
        *((gated, batch, 3) for batch in (1, 3)),
        *((positions, batch, 2) for batch in (1, 3)),
        *((tables, batch, 1) for batch in (1, 3)),
        *((weighted, batch, 3) for batch in (1, 3)),
        *((weighted_rows, batch, 3) for batch in (1, 3)),
        *((distances, batch, 2) for batch in (1, 3)),
        *((decayed, batch, 3) for batch in (1, 3)),
        *((weighted_pixels, batch, 4) for batch in (1, 3)),
        *((rows_of_image, batch, 3) for batch in (1, 3)),
        *((modulated, batch, 5) for batch in (1, 3)),
        (modulated_image, 1, 6),
        (modulated_planes, 3, 4),
    ],
)
def test_nothing_has_a_kernel_of_its_own(case: Case, batch: int, count: int, dtype: DType) -> None:
    layout = planned_model(model_of(case, NumpyBackend(), dtype, batch), DryDevice())
    found = [launch for launch in launches(layout) if launch.entry not in ("split_pack",)]
    assert len(found) == count
    moved = [launch for launch in found if launch.file.startswith(("move/", "elementwise/"))]
    assert len(moved) == (
        case in (rows_of_image, modulated, modulated_planes, positions)
    )  # the Relu before all


def test_only_the_half_that_is_joined_is_copied() -> None:
    """Unless the layer behind it reads it beside the other half, in one image of all."""
    apart = replace(SKIPPED, skip=(*SKIPPED.skip, "join_whole"))
    for options, count in ((apart, 1), (SKIPPED, 0)):
        layout = planned_model(model_of(halves, NumpyBackend(), float16, 1, options), DryDevice())
        assert [launch.entry for launch in launches(layout)].count("copy_strided") == count


@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
def test_each_of_two_products_adds_one_tensor(dtype: DType) -> None:
    layout = planned_model(model_of(parallel, NumpyBackend(), dtype, 2), DryDevice())
    titles = [launch.title for launch in launches(layout) if launch.entry != "split_pack"]
    assert len(titles) == 3  # with that of Relu
    assert all("Add" in title for title in titles[1:])


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 32])
def test_large_tiles_have_registers_for_two_operands(batch: int, cache: Path) -> None:
    net = Net(batch, 256, 32, 32, dtype=float16)
    y = net.add(Relu(), net.add(Conv(), net.x, constant(net, 256, 256, 1, 1, scale=0.1)))
    y = net.add(Add(), net.add(Mul(), y, constant(net, 1, 256, 1, 1)), constant(net, 1, 256, 1, 1))
    net.graph.set_outputs({"y": y})
    device = DryDevice()
    with Model(net.graph, [NumpyBackend()], SKIPPED, evaluate) as model:
        planned_model(model, device)
    assert_nothing_spills(device.compiler.sources, Compiler(H200, cache))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize(
    "case",
    [
        by_row,
        by_number,
        by_scalar,
        snake,
        masked,
        blocks,
        gated,
        halves,
        parallel,
        positions,
        tables,
        *BY_LINE,
        rows_of_image,
        modulated,
        modulated_image,
        modulated_planes,
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_results(case: Case, batch: int, dtype: DType, emulated: CudaBackend) -> None:
    assert_exact(case, batch, dtype, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "case",
    [
        by_row,
        snake,
        masked,
        blocks,
        gated,
        halves,
        positions,
        modulated,
        modulated_image,
        *BY_LINE,
    ],
)
def test_results_of_hopper(case: Case, hopper: CudaBackend) -> None:
    assert_exact(case, 2, float16, hopper)


def assert_exact(case: Case, batch: int, dtype: DType, backend: CudaBackend) -> None:
    """Compare with numpy in float64, on the same rounded numbers."""
    model = model_of(case, backend, dtype, batch)
    (value,) = model.graph.inputs
    x = normal(*value.tensor.dims).astype(dtype)
    exact = model_of(case, NumpyBackend(), np.dtype(np.float64), batch)
    wanted = exact.run({"x": x.astype(np.float64)})["y"]
    found = model.run({"x": x})["y"].astype(np.float64)
    limit = (4e-3 if dtype == float16 else 1e-5) * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)


def test_a_mask_as_large_as_the_result_is_read_along_with_it() -> None:
    """As what is added is."""
    net = Net(20, 16)
    given = net.graph.add_input("w", TensorType(float32, (16, 24)))
    product = net.add(MatMul(), net.x, given)
    flags = net.graph.constant(np.tri(20, 24, dtype=bool), "")
    y = net.add(Where(), flags, product, net.graph.constant(np.zeros((), float32), ""))
    assert y.producer is not None
    found = epilogue_of((y.producer,), Tensor(y), product, operand=Tensor)
    assert isinstance(found, Epilogue)
    assert (len(found.along), found.reads_along, found.pitched) == (1, True, ())
    (mask,) = found.along
    assert (row_of(mask, 24), size_of(mask)) == (24, 20 * 24)


def test_pixels_of_one_axis_are_added_apart() -> None:
    """They have channels first, and the convolution's result has them last."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[2, 4, 6, 4] x, float[2, 8, 6, 1] z) => (float[2, 8, 6, 4] y)
      { a = Conv (x, w)  y = Add (z, a) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(normal(8, 4, 1, 1), "w"))
    found = tercet.inspect(proto, placement="cuda", target="sm_80", fallback="numpy")
    assert found.placement is not None
    steps = [row.operators for row in found.placement if row.kind == "step"]
    assert steps == ["Conv", "Add"]
