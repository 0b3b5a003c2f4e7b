"""Matrix products: the selectors of MatMul and Gemm; see docs/algorithms.md."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....runtime.ir.dtypes import float16, float32, name_of
from ....runtime.ops.matmul import Gemm, MatMul
from ..algorithms.registry import Answer
from ..algorithms.selection import CONTIGUOUS, Algorithm, Formats, Selector
from ..gemm import f16, f32, in_halves
from ..gemm.atoms import HALVES
from ..gemm.dots import dots_formats, dots_time, multiply_dots
from ..gemm.f16 import HALF_SUMS
from ..gemm.few_terms import few_terms_formats, few_terms_time, multiply_few_terms
from ..gemm.gemv import MAX_ROWS
from ..gemm.ladder import ladder, ladder_formats
from ..gemm.linear import linear_of, tiled
from ..gemm.multiplication import Multiplication, multiplication
from ..gemm.problem import Problem
from ..gemm.product import general_product, stacked_product
from ..gemm.schedules import simt
from ..gemm.short import multiply_short, short_formats, short_time
from ..gemm.short_stacks import multiply_short_stacks, stacks_formats, stacks_time
from ..gemm.strided import multiply_strided, strided_formats, strided_time

# ── algorithms ─────────────


def _gemv_formats(task: Multiplication) -> Formats | str:
    if not task.is_constant:
        return "a right matrix of run time, which cannot be packed"
    rows = task.shape[0]
    if not rows:
        return "no rows"
    return f"{rows} rows, more than {MAX_ROWS}" if rows > MAX_ROWS else CONTIGUOUS


def _gemv_time(task: Multiplication) -> float:
    _, n, k = task.shape
    return 1.5 + n * k * task.a.dtype.itemsize / 3.5e6


def _tensor_formats(task: Multiplication) -> Formats | str:
    if task.a.dtype in HALVES:
        return CONTIGUOUS
    if task.a.dtype != float32:
        return f"dtype {name_of(task.a.dtype)}"
    if not task.setting.target.has_tf32:
        return f"{task.setting.target.arch} has no tensor cores for float32"
    return CONTIGUOUS


def _tensor_time(task: Multiplication) -> float:
    if task.a.dtype in HALVES:
        m, n, k = task.shape
        traffic = 2 * task.count * (m * k + n * k + m * n)
        return 3.0 + max(m * n * k * task.count / 2e8, traffic / 3e6)
    return f32.linear_time(_problem(task), task.is_constant, task.setting)


def _tensor_forms(task: Multiplication) -> tuple[str, ...]:
    if task.a.dtype in HALVES:
        layer = linear_of(task)
        if isinstance(layer, str) or layer.b.data is None:
            return ()
        return tuple(
            form.title for form in f16.linear_forms(layer, task.epilogue, task.setting.target)
        )
    problem = _problem(task)
    atom = f32.fastest(problem, task.is_constant, task.setting)
    return f32.tried(problem, atom, task.setting.target)


def _half_sums_formats(task: Multiplication) -> Formats | str:
    if task.a.dtype != float16:
        return f"dtype {name_of(task.a.dtype)}; sums in float16 are for float16"
    return CONTIGUOUS


def _tile_formats(task: Multiplication) -> Formats | str:
    return CONTIGUOUS if task.a.dtype == float32 else f"dtype {name_of(task.a.dtype)}"


def _problem(task: Multiplication) -> Problem:
    return Problem(*task.shape, task.count)


def _tile_time(task: Multiplication) -> float:
    return simt.choose(_problem(task), task.setting.target).microseconds


def _tile_forms(task: Multiplication) -> tuple[str, ...]:
    return simt.tried(_problem(task), task.setting.target)


def _naive_time(task: Multiplication) -> float:
    """Return an estimate that is slower than any alternative."""
    return 5.0 + prod(task.shape) * task.count / 5e5 + 0.05 * task.shape[2]


def _by(name: str, *, by_name: bool = False) -> Algorithm[Multiplication]:
    """Return one of the algorithms of `matmul`; see `Algorithm`."""
    formats, time, forms = {
        "gemv": (_gemv_formats, _gemv_time, lambda task: ()),
        "tensor_cores": (_tensor_formats, _tensor_time, _tensor_forms),
        "gemm": (_tile_formats, _tile_time, _tile_forms),
        HALF_SUMS: (_half_sums_formats, _tensor_time, lambda task: ()),
    }[name]

    def make(task: Multiplication, variant: str) -> Answer:
        return tiled(replace(task, setting=replace(task.setting, algorithm=name, form=variant)))

    return Algorithm(name, make, formats, time, forms, by_name=by_name)


def _step(name: str, slower: float) -> Algorithm[Multiplication]:
    """Return an algorithm for teaching, slower than gemm by `slower` at 2048 x 2048 x 2048."""

    def make(task: Multiplication, variant: str) -> Answer:
        return ladder(task, name)

    return Algorithm(name, make, ladder_formats, lambda task: slower * _tile_time(task))


def _naive(task: Multiplication, variant: str) -> Answer:
    if isinstance(task.op, Gemm):
        return general_product(task.op, task.y, task.a, task.b, task.c, task.epilogue)
    return stacked_product(task.y, task.a, task.b, task.epilogue)


ALGORITHMS = (
    _by("gemv"),
    Algorithm("short", multiply_short, short_formats, short_time),
    Algorithm("few_terms", multiply_few_terms, few_terms_formats, few_terms_time),
    Algorithm("short_stacks", multiply_short_stacks, stacks_formats, stacks_time),
    Algorithm("dots", multiply_dots, dots_formats, dots_time),
    _by("tensor_cores"),
    Algorithm("in_halves", in_halves.make, in_halves.formats, in_halves.time, in_halves.variants),
    Algorithm("strided", multiply_strided, strided_formats, strided_time),
    _by("gemm"),
    Algorithm("naive", _naive, lambda task: CONTIGUOUS, _naive_time),
    _by(HALF_SUMS, by_name=True),
)
LADDER = (
    _step("gemm_vectors", 1.25),
    _step("gemm_registers", 1.5),
    _step("gemm_blocked", 4.5),
    _step("gemm_naive", 7.7),
)
MATMUL = Selector("MatMul", (*ALGORITHMS, *LADDER), multiplication)
GEMM = Selector("Gemm", ALGORITHMS, multiplication)

MATMUL.register(MatMul)
GEMM.register(Gemm)
