"""Products in cuDNN's terms: which nodes run together, how they are divided, what is left."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.elementwise import Sin
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.options import Options, Precision
from tercet.runtime.plan.backend import BuildContext, Decline

from .products import TAILS, Case, linear

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.backend import survey
from tercet.backends.cudnn.choice import EngineTask
from tercet.backends.cudnn.matmul import MatMulProblem
from tercet.backends.cudnn.operation import Operand
from tercet.backends.cudnn.registry import NodeGroup


def surveyed(graph: Graph, precision: Precision = "float32") -> list[NodeGroup | Decline]:
    infer(graph)
    return list(survey(graph, frozenset(graph.nodes), Options(precision=precision)))


def wanted(graph: Graph, precision: Precision = "float32") -> NodeGroup:
    (found,) = surveyed(graph, precision)
    assert isinstance(found, NodeGroup), found
    return found


def wanted_first(graph: Graph) -> NodeGroup:
    found = surveyed(graph)[0]
    assert isinstance(found, NodeGroup), found
    return found


def reason(graph: Graph, precision: Precision = "float32") -> str:
    found = surveyed(graph, precision)[0]
    assert isinstance(found, Decline), found
    return found.reason


def first(found: NodeGroup) -> MatMulProblem:
    product = found.task.divisions[0].operation
    assert isinstance(product, MatMulProblem)
    return product


def titles(task: EngineTask) -> list[tuple[str, str]]:
    return [(way.operation.title, way.rest.title) for way in task.divisions]


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("name", TAILS)
def test_a_product_takes_what_follows(name: str, dtype: DType) -> None:
    found = wanted(linear((2, 5), 8, 16, name).graph(dtype))
    assert len(found.nodes) == 2
    title = TAILS[name][0].__class__.__name__.lower()
    assert (f"matmul+{title}", "") in titles(found.task)
    assert ("matmul", title) in titles(found.task), "or a kernel does it"


def test_rows_of_a_stack_are_rows_of_one_product() -> None:
    product = first(wanted(linear((2, 5), 8, 16).graph(float16)))
    assert (product.a.dims, product.b.dims, product.y.dims) == ((1, 10, 8), (1, 8, 16), (1, 10, 16))


def test_a_bias_makes_columns_rows() -> None:
    """What cublasLt adds to a product is one number per row of it."""
    found = wanted(linear((3,), 8, 16, "bias", "relu").graph(float16))
    assert titles(found.task)[0] == ("transposed matmul+add+relu", "")
    product = first(found)
    assert product.operands["y"] == Operand((1, 16, 3), (48, 1, 16), np.dtype(float16))
    assert product.operands["channels0"].dims == (1, 16, 1)


def test_what_cudnn_has_no_word_for_a_kernel_does() -> None:
    graph = linear((3,), 8, 16, "bias").graph(float16)
    (y,) = graph.outputs.values()
    graph.set_outputs({"y": graph.insert(Sin(), [y]).output})
    assert titles(wanted(graph).task) == [("matmul+add", "sin"), ("matmul", "add+sin")]


def test_what_others_read_is_not_fused_away() -> None:
    graph = linear((3,), 8, 16, "relu").graph(float16)
    product, relu = graph.nodes
    graph.set_outputs({"y": relu.output, "between": product.output})
    assert [node.kind for node in wanted_first(graph).nodes] == ["MatMul"]


@pytest.mark.parametrize(
    ("a", "b", "stacks"),
    [((4, 3, 5), (4, 5, 6), (4, 4)), ((3, 5), (4, 5, 6), (1, 4)), ((2, 4, 3, 5), (5, 6), (1, 1))],
)
def test_stacks(a: tuple[int, ...], b: tuple[int, ...], stacks: tuple[int, int]) -> None:
    product = first(wanted(Case(MatMul(), [a, b]).graph(float16)))
    assert (product.a.dims[0], product.b.dims[0]) == stacks


def test_a_gemm_reads_columns_and_scales() -> None:
    case = Case(Gemm(alpha=2.0, beta=4.0, transA=1, transB=1), [(8, 3), (16, 8), (16,)])
    found = wanted(case.graph(float16))
    product = first(found)
    assert product.a == Operand((1, 3, 8), (24, 1, 3), np.dtype(float16))
    assert product.b == Operand((1, 8, 16), (128, 1, 8), np.dtype(float16))
    assert [stage.inputs[1] for stage in product.tail.stages] == [0.5, "bias", 4.0]
    assert titles(found.task) == [("matmul+mul+bias+mul", ""), ("matmul", "mul+bias+mul")]


def test_slices_of_longer_rows_are_read_where_they_lie() -> None:
    found = wanted(linear((6,), 8, 16, "add").graph(float16))
    x, z = found.nodes[0].inputs[0], found.nodes[1].inputs[1]
    y = found.nodes[1].output
    assert x is not None
    assert z is not None
    assert {x, y, z} == set(found.formats.pitched)
    nothing = None
    site = BuildContext(found.nodes, (x, z), (y,), {}, nothing, {x: 24, y: 40})  # pyright: ignore
    assert found.at is not None
    task = found.at(site)
    assert isinstance(task, EngineTask)
    operands = task.operands
    assert [operands[role].strides[1] for role in ("a", "z", "y")] == [24, 16, 40]


@pytest.mark.parametrize(
    ("case", "dtype", "said"),
    [
        (linear((3,), 8, 16), float32, "TF32"),
        (linear((3,), 8, 16), float64, "dtype float64"),
        (Case(MatMul(), [(8,), (8, 4)]), float16, "vector"),
        (Case(MatMul(), [(3, 0), (0, 4)]), float16, "without elements"),
        (Case(MatMul(), [(2, 1, 3, 5), (4, 5, 6)]), float16, "both broadcast"),
        (Case(Gemm(beta=0.0), [(3, 5), (5, 6), (6,)]), float16, "beta=0"),
    ],
)
def test_what_is_left(case: Case, dtype: DType, said: str) -> None:
    assert said in reason(case.graph(dtype))


def test_tf32_is_for_those_who_ask() -> None:
    assert first(wanted(linear((3,), 8, 16).graph(float32), "tf32")).y.dtype == float32


def test_one_row_is_for_the_cuda_kernels_unless_asked_otherwise() -> None:
    graph = linear((1,), 768, 1000, "bias").graph(float16)
    assert "2.1 to 3.3 times as long" in reason(graph)
    for options in (Options(tune=True), Options(algorithms={"MatMul": "cudnn"})):
        (found,) = survey(graph, frozenset(graph.nodes), options)
        assert isinstance(found, NodeGroup)


def test_gelu_is_not_left_to_cublaslt() -> None:
    """It takes the approximation by tanh, whatever is asked for."""
    found = wanted(linear((3,), 8, 16, "bias", "gelu").graph(float16))
    assert titles(found.task) == [("matmul", "add+gelu"), ("matmul+add+gelu", "")]
    notes = [way.operation.notes for way in found.task.divisions]
    assert ["CUBLASLT_DEPENDENCY" in names for names in notes] == [False, True]


def test_long_sums_leave_their_residual_to_a_kernel() -> None:
    for inner, title in ((3072, "matmul"), (768, "matmul+add+add")):
        found = wanted(linear((3,), inner, 16, "bias", "add").graph(float16))
        assert titles(found.task)[0][0] == title
