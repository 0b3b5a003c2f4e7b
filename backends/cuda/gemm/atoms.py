"""Tensor core instructions as a table: one row per pair of element types."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, bfloat16, float8e4m3fn, float16, float32, int8, uint8

#: The 16-bit floats.
HALVES = frozenset({float16, bfloat16})


@record
class Atom:
    """One matrix instruction: D[m, n] += A[m, k] B[n, k]ᵀ.

    ``mma.sync`` is issued by one warp and has 16 x 8 results; ``wgmma`` (Hopper) is issued by four
    warps and has 64 rows by a multiple of 8 columns. Both multiply 32 bytes of a row at a time.

    Attributes:
        a, b: PTX names of the element types.
        k: size of K per instruction.
        sums: type of the accumulators; ``half`` is float16, two per register.
        transposable: whether shared memory operands may be transposed (wgmma).
        parts: how many numbers represent one element of float32, as split by `pack.in_parts` or
            `f16x3.in_halves`; 0 if elements are multiplied directly.
    """

    a: str
    b: str
    k: int
    sums: Literal["float", "int", "half"] = "float"
    transposable: bool = False
    parts: int = 0

    @property
    def title(self) -> str:
        """The composition of a float32 product, for reports: ``3xtf32``; empty for others."""
        return ("", self.a, f"3x{self.a}")[self.parts]

    @property
    def in_halves(self) -> bool:
        """Whether float32 is multiplied as two float16 numbers, scaled; see `f16x3`."""
        return self.parts > 0 and self.k == 16

    @property
    def words(self) -> int:
        """Four-byte words per packed element of B, if it is in parts."""
        return self.parts * 8 // self.k

    @property
    def kind(self) -> str:
        """The element types, as one name where they are equal."""
        return self.a if self.a == self.b else f"{self.a}.{self.b}"

    @property
    def registers(self) -> int:
        """Registers per thread for 16 x 8 accumulators."""
        return 2 if self.sums == "half" else 4

    def code(
        self, n: int = 0, *, across: int = 0, a_in_registers: bool = False, begins: bool = False
    ) -> str:
        """Return the generated code for kernels: macros, and the instructions as functions.

        KIND is `kind`; MMA the warp-level function, for 32 bytes of K; SumFragment the type of a
        thread's part of 16 x 8 accumulators; INTEGER_SUMS whether these are integers; F16X3
        whether float32 is split into float16; WGMMA_CODE whether wgmma is used instead;
        ACROSS_CODE whether ``wgmma_across`` is.

        Args:
            n: columns of ``wgmma``; 0 for a kernel without it, which gets ``mma_m16n8k*``.
            across: columns of ``wgmma_across``, whose right operand is transposed.
            a_in_registers: whether its left operand is in registers.
            begins: whether a fourth argument of ``wgmma`` says if it adds to sums or begins them.
        """
        lines = [
            f'#define KIND "{self.kind}"',
            f"#define MMA mma_m16n8k{self.k}",
            f"#define WGMMA_CODE {int(n > 0)}",
            f"#define ACROSS_CODE {int(across > 0)}",
            f"#define INTEGER_SUMS {int(self.sums == 'int')}",
            f"#define F16X3 {int(self.in_halves)}",
            f"typedef {_C[self.sums]} SumFragment[{self.registers}];",
        ]
        if n:
            registers = a_in_registers and not across
            lines.append(self.wgmma(n, a_in_registers=registers, begins=begins))
        else:
            lines.append(self.mma())
        if across:
            lines.append(self.wgmma(across, across=True, a_in_registers=a_in_registers))
        return "\n".join(lines)

    def mma(self) -> str:
        """Return ``mma_m16n8k*(sums, a, b0, b1)``: the product of one warp."""
        count, (sums, letter) = self.registers, _PTX[self.sums]
        kept = ", ".join(f"%{i}" for i in range(count))
        a = ", ".join(f"%{i}" for i in range(count, count + 4))
        results = ", ".join(f'"+{letter}"(sums[{i}])' for i in range(count))
        return "\n".join(
            (
                f"__device__ __forceinline__ void mma_m16n8k{self.k}({_C[self.sums]} "
                f"(&sums)[{count}], const unsigned int (&a)[4], unsigned int b0, unsigned int b1)",
                "{",
                f'    asm volatile("mma.sync.aligned.m16n8k{self.k}.row.col.{sums}.{self.a}'
                f'.{self.b}.{sums} "',
                f'        "{{{kept}}}, {{{a}}}, {{%{count + 4}, %{count + 5}}}, {{{kept}}};"',
                f'        : {results} : {_FRAGMENT}, "r"(b0), "r"(b1));',
                "}",
            )
        )

    def wgmma(
        self, n: int, *, across: bool = False, a_in_registers: bool = False, begins: bool = False
    ) -> str:
        """Return ``wgmma(sums, a, b)``, or ``wgmma_across``: the product of a warp group.

        Shared memory operands are given by descriptors. A fourth argument selects accumulation or
        overwriting where numbers are split into float16, and with A in registers also for float32
        and for element types that cannot be transposed.

        Args:
            n: columns.
            across: whether B is transposed.
            a_in_registers: whether A is a register fragment.
            begins: whether a fourth argument is wanted in any case.
        """
        count, (sums, letter) = n // 2, _PTX[self.sums]
        results = ", ".join(f'"+{letter}"(sums[{i // 4}][{i % 4}])' for i in range(count))
        kept = ", ".join(f"%{i}" for i in range(count))
        a, b, a_type, given = f"%{count}", count + 1, "unsigned long long a", '"l"(a)'
        if a_in_registers:
            a, b = f"{{{', '.join(f'%{count + i}' for i in range(4))}}}", count + 4
            a_type, given = "const unsigned int (&a)[4]", _FRAGMENT
        immediates = ["p", *(["1", "1"] if self.sums == "float" else [])]
        if self.transposable:
            immediates += [*([] if a_in_registers else ["0"]), str(int(across))]
        split = self.parts > 0 and (self.transposable or a_in_registers)
        begins = begins or split or (a_in_registers and not self.transposable)
        shape = f"m64n{n}k{self.k}"
        test = f"setp.ne.b32 p, %{b + 1}, 0; " if begins else "setp.eq.u32 p, 1, 1; "
        return "\n".join(
            (
                f"__device__ __forceinline__ void wgmma{'_across' if across else ''}"
                f"({_C[self.sums]} (&sums)[{n // 8}][4], {a_type}, unsigned long long b"
                f"{', int add' if begins else ''})",
                "{",
                f'    asm volatile("{{ .reg .pred p; {test}"',
                f'        "wgmma.mma_async.sync.aligned.{shape}.{sums}.{self.a}.{self.b} "',
                f'        "{{{kept}}}, {a}, %{b}, {", ".join(immediates)}; }}"',
                f'        : {results} : {given}, "l"(b){", " + _ADD if begins else ""});',
                "}",
            )
        )


#: PTX type and inline assembly constraint of the accumulators.
_PTX = {"float": ("f32", "f"), "int": ("s32", "r"), "half": ("f16", "r")}
_C = {"float": "float", "int": "int", "half": "unsigned int"}
_FRAGMENT = ", ".join(f'"r"(a[{i}])' for i in range(4))
_ADD = '"r"(add)'

#: float32 products as one or three tf32 products, or as three float16 products.
TF32, TF32X3 = (Atom("tf32", "tf32", 8, parts=parts) for parts in (1, 2))
F16X3 = Atom("f16", "f16", 16, transposable=True, parts=2)
#: float16 products with float16 accumulators; mma.sync only.
F16_SUMS = Atom("f16", "f16", 16, "half")
#: Atoms by the types of A and B.
ATOMS: Mapping[tuple[DType, DType], Atom] = MappingProxyType(
    {
        (float32, float32): TF32X3,
        (float16, float16): Atom("f16", "f16", 16, transposable=True),
        (bfloat16, bfloat16): Atom("bf16", "bf16", 16, transposable=True),
        (int8, int8): Atom("s8", "s8", 32, "int"),
        (int8, uint8): Atom("s8", "u8", 32, "int"),
        (uint8, int8): Atom("u8", "s8", 32, "int"),
        (uint8, uint8): Atom("u8", "u8", 32, "int"),
        (float8e4m3fn, float8e4m3fn): Atom("e4m3", "e4m3", 32),
    }
)


def atom_of(a: DType, b: DType | None = None) -> Atom:
    """Return the atom for elements of A and B; of equal types if one is given."""
    return ATOMS[a, b or a]
