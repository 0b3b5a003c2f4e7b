"""Algorithms of convolutions: recipes as data, what is compiled, results on the emulated GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda import ALGORITHMS
from tercet.backends.cuda.algorithms.registry import Answer, RecipeContext
from tercet.backends.cuda.algorithms.selection import UNASKED, Algorithm
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.conv.fft import pack_spectra
from tercet.backends.cuda.conv.implicit_gemm import phases_of
from tercet.backends.cuda.conv.winograd import WEIGHTS
from tercet.backends.cuda.gemm.convolution import ConvProblem
from tercet.backends.cuda.ops.conv import CONV, CONV_TRANSPOSE
from tercet.backends.cuda.ops.matmul import GEMM, MATMUL
from tercet.backends.cuda.recipe.launch import launches_of
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.backends.cuda.recipe.setting import Setting, TunedChoice
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.errors import UnsupportedError, UsageError
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add
from tercet.runtime.options import Options
from tercet.runtime.plan.format import Format

from .algorithm_cases import CASES, TRANSPOSED, Case, error, limit, pairs, tasked
from .cubins import all_compile
from .dry import launches, normal, planned, single
from .emulator import needs_compiler

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {
    "conv/direct.cu",
    "conv/fft.cu",
    "conv/implicit.cu",
    "conv/winograd.cu",
    "conv/winograd_transform.cu",
}


# ── floors and estimates ──────────────────────────────────────────────────────────────────────────


def shapes() -> Iterator[dict[str, Any]]:
    """Convolutions of all sizes, among them those of common networks, and transposed ones."""
    dice = np.random.default_rng(0)
    for i in range(300):
        kernel = int(dice.choice((1, 2, 3, 3, 5, 7, 11)))
        channels, filters = (int(2 ** dice.uniform(0, 9)) for _ in range(2))
        group = int(dice.choice((1, 1, 1, 2, channels)))
        channels, filters = -(-channels // group) * group, -(-filters // group) * group
        size = kernel + 2 + int(2 ** dice.uniform(0, 7))
        how = {"strides": (int(dice.integers(1, 3)),) * 2, "group": group}
        how |= {"pads": (int(dice.integers(0, 2)),) * 4, "target": (H200, A100)[i % 2]}
        x = (int(dice.choice((1, 1, 8))), channels, size, size)
        if i % 5:
            yield {"w": (filters, channels // group, kernel, kernel), "x": x, **how}
        else:
            w = (channels, filters // group, kernel, kernel)
            yield {"w": w, "x": x, "operator": "ConvTranspose", **how}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_no_estimate_is_below_its_floor(dtype: type[np.floating[Any]]) -> None:
    """Algorithms whose floor is above another's estimate are not looked at."""
    seen: set[str] = set()
    for shape in shapes():
        selector, task = tasked(*shape.pop("w"), dtype=dtype, **shape)
        for algorithm in selector.algorithms:
            formats = algorithm.formats(task)
            if not isinstance(formats, str):
                assert algorithm.floor(task) <= algorithm.estimate(task.within(formats)), (
                    algorithm.name,
                    task,
                )
                seen.add(algorithm.name)
    assert len(seen) > 6


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_least_estimate_is_taken_and_no_other_recipe_is_made(
    dtype: type[np.floating[Any]],
) -> None:
    for shape in itertools.islice(shapes(), 60):
        selector, task = tasked(*shape.pop("w"), dtype=dtype, **shape)
        made: list[str] = []
        algorithms = tuple(
            replace(algorithm, make=recorded(algorithm, made)) for algorithm in selector.algorithms
        )
        candidates = [
            candidate for candidate in selector.candidates(task) if candidate.recipe is not None
        ]
        best = min(candidates, key=lambda candidate: candidate.microseconds)
        assert replace(selector, algorithms=algorithms).pick(task) == best
        assert made[-1] == best.algorithm
        refused = {
            candidate.algorithm
            for candidate in selector.candidates(task)
            if candidate.recipe is None
        }
        assert set(made[:-1]) <= refused


