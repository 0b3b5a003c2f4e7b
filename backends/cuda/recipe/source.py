"""The text that NVRTC compiles: a kernel's file with its headers, types and constants.

It is self-contained: types and constants, generated functions, then the file with its own headers
inlined. So equal texts mean equal code, and the text is the cache key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ....runtime.ir.dtypes import (
    INTEGERS,
    DType,
    bfloat16,
    bool_,
    float4e2m1,
    float8e4m3fn,
    float8e4m3fnuz,
    float8e5m2,
    float8e5m2fnuz,
    float8e8m0,
    float16,
    float32,
    float64,
    int2,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint2,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)

KERNELS = Path(__file__).parents[1] / "kernels"

#: The C++ name of every element type that kernels can read and write.
C_TYPES: Mapping[DType, str] = {
    float32: "float",
    float64: "double",
    float16: "__half",
    bfloat16: "__nv_bfloat16",
    int8: "int8",
    int16: "int16",
    int32: "int32",
    int64: "int64",
    uint8: "uint8",
    uint16: "uint16",
    uint32: "uint32",
    uint64: "uint64",
    bool_: "bool",
    float8e4m3fn: "Float8e4m3fn",
    float8e4m3fnuz: "Float8e4m3fnuz",
    float8e5m2: "Float8e5m2",
    float8e5m2fnuz: "Float8e5m2fnuz",
    float8e8m0: "Float8e8m0",
    float4e2m1: "Float4e2m1",
    int4: "Int4",
    int2: "Int2",
    uint4: "Uint4",
    uint2: "Uint2",
}
#: Those of them that `narrow_types.cuh` defines.
SMALL = (float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float8e8m0, float4e2m1)
SMALL += (int4, int2, uint4, uint2)
_SMALL_NAMES = frozenset(C_TYPES[dtype] for dtype in SMALL)
_HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h"}
#: What <cmath> and <cstdint> would bring, which NVRTC does not have.
_PRELUDE = (
    "#define INFINITY __int_as_float(0x7f800000)",
    "#define NAN __int_as_float(0x7fffffff)",
    "using int8 = signed char; using uint8 = unsigned char;",
    "using int16 = short; using uint16 = unsigned short;",
    "using int32 = int; using uint32 = unsigned int;",
    "using int64 = long long; using uint64 = unsigned long long;",
)
_INCLUDE = re.compile(r'^#include "([\w/]+\.cuh)"$', re.MULTILINE)


class UserSource(str):
    """The name of a source that a user brings, with its text, in place of a file of `kernels/`.

    Attributes:
        text: what is compiled.
    """

    text: str

    def __new__(cls, name: str, text: str) -> UserSource:
        """Return the name, for messages of the compiler, with the text."""
        found = super().__new__(cls, re.sub(r"[^\w.:-]", "_", name))
        found.text = text
        return found

    def __eq__(self, other: object) -> bool:
        """Whether it is the same text under the same name."""
        return isinstance(other, UserSource) and (str(self), self.text) == (str(other), other.text)

    def __hash__(self) -> int:
        """Return a number that equal sources share."""
        return hash((str(self), self.text))


def arithmetic(dtype: DType) -> DType:
    """Return the dtype in which kernels compute with elements of another."""
    if dtype in (float32, float64, int32, int64, uint32, uint64):
        return dtype
    return int32 if dtype in INTEGERS or dtype == bool_ else float32


@dataclass(frozen=True, slots=True)
class Source:
    """What is compiled: a file of `kernels/` with everything that its text leaves open.

    Attributes:
        file: its path in `kernels/`, such as ``conv/conv.cu``.
        types: C++ type names by alias, in pairs: ``("T", "float")``.
        constants: values by name, in pairs; they become `constexpr`.
        code: generated functions and macros that the file uses.
    """

    file: str
    types: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, int | bool | float], ...] = ()
    code: str = ""

    def text(self) -> str:
        """Return the whole source, line directives included."""
        lines = [
            f"#include <{header}>"
            for header in dict.fromkeys(_HEADERS.get(name, "") for _, name in self.types)
            if header
        ]
        lines += _PRELUDE
        if any(name in _SMALL_NAMES for _, name in self.types):
            lines += ['#line 1 "narrow_types.cuh"', read_kernel("elementwise/narrow_types.cuh")]
        lines += [f"using {alias} = {name};" for alias, name in self.types]
        lines += [_constant(name, value) for name, value in self.constants]
        if self.code:
            lines += ['#line 1 "generated"', _inlined(self.code, "generated")]
        return "\n".join([*lines, f'#line 1 "{self.file}"', read_kernel(self.file)])


def _constant(name: str, value: int | bool | float) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    kind = "int" if isinstance(value, int) else "float"
    return f"constexpr {kind} {name} = {value!r};"


def read_kernel(file: str) -> str:
    """Return a file of `kernels/`, or a user's, with headers in place of their #include lines."""
    if isinstance(file, UserSource):
        return _inlined(file.text, file)
    return _inlined((KERNELS / file).read_text(encoding="utf-8"), file)


def _inlined(text: str, file: str) -> str:
    def inline(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 2
        return f'#line 1 "{match[1]}"\n{read_kernel(match[1])}\n#line {line} "{file}"'

    return _INCLUDE.sub(inline, text)
