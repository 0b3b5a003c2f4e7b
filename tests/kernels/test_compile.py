"""NVRTC compiles every kernel for every architecture, without a GPU; and the cache on disk."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.codegen.elementwise import ROWS
from tercet.backends.cuda.codegen.epilogue import NO_EPILOGUE
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.driver.step import bind_launch
from tercet.backends.cuda.gemm.problem import RowKind
from tercet.backends.cuda.gemm.tables.simt import SIMT
from tercet.backends.cuda.recipe import source as kernel_source
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.errors import KernelError, UncompiledError
from tercet.runtime.ir.constraints import signature_of
from tercet.runtime.ir.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int64,
    uint8,
)
from tercet.runtime.ir.op import Op, arity, attributes
from tercet.runtime.ir.types import Array
from tercet.runtime.ops import elementwise as ops
from tercet.runtime.ops.quantize import DequantizeLinear, QuantizeLinear
from tercet.tools.workshop.light_models import light_file

from ..threads import together
from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned, planned_model, single
from .samples import samples

#: What other modules call the set of files that they compile.
DECLARED = "COMPILES"
#: Without generated code, and compiled sooner than most.
EMPTY = KernelSource(
    "move/shape.cu",
    (("Index", "int32"), ("T", "uint32")),
    (("RANK", 1), ("VECTOR", 1), ("GAPS", False)),
)


# ── every variant ────────────────────────────────────────────────────────────────────────────────


SIZES = ("BM", "BN", "BK", "TM", "TN", "STAGES", "SLICES")


def gemm_sources() -> list[KernelSource]:
    """Every tile, split or not, for rows of a matrix, pixels, and windows in both orders."""
    kinds = [*((rows, 4, False) for rows in RowKind), (RowKind.WINDOWS, 1, True)]
    found: list[KernelSource] = []
    for i, tile in enumerate(SIMT):
        for j, (rows, vector, across) in enumerate(kinds):
            split = (i + j) % 2 == 0  # both of them, though not with everything
            constants = {"ROWS": int(rows), "VECTOR_A": vector, "ACROSS": across, "SPLIT": split}
            constants["WIDE"] = i % 3 == 0
            constants |= {"VECTOR_B": 4, "VECTOR_C": 4 if i % 2 else 1, "BIAS": not split}
            found.append(
                KernelSource(
                    "gemm/simt.cu",
                    (("T", "float"), ("R", "float")),
                    (*tile.constants(*SIZES), *constants.items()),
                    NO_EPILOGUE.code,
                )
            )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_products(target: Target, cache: Path) -> None:
    all_compile(gemm_sources(), target, cache, every=True)


def compiled_by_others() -> set[str]:
    """Return the files in the `COMPILES` of other modules, which `all_compile` checks."""
    found: set[str] = set()
    for file in Path(__file__).parents[1].rglob("test_*.py"):
        tree = ast.parse(file.read_bytes())
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == DECLARED:
                uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
                read = [use for use in uses if use.id == DECLARED and isinstance(use.ctx, ast.Load)]
                assert read, f"{file.name} does not compile what it declares"
                names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
                assert any("compile" in name or "spills" in name for name in names), (
                    f"`make oldest-nvrtc` takes tests by name, none of {file.name}"
                )
                found |= ast.literal_eval(statement.value)
    return found


@cache
def other_sources(target: Target) -> list[KernelSource]:
    device = DryDevice(compiler=DryCompiler(target))
    for sample in samples():
        planned(sample.graph, device)
    return [source for source in device.compiler.sources if source.file != "gemm/simt.cu"]


def test_no_kernel_is_left_out() -> None:
    """Whatever its name: samples have it, or a test says that it compiles it, and does."""
    files = {
        path.relative_to(kernel_source.KERNELS).as_posix()
        for path in kernel_source.KERNELS.rglob("*.cu")
    }
    sources = [*gemm_sources(), *other_sources(A100), *other_sources(H200)]
    assert files == {source.file for source in sources} | compiled_by_others()


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_other_kernels(target: Target, cache: Path) -> None:
    all_compile(other_sources(target), target, cache)


@pytest.mark.slow
def test_arguments_are_what_the_kernels_take(cache: Path) -> None:
    """A launch with the wrong number of arguments would read beyond them."""
    graphs = [sample.graph for sample in samples()]
    graphs.append(single("Where", [np.ones(3, bool), normal(3), normal(2, 1)]))
    found = [launch for graph in graphs for launch in launches(planned(graph))]
    assert_arguments(found, H200, cache)


REQUIRED = {ops.BitShift: {"direction": "LEFT"}, ops.Cast: {"to": float16}}


def elementwise_source(operator: type, dtype: DType) -> KernelSource:
    """Return the kernel of one row of the table."""
    device = DryDevice()
    _, maximum = arity(operator)
    count = 3 if maximum is None else maximum
    kinds = [bool_, dtype, dtype] if operator is ops.Where else [dtype] * count
    inputs: list[Array | None] = [np.ones((2, 3), kind) for kind in kinds[:count]]
    constant: tuple[int, ...] = ()
    if operator is ops.Clip:
        inputs = [inputs[0], np.ones((), dtype), None]
    elif operator is QuantizeLinear:
        inputs, constant = [inputs[0], np.ones((), dtype), np.ones((), np.int8)], (1, 2)
    elif operator is DequantizeLinear:
        inputs, constant = [inputs[0], np.ones((), float16), None], (1,)
    given = REQUIRED.get(operator, {})
    assert set(given) <= set(attributes(operator))
    graph = single(operator.__name__, inputs, constant, domain=operator.domain, **given)
    planned(graph, device)
    (source,) = device.compiler.sources
    return source


def is_onnx(operator: type[Op], dtype: DType) -> bool:
    signature = signature_of(operator)
    return signature is None or dtype in signature.inputs[operator is ops.Where].allowed


def joined(sources: Iterable[KernelSource]) -> Iterator[KernelSource]:
    """Yield kernels of as many rows as read and write the same types: that compiles far sooner.

    The functions of each row are as they were, in a namespace, and a result adds up what they give.
    """
    groups = defaultdict[tuple[KernelSource, str], list[str]](list)
    for source in sources:
        lines = source.code.splitlines()
        macros, functions = (
            "\n".join(line for line in lines if line.startswith("#") is is_macro)
            for is_macro in (True, False)
        )
        groups[replace(source, code=""), macros].append(functions)
    for (source, macros), rows in groups.items():
        count = sum(re.fullmatch(r"A\d+", alias) is not None for alias, _ in source.types)
        takes = ", ".join(f"A{i} a{i}" for i in range(count))
        given = ", ".join(f"a{i}" for i in range(count))
        call = f"__device__ __noinline__ float call({takes}) {{ return chain({given}); }}"
        spaces = [f"namespace row{i} {{\n{row}\n{call}\n}}" for i, row in enumerate(rows)]
        total = " + ".join(f"row{i}::call({given})" for i in range(len(rows)))
        chain = f"__device__ __forceinline__ R chain({takes}) {{ return R({total}); }}\n"
        yield replace(source, code="\n".join((macros, *spaces, chain)))


@pytest.mark.slow
def test_every_row_of_the_elementwise_table(cache: Path) -> None:
    sources = [
        elementwise_source(operator, dtype)
        for operator, row in ROWS.items()
        for dtype in (float32, float64, float16, bfloat16, int64, uint8, bool_)
        if (dtype in row.over or operator is ops.Where) and is_onnx(operator, dtype)
    ]
    kernels = list(joined(sources))
    assert sum(kernel.code.count("::call(") for kernel in kernels) == len(sources)
    all_compile(kernels, H200, cache)


def test_a_row_that_does_not_compile_is_an_error(cache: Path) -> None:
    """However many others there are in its kernel."""
    sources = [elementwise_source(operator, float32) for operator in (ops.Sin, ops.Cos, ops.Tan)]
    sources[1] = replace(sources[1], code=sources[1].code.replace("cos(", "cosine_of("))
    with pytest.raises(KernelError, match="cosine_of"):
        all_compile(joined(sources), H200, cache)


@pytest.mark.parametrize("narrow", [10, 16, 17, 19], ids=["half", "bfloat16", "e4m3", "e5m2"])
def test_a_cast_between_others_knows_the_type(narrow: int, cache: Path) -> None:
    """No operand of the chain has it."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[3, 4] x) => (float[3, 4] y)
      {{ a = Neg (x)  b = Cast <to = {narrow}> (a)  c = Cast <to = 1> (b)  y = Relu (c) }}"""
    device = DryDevice()
    with tercet.load(onnx.parser.parse_model(text)) as model:
        assert len(launches(planned_model(model, device))) == 1
    for target in (A100, H200):
        all_compile(list(device.compiler.sources), target, cache)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('asm volatile("nanosleep.u64 20;");', "nanosleep"),
        ('asm volatile("bar.sync 16;");', "16"),
    ],
)
def test_assembly_that_is_wrong_is_an_error(wrong: str, message: str, tmp_path: Path) -> None:
    """Although only assembly that is new is assembled."""
    right = 'asm volatile("nanosleep.u32 20;"); asm volatile("bar.sync 1;");'
    sources = [
        replace(EMPTY, code=f'extern "C" __global__ void own() {{ {body} }}')
        for body in (right, right + right, right + wrong)
    ]
    all_compile(sources[:2], H200, tmp_path)
    with pytest.raises(KernelError, match=message):
        all_compile(sources, H200, tmp_path)


def test_more_shared_memory_than_there_is_is_an_error(tmp_path: Path) -> None:
    fits, does_not = (
        replace(
            EMPTY,
            code=f'extern "C" __global__ void own(float* y) {{ __shared__ float x[{size}];'
            "x[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = x[255 - threadIdx.x]; }",
        )
        for size in (11 << 10, 13 << 10)
    )
    all_compile([fits], H200, tmp_path)
    with pytest.raises(AssertionError, match="53248 bytes of shared memory"):
        all_compile([does_not], H200, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "resnet50", "shufflenet"])
def test_light_models(name: str, cache: Path) -> None:
    device = DryDevice()
    with tercet.load(light_file(name)) as model:
        assert launches(planned_model(model, device))
    all_compile(list(device.compiler.sources), H200, cache)


def test_no_lambda_is_a_template() -> None:
    """NVRTC 13.0 takes the calls of generic lambdas for functions of the host."""
    generic = re.compile(r"\]\s*\([^)]*\bauto\b")
    found = [
        path.name
        for path in kernel_source.KERNELS.rglob("*.cu*")
        if generic.search(path.read_text(encoding="utf-8"))
    ]
    assert not found


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def test_a_syntax_error_names_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled at run time, from text, with errors at the source line."""
    (tmp_path / "broken.cu").write_text("// one\n__global__ void f() { int a = ; }\n")
    monkeypatch.setattr(kernel_source, "KERNELS", tmp_path)
    with pytest.raises(
        KernelError, match=r"^broken\.cu:2: error: expected an expression"
    ) as caught:
        Compiler(H200).code(KernelSource("broken.cu", (("T", "float"),)))
    assert (caught.value.file, caught.value.line) == ("broken.cu", 2)
    assert "int a = ;" in str(caught.value)