@pytest.mark.parametrize("images", [1, 32])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_encoders_of_speech_are_no_textbook_products(
    dtype: type[np.floating[Any]], images: int
) -> None:
    """Blocks of few terms take most of their time to begin and to store (wav2vec 2.0)."""
    selector, task = tasked(
        *(512, 1, 10), x=(images, 1, 16000), strides=(5,), dtype=dtype, target=H200
    )
    assert selector.pick(task).algorithm != "implicit_gemm"


def test_estimates_of_a_known_problem_make_no_recipe() -> None:
    for shape in itertools.islice(shapes(), 20):
        selector, task = tasked(*shape.pop("w"), **shape)
        made: list[str] = []
        algorithms = tuple(
            replace(algorithm, make=recorded(algorithm, made)) for algorithm in selector.algorithms
        )
        selector = replace(selector, algorithms=algorithms)
        picked = selector.pick(task, tuned=False)
        made.clear()
        formats, estimate = selector.expected(task)
        assert (formats, estimate()) == (picked.formats, picked.microseconds)
        assert not made


def recorded(
    algorithm: Algorithm[ConvProblem], made: list[str]
) -> Callable[[ConvProblem, str], Answer]:
    """Return what makes the recipe of an algorithm and notes its name."""

    def make(task: ConvProblem, variant: str) -> Answer:
        made.append(algorithm.name)
        return algorithm.make(task, variant)

    return make


def test_where_no_algorithm_can_be_used_all_say_why() -> None:
    selector, task = tasked(4, 3, 3, 3, x=(1, 3, 9, 9))
    algorithms = tuple(
        replace(algorithm, make=lambda task, variant: "not today")
        for algorithm in selector.algorithms
        if algorithm.name in ("tensor_cores", "fft", "direct", "half_sums")
    )
    candidate = replace(selector, algorithms=algorithms).pick(
        replace(task, setting=replace(task.setting, picks={}))
    )
    assert candidate.recipe is None
    asked = "; ".join(f"{name}: not today" for name in ("tensor_cores", "fft", "direct"))
    assert candidate.reason == f"{asked}; half_sums: {UNASKED}"


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def test_the_selector_has_the_names_that_users_may_give() -> None:
    for selector in (CONV, CONV_TRANSPOSE, MATMUL, GEMM):
        named = {name for name, able in ALGORITHMS.items() if selector.operator in able}
        assert {algorithm.name for algorithm in selector.algorithms} == named


def test_an_invalid_name_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'winograd_f2'\?"):
        open_backends("numpy", Options(conv="winograd_2"))
    with pytest.raises(UsageError, match="'conv1'"):
        open_backends("numpy", Options(algorithms={"conv1": "magic"}))


def test_what_cannot_be_used_is_refused_by_name() -> None:
    """11x11 by Winograd is a typed error with the node, the algorithm and the reason."""
    graph = single("Conv", [normal(1, 8, 20, 20), normal(8, 8, 11, 11)], (1,))
    with pytest.raises(UnsupportedError) as caught:
        planned(graph, conv="winograd_f2")
    text = str(caught.value)
    assert "'Conv'" in text
    assert "algorithm 'winograd_f2' cannot be used: windows of 11x11, not 3x3" in text


def test_the_first_usable_one_of_several_is_taken() -> None:
    graph = single("Conv", [normal(1, 8, 20, 20), normal(8, 8, 5, 5)], (1,))
    assert [one.entry for one in launches(planned(graph, conv="winograd_f2,direct"))] == ["direct"]


def test_a_node_may_be_asked_for_by_its_name_or_operator() -> None:
    graph = single("Conv", [normal(1, 8, 20, 20), normal(8, 8, 3, 3)], (1,))
    for name in ("Conv", graph.nodes[0].name):
        (launch,) = launches(planned(graph, algorithms={name: "winograd_f4"}))
        assert launch.entry == "winograd"


