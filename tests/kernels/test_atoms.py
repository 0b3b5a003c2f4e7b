"""The matrix instructions: a row of the table is all that a new element type takes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.codegen.epilogue import NO_EPILOGUE
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm.atoms import ATOMS, F16_SUMS, Atom, atom_of
from tercet.backends.cuda.gemm.problem import GemmArguments, Matrix
from tercet.backends.cuda.gemm.schedules import multistage
from tercet.backends.cuda.gemm.tables.f16 import MULTISTAGE
from tercet.backends.cuda.gemm.tile import Config
from tercet.backends.cuda.recipe import source as kernel_source
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import H200, TARGETS
from tercet.runtime.ir.dtypes import (
    DType,
    bfloat16,
    float8e4m3fn,
    float16,
    float32,
    int8,
    uint8,
)
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.types import TensorType

C_SUMS = {"float": "float", "int": "int", "half": "unsigned int"}
WIDTHS = (8, 64, 256)


def kernel(atom: Atom, n: int = 0, *, a_in_registers: bool = False) -> str:
    """Return a kernel of one instruction."""
    sums, call = C_SUMS[atom.sums], f"mma_m16n8k{atom.k}(sums, a, a[0], a[1]);"
    size = f"[{2 if atom.sums == 'half' else 4}]"
    if n:
        add = ", 1" if a_in_registers and not atom.transposable else ""
        call = f"wgmma(sums, {'a' if a_in_registers else 'b'}, b{add});"
        size = f"[{n // 8}][4]"
    return f"""extern "C" __global__ void one({sums}* y, unsigned long long b, unsigned int x)
{{
    {sums} sums{size} = {{}};
    const unsigned int a[4] = {{x, x, x, x}};
    {call}
    for (int i = 0; i < sizeof(sums) / 4; ++i) y[i] = (({sums}*)sums)[i];
}}
"""


@pytest.mark.parametrize("atom", [*ATOMS.values(), F16_SUMS], ids=lambda atom: atom.kind)
def test_instructions_compile(
    atom: Atom, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_source, "KERNELS", tmp_path)
    cases = [(0, False)]
    if atom.sums != "half":
        cases += [(n, registers) for n in WIDTHS for registers in (False, True)]
    for number, (n, registers) in enumerate(cases):
        file = f"{number}.cu"
        (tmp_path / file).write_text(kernel(atom, n, a_in_registers=registers))
        code = atom.code(n, a_in_registers=registers)
        assert Compiler(H200, cache).code(KernelSource(file, code=code))


@pytest.mark.parametrize(
    ("atom", "kind", "instruction"),
    [
        (atom_of(float16), "f16", "m16n8k16.row.col.f32.f16.f16.f32"),
        (atom_of(bfloat16), "bf16", "m16n8k16.row.col.f32.bf16.bf16.f32"),
        (atom_of(float32), "tf32", "m16n8k8.row.col.f32.tf32.tf32.f32"),
        (atom_of(uint8, int8), "u8.s8", "m16n8k32.row.col.s32.u8.s8.s32"),
        (atom_of(float8e4m3fn), "e4m3", "m16n8k32.row.col.f32.e4m3.e4m3.f32"),
        (F16_SUMS, "f16", "m16n8k16.row.col.f16.f16.f16.f16"),
    ],
    ids=lambda value: value.kind if isinstance(value, Atom) else None,
)
def test_an_instruction_is_named_as_in_ptx(atom: Atom, kind: str, instruction: str) -> None:
    code = atom.code()
    assert f'#define KIND "{kind}"\n' in code
    assert f'"mma.sync.aligned.{instruction} "' in code


def test_operands_in_shared_memory_may_lie_across() -> None:
    code = atom_of(float16).code(64, across=128)
    assert '%33, p, 1, 1, 0, 0; }"' in code  # wgmma: A and B in rows of terms
    assert '%65, p, 1, 1, 0, 1; }"' in code  # wgmma_across


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
@pytest.mark.parametrize("dtype", [float8e4m3fn, bfloat16], ids=lambda dtype: dtype.name)
def test_a_row_is_all_that_the_multistage_kernel_takes(
    dtype: DType, arch: str, cache: Path
) -> None:
    """By single warps and by groups of four."""
    target, atom = TARGETS[arch], atom_of(dtype)
    a, b = (Tensor(Value(name, TensorType(dtype, (96, 256)))) for name in "ab")
    c = Tensor(Value("c", TensorType(float32, (96, 96))))
    gemm = GemmArguments(
        Matrix(a, 256, 16 // dtype.itemsize), b, c, (96, 96, 256), 256, 96, dtype=dtype
    )
    for tile in (MULTISTAGE[0], next(tile for tile in MULTISTAGE if tile.wgmma)):
        if tile.wgmma <= target.has_wgmma:
            (launch,) = multistage.multiply(gemm, NO_EPILOGUE, Config(tile), atom, target)
            assert dict(launch.types)["T"] == dtype
            assert Compiler(target, cache).code(launch.source)