def test_an_error_in_a_header_names_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.cuh").write_text("\n\nint x = nothing;\n")
    (tmp_path / "a.cu").write_text('// begin\n#include "a.cuh"\nint y = nothing_either;\n')
    monkeypatch.setattr(kernel_source, "KERNELS", tmp_path)
    with pytest.raises(KernelError, match=r"^a\.cuh:3:") as caught:
        Compiler(H200).code(KernelSource("a.cu"))
    assert "a.cu(3)" in str(caught.value)


def test_what_must_not_be_compiled_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launch,) = launches(planned(single("Softmax", [normal(8, 8)], (0,))))
    for name in ("a.cu", "b.cu", "c.cu"):
        (tmp_path / name).write_text('extern "C" __global__ void f() {}\n')
    monkeypatch.setattr(kernel_source, "KERNELS", tmp_path)
    Compiler(H200, tmp_path / "cache").code(KernelSource("a.cu"))
    compiler = Compiler(H200, tmp_path / "cache")
    monkeypatch.setenv("TERCET_COMPILE", "never")
    there, first, _ = (compiler.submit(KernelSource(f"{name}.cu")) for name in "abc")
    assert there.result() is not None
    device: Any = SimpleNamespace(compiler=compiler)
    said = r"has no code for sm_90a of b\.cu, c\.cu; run the model once without"
    with pytest.raises(UncompiledError, match=said) as caught:
        bind_launch(device, launch, first, {})
    assert caught.value.kernels == ("b.cu", "c.cu")
    assert compiler.statistics.compiled == 0
    monkeypatch.delenv("TERCET_COMPILE")
    assert compiler.submit(KernelSource("b.cu")).result() is not None