def test_a_form_may_be_asked_for() -> None:
    """Each one that an algorithm names is taken, on graphs and by their nodes."""
    selector, task = tasked(32, 64, 3, 3, x=(1, 64, 20, 20))
    graph = single("Conv", [normal(1, 64, 20, 20), normal(32, 64, 3, 3)], (1,))
    for name in ("implicit_precomp_gemm", "tensor_cores"):
        algorithm = selector.named(name)
        assert not isinstance(algorithm, str)
        forms = algorithm.variants(task)
        assert len(forms) >= 3
        titles = {
            tuple(one.title + str(one.grid) for one in launches(planned(graph, algorithms=asked)))
            for asked in ({"Conv": f"{name}:{form}"} for form in forms)
        }
        assert len(titles) == len(set(forms))
    with pytest.raises(UnsupportedError, match="there is no variant '1x1' for this task; it has"):
        planned(graph, conv="tensor_cores:1x1")
    with pytest.raises(UnsupportedError, match=r"there is no variant 'fast' .* it has none"):
        planned(graph, conv="winograd_f2:fast")
    (launch,) = launches(planned(graph, conv="winograd_f2:fast,winograd_f2"))
    assert launch.entry == "winograd"


@pytest.mark.slow
@needs_compiler
def test_forms_compute_the_same(emulated: CudaBackend) -> None:
    case = Case((1, 24, 9, 9), (32, 24, 3, 3), (), {"pads": (1, 1, 1, 1)})
    selector, task = tasked(*case.w, x=case.x, target=A100, **case.how)
    algorithm = selector.named("implicit_precomp_gemm")
    assert not isinstance(algorithm, str)
    for form in list(dict.fromkeys(algorithm.variants(task)))[:4]:
        got = case.run(emulated, conv=f"implicit_precomp_gemm:{form}")
        assert error(got, case.exact()) <= limit(case, "implicit_precomp_gemm")


def test_an_operator_without_a_selector_says_so() -> None:
    graph = single("Softmax", [normal(3, 4)])
    with pytest.raises(UnsupportedError, match="Softmax has only one"):
        planned(graph, algorithms={"Softmax": "direct"})


# ── choice ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", [*CASES, *TRANSPOSED], ids=str)
@pytest.mark.parametrize("target", [H200, A100], ids=lambda target: target.arch)
def test_every_algorithm_answers(case: Case, target: Target) -> None:
    """An algorithm gives a recipe or a reason, and the chosen one is the least estimate of all."""
    selector = CONV if case.operator == "Conv" else CONV_TRANSPOSE
    (node,) = single(case.operator, case.arrays, (1, 2), **case.how).nodes
    operands, setting = tuple(map(Tensor, node.distinct_reads)), Setting(target, Options())
    task = selector.task(RecipeContext(node.op, Tensor(node.output), operands, setting))
    assert isinstance(task, ConvProblem)
    candidates = selector.candidates(task)
    for candidate in candidates:
        assert (candidate.recipe is None) == bool(candidate.reason)
        assert (candidate.microseconds < 1e9) == (candidate.recipe is not None)
    usable = {candidate.algorithm for candidate in candidates if candidate.recipe is not None}
    assert usable >= set(case.algorithms)
    assert selector.pick(task).algorithm in usable


def test_a_measured_choice_is_taken() -> None:
    selector, task = tasked(64, 64, 3, 3, x=(1, 64, 56, 56), pads=(1,) * 4)
    chosen = TunedChoice("implicit_precomp_gemm", "32x64x16/2 split 4")
    setting = Setting(H200, Options(), choices={task.signature: chosen})
    (node,) = single(
        "Conv", [normal(1, 64, 56, 56), normal(64, 64, 3, 3)], (1,), pads=(1,) * 4
    ).nodes
    y, x = (Tensor(value, Format.CHANNELS_LAST) for value in (node.output, node.distinct_reads[0]))
    recipe = selector.build(RecipeContext(node.op, y, (x, Tensor(node.distinct_reads[1])), setting))
    assert not isinstance(recipe, str)
    assert [one.title for one in launches_of(recipe)] == ["gemm 32x64x16/2 split 4", "gemm_reduce"]


