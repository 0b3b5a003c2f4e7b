"""Products of float16 with sums in float16: asked for by name, and told from sums in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.algorithms.registry import RecipeContext, Setting
from tercet.backends.cuda.algorithms.selection import UNASKED
from tercet.backends.cuda.ops.matmul import MATMUL
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.errors import UnsupportedError
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: What a thread has of sums in float16: two in a register.
HALF_FRAGMENT = "typedef unsigned int SumFragment[2];"
WAYS = {"Conv": "half_sums", "MatMul": "half_sums", "Gemm": "half_sums"}


def graphs(dtype: DType = float16) -> dict[str, tuple[Graph, list[Array]]]:
    """Return graphs of numbers of float16 with what they are fed, by name."""

    def half(*shape: int) -> Array:
        return normal(*shape).astype(float16).astype(dtype)

    image, w, groups = half(2, 24, 9, 11), half(40, 24, 3, 3), half(24, 6, 3, 3)
    pixels, few = half(1, 64, 5, 6), half(16, 64, 1, 1)
    rows, terms, shift = half(40, 256), half(256, 77), half(77)
    stack, other = half(3, 8, 64), half(3, 64, 24)
    return {
        "windows": (single("Conv", [image, w], (1,), pads=(1,) * 4), [image]),
        "pixels": (single("Conv", [pixels, few], (1,)), [pixels]),
        "groups": (single("Conv", [image, groups], (1,), group=4), [image]),
        "rows": (single("Gemm", [rows, terms, shift], (1, 2)), [rows]),
        "constant": (single("MatMul", [rows, terms], (1,)), [rows]),
        "stack": (single("MatMul", [stack, other]), [stack, other]),
    }


def products(graph: Graph, target: Target = H200) -> list[Launch]:
    found = launches(planned(graph, DryDevice(compiler=DryCompiler(target)), algorithms=WAYS))
    return [launch for launch in found if launch.entry == "mma"]


@pytest.mark.parametrize("name", graphs())
def test_it_is_taken_where_it_is_asked_for(name: str) -> None:
    graph, _ = graphs()[name]
    (product,) = products(graph)
    assert HALF_FRAGMENT in product.code
    assert not dict(product.constants)["WGMMA"]
    others = [launch for launch in launches(planned(graph)) if launch.entry == "mma"]
    assert not any(HALF_FRAGMENT in launch.code for launch in others)


def test_nobody_else_takes_it() -> None:
    """Neither the heuristic nor the tuner, which looks at the candidates."""
    (node,) = graphs()["constant"][0].nodes
    y, operands = Tensor(node.output), tuple(map(Tensor, node.distinct_reads))
    task = MATMUL.task(RecipeContext(node.op, y, operands, Setting(H200, Options())))
    assert not isinstance(task, str)
    candidates = {candidate.algorithm: candidate for candidate in MATMUL.candidates(task)}
    assert candidates["half_sums"].recipe is None
    assert candidates["half_sums"].reason == UNASKED
    assert candidates["tensor_cores"].recipe is not None


@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
@pytest.mark.parametrize("name", ["windows", "constant"])
def test_other_dtypes_are_refused(name: str, dtype: DType) -> None:
    graph, _ = graphs(dtype)[name]
    with pytest.raises(UnsupportedError, match="sums in float16 are for float16"):
        planned(graph, algorithms=WAYS)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_it_compiles(target: Target, cache: Path) -> None:
    found = [launch for graph, _ in graphs().values() for launch in products(graph, target)]
    assert len(found) == len(graphs())
    all_compile([launch.source for launch in found], target, cache)
    assert_arguments(found, target, cache)


def computed(
    graph: Graph, feeds: Sequence[Array], backend: Backend | None = None, **options: Any
) -> Array:
    """Return the result, of numpy where no backend is named."""
    chosen = replace(OPTIONS, **options)
    chain = open_backends("numpy", chosen) if backend is None else [backend]
    with Model(graph.clone(), chain, chosen, evaluate) as model:
        named = zip((value.name for value in graph.inputs), feeds, strict=True)
        (result,) = model.run(dict(named)).values()
        return np.asarray(result).astype(float64)


@needs_compiler
@pytest.mark.parametrize("name", graphs())
def test_sums_in_float16_are_near_and_those_in_float32_nearer(
    name: str, emulated: CudaBackend
) -> None:
    exact = computed(*graphs(float64)[name])
    narrow, wide = (
        np.linalg.norm(computed(*graphs()[name], emulated, algorithms=ways) - exact)
        for ways in (WAYS, {})
    )
    assert wide < narrow < 5e-3 * np.linalg.norm(exact)


@needs_compiler
def test_sums_end_at_the_greatest_float16(emulated: CudaBackend) -> None:
    rows = np.repeat(np.array([300, -300], float16), 1024)[None].repeat(9, 0)
    graph = single("MatMul", [rows, np.ones((2048, 16), float16)], (1,))
    assert not computed(graph, [rows], emulated).any()
    assert not np.isfinite(computed(graph, [rows], emulated, algorithms=WAYS)).any()