def test_time_of_compiling_is_counted(tmp_path: Path) -> None:
    compiler = Compiler(H200, tmp_path)
    seen: list[tuple[int, int]] = []
    compiler.on_change = lambda s: seen.append((s.pending, s.compiled))
    compiler.code(EMPTY)
    assert seen == [(1, 0), (0, 1)]
    assert compiler.statistics.milliseconds > 0


def test_code_is_told_of_on_its_thread_before_anyone_gets_it(tmp_path: Path) -> None:
    told: list[tuple[bytes, int]] = []
    compiler = Compiler(H200, tmp_path, on_code=lambda code: told.append((code, get_ident())))
    code = compiler.submit(EMPTY).result()
    ((same, thread),) = told
    assert same is code
    assert thread != get_ident()


def test_what_a_thread_waits_for_is_compiled_by_it(tmp_path: Path) -> None:
    """It does not wait for others; what is wrong is said by whoever needs it."""
    threads: list[int] = []
    compiler = Compiler(H200, tmp_path, on_code=lambda _: threads.append(get_ident()))
    code = compiler.submit(EMPTY, here=True)
    assert code.done()
    assert compiler.submit(EMPTY) is code
    assert threads == [get_ident()]
    with pytest.raises(KernelError, match=r"error: "):
        compiler.submit(replace(EMPTY, code="wrong"), here=True).result()