def test_measured_choices_leave_formats_as_they_are() -> None:
    """They were measured between tensors that estimates had arranged."""
    selector, task = tasked(64, 64, 3, 3, x=(1, 64, 56, 56), pads=(1,) * 4)
    setting = Setting(H200, Options(), choices={task.signature: TunedChoice("direct")})
    (node,) = single(
        "Conv", [normal(1, 64, 56, 56), normal(64, 64, 3, 3)], (1,), pads=(1,) * 4
    ).nodes
    y, operands = Tensor(node.output), tuple(map(Tensor, node.distinct_reads))
    context = RecipeContext(node.op, y, operands, setting)
    assert selector.formats(context) == (Format.CHANNELS_LAST,) * 2
    recipe = selector.build(context)
    assert not isinstance(recipe, str)
    assert [one.entry for one in launches_of(recipe)] == ["direct"]


def test_a_choice_that_makes_no_sense_any_more_is_ignored() -> None:
    selector, task = tasked(64, 64, 5, 5, x=(1, 64, 56, 56))
    for choice in (TunedChoice("winograd_f2"), TunedChoice("no such algorithm")):
        setting = Setting(H200, Options(), choices={task.signature: choice})
        again = tasked(64, 64, 5, 5, x=(1, 64, 56, 56))[1]
        assert selector.pick(again).algorithm == selector.pick(_with(again, setting)).algorithm


def _with(task: ConvProblem, setting: Setting) -> ConvProblem:
    return ConvProblem(task.op, task.y, task.x, task.w, task.b, task.view, task.epilogue, setting)