def test_nothing_else_happens_while_the_tuner_measures(tmp_path: Path) -> None:
    told: list[bytes] = []
    compiler = Compiler(H200, tmp_path, on_code=told.append)
    compiler.announce("measuring")
    assert compiler.submit(EMPTY).result()
    assert not told


# ── the cache ────────────────────────────────────────────────────────────────────────────────────


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "cuda").iterdir())


def test_a_second_process_finds_the_code(tmp_path: Path) -> None:
    first = Compiler(H200, tmp_path).code(EMPTY)
    again = Compiler(H200, tmp_path)
    assert again.code(EMPTY) == first
    assert (again.statistics.compiled, again.statistics.cached) == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        replace(EMPTY, constants=(("RANK", 2), *EMPTY.constants[1:])),
        replace(EMPTY, types=(EMPTY.types[0], ("T", "uint64"))),
        replace(EMPTY, code="// generated"),
    ],
    ids=["constant", "type", "code"],
)
def test_another_source_is_another_entry(other: KernelSource, tmp_path: Path) -> None:
    compiler = Compiler(H200, tmp_path)
    compiler.code(EMPTY)
    compiler.code(other)
    assert compiler.statistics.compiled == 2
    assert len(entries(tmp_path)) == 2


def test_another_architecture_is_another_entry(tmp_path: Path) -> None:
    for target in (A100, H200):
        Compiler(target, tmp_path).code(EMPTY)
    assert len(entries(tmp_path)) == 2


@pytest.mark.parametrize("damage", [b"", b"tercet-1", b"tercet-1" + b"x" * 5000, None])
def test_a_damaged_entry_is_made_again(damage: bytes | None, tmp_path: Path) -> None:
    code = Compiler(H200, tmp_path).code(EMPTY)
    (entry,) = entries(tmp_path)
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(bytes(data) if damage is None else damage)
    compiler = Compiler(H200, tmp_path)
    assert compiler.code(EMPTY) == code
    assert compiler.statistics.compiled == 1
    assert Compiler(H200, tmp_path).code(EMPTY) == code


def test_many_writers_leave_one_good_entry(tmp_path: Path) -> None:
    codes: list[bytes] = []

    def work(number: int) -> None:
        codes.append(Compiler(H200, tmp_path).code(EMPTY))

    together(work, 8)
    assert len(codes) == 8
    assert len(set(codes)) == 1
    assert [path.suffix for path in entries(tmp_path)] == [".cubin"]
    again = Compiler(H200, tmp_path)
    again.code(EMPTY)
    assert again.statistics.cached == 1


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    assert Compiler(H200, blocked).code(EMPTY)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder_is_no_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert Compiler(H200, tmp_path).code(EMPTY)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert Compiler(H200, tmp_path).code(EMPTY)
    assert not entries(tmp_path)