def residual(channels: int) -> Graph:
    """Return x + conv(x), which wants one format for x."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1, channels, 12, 12)))
    weights = graph.constant(normal(channels, channels, 3, 3), "w")
    value = graph.insert(Conv(pads=(1,) * 4), [x, weights], name="conv").output
    graph.set_outputs({"y": graph.insert(Add(), [value, x]).output})
    infer(graph)
    return graph


def test_where_formats_clash_another_algorithm_is_taken() -> None:
    """A first layer reads C order and gives another, but what it adds cannot be in both."""
    for algorithm in ("implicit_gemm", "direct"):
        (launch,) = launches(planned(residual(5), conv=algorithm))
        assert launch.entry == algorithm
    apart = launches(planned(residual(5), conv="implicit_precomp_gemm"))
    assert [launch.file for launch in apart][-1] == "elementwise/elementwise.cu"


# ── matrix products ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rows", "algorithm", "entry"),
    [
        (4, "gemv", "gemv"),
        (4, "gemm", "gemm"),
        (100, "gemm", "gemm"),
        (100, "tensor_cores", "swap_f16x3"),
        (300, "tensor_cores", "split_wgmma"),
        (100, "naive", "product"),
    ],
)
@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_products_by_name(operator: str, rows: int, algorithm: str, entry: str) -> None:
    graph = single(operator, [normal(rows, 256), normal(256, 40)], (1,))
    launch = launches(planned(graph, algorithms={operator: algorithm}))[0]
    assert launch.entry == entry


@pytest.mark.parametrize(
    ("arrays", "algorithm", "reason"),
    [
        ([normal(9, 16), normal(16, 8)], "gemv", "9 rows, more than 8"),
        ([normal(2, 4, 16), normal(2, 16, 8)], "gemv", "a right matrix of run time"),
        ([normal(9, 16).astype(np.float64), normal(16, 8).astype(np.float64)], "gemm", "float64"),
        ([normal(9, 16), normal(16, 8)], "fft", "MatMul has no such algorithm; it has gemv"),
    ],
)
def test_products_that_a_algorithm_cannot_do(
    arrays: list[Any], algorithm: str, reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        planned(
            single("MatMul", arrays, (1,) * (arrays[1].ndim == 2)), algorithms={"MatMul": algorithm}
        )


@pytest.mark.parametrize(
    ("operator", "shapes", "expected"),
    [
        ("MatMul", ((0, 64), (64, 40)), []),
        ("MatMul", ((5, 0), (0, 40)), ["product"]),
        ("Conv", ((2, 0, 5, 5), (4, 0, 3, 3)), ["conv_naive"]),
        ("ConvTranspose", ((2, 0, 5, 5), (0, 4, 3, 3)), ["conv_transposed"]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products_without_elements(
    operator: str, shapes: Any, expected: list[str], dtype: Any
) -> None:
    """There is nothing to pack, no row to compute, or no term to add up."""
    arrays = [normal(*shape).astype(dtype) for shape in shapes]
    found = launches(planned(single(operator, arrays, (1,))))
    assert [launch.entry for launch in found] == expected


def test_a_measured_product_is_taken() -> None:
    (node,) = single("MatMul", [normal(100, 256), normal(256, 40)], (1,)).nodes
    y, operands = Tensor(node.output), tuple(map(Tensor, node.distinct_reads))
    task = MATMUL.task(RecipeContext(node.op, y, operands, Setting(H200, Options())))
    assert not isinstance(task, str)
    for algorithm, entry in (("gemm", "gemm"), ("tensor_cores", "swap_f16x3")):
        named = MATMUL.named(algorithm)
        assert not isinstance(named, str)
        form = named.variants(task)[-1]
        choices = {task.signature: TunedChoice(algorithm, form)}
        setting = Setting(H200, Options(), choices=choices)
        recipe = MATMUL.build(RecipeContext(node.op, y, operands, setting))
        assert not isinstance(recipe, str)
        assert launches_of(recipe)[0].entry == entry
        assert form.removeprefix("swap ") in launches_of(recipe)[0].note


# ── arithmetic on the host ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("out", [2, 4])
def test_winograd_multiplies_less(out: int) -> None:
    """16 multiplications for 36 with F(2x2, 3x3), 36 for 144 with F(4x4, 3x3)."""
    points = len(WEIGHTS[out]) ** 2
    assert 9 * out * out / points == {2: 2.25, 4: 4.0}[out]


def test_the_phases_of_a_transposed_convolution_cover_every_tap_once() -> None:
    from tercet.backends.cuda.conv.implicit_gemm import _flat

    for case in TRANSPOSED:
        *_, task = tasked(*case.w, x=case.x, operator="ConvTranspose", **case.how)
        view = _flat(task)
        phases, order = phases_of(view, task.channels)
        assert sum(prod(phase.count) for phase in phases) == prod(view.output)
        gaps = [
            s > d * k for s, d, k in zip(view.strides, view.dilations, view.kernel, strict=True)
        ]
        if not any(gaps) and view.dilations == (1, 1):
            assert sorted(order) == sorted(np.ndindex(*view.kernel))


def test_spectra_multiply_as_complex_numbers() -> None:
    packed = pack_spectra(normal(3, 2, 5, 5), 16, (1, 1))
    assert packed.shape == (16 * 9, 4, 6)
    np.testing.assert_array_equal(packed[:, :2, :3], packed[:, 2:, 3:])
    np.testing.assert_array_equal(packed[:, :2, 3:], -packed[:, 2:, :3])


# ── kernels ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("target", [H200, A100], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    sources = dict[KernelSource, None]()
    for case, algorithm in pairs():
        selector, task = tasked(
            *case.w, x=case.x, operator=case.operator, target=target, **case.how
        )
        found = selector.named(algorithm)
        assert not isinstance(found, str)
        recipe = selector.candidate(task, found).recipe
        assert recipe is not None
        found = (launch.source for launch in launches_of(recipe) if launch.file != "gemm/simt.cu")
        sources |= dict.fromkeys(found)
    all_compile(sources, target, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("case", "algorithm"), pairs(), ids=str)
def test_algorithms_against_float64(case: Case, algorithm: str, emulated: CudaBackend) -> None:
    got = case.run(emulated, algorithms={case.operator: algorithm})
    assert error(got, case.exact()) <= limit(case, algorithm)
