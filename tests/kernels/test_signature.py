"""Arguments by name: what kernels declare, and what they refuse to be given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.driver.step import sizes
from tercet.backends.cuda.recipe import source as kernel_source
from tercet.backends.cuda.recipe.arguments import ArgumentError, TooLarge
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.operands import Arguments, Scratch, Struct, Tensor, TensorMap
from tercet.backends.cuda.recipe.source import (
    KERNELS,
    Member,
    Parameter,
    UserSource,
    begins_early,
    signature_of,
)
from tercet.runtime.errors import KernelError
from tercet.runtime.ir.dtypes import DType, float16, float32, int32, int64, uint32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.types import TensorType

#: Three parameters a macro of the launch repeats, and one of every other kind.
TEXT = """
#define INPUT(i) , const T *x##i, \\
    Index width##i
struct Divisor { unsigned factor; int shift; };
struct Plane {  // how it lies; (in pixels)
    int height, width;  /* of { an image */
    int steps[RANK], pads[2];
    Divisor by_width;
    __device__ int operator()(int i) const { if (i) { return i; } return 0; }
};
struct Ints { Index at[RANK]; };
struct alignas(64) TensorMap { unsigned char bytes[128]; };

// extern "C" __global__ void first(int x) is no kernel.
extern "C" __global__ void __launch_bounds__(32 * (WARPS), 2)
first(const __grid_constant__ TensorMap map, const T* __restrict__ x, float*y, const W* words,
      Index count, float scale, // a factor
      const Plane p, Ints sizes INPUTS(INPUT))
{
}
extern "C" __global__ void second(unsigned long long seed) {}
"""
NAMES = ("map", "x", "y", "words", "count", "scale", "p", "sizes")


def tensor(dtype: DType, *dims: int) -> Tensor:
    return Tensor(Value("x", TensorType(dtype, dims)))


X, Y = tensor(float16, 3), tensor(float32, 3)
PLANE = {"height": 2, "width": 3, "steps": (4, 5), "pads": (6, 7), "by_width": (8, 9)}
GIVEN: dict[str, Any] = {
    **{"sizes": (7, 8), "p": PLANE, "scale": 0.5, "count": 3, "words": X, "y": Y, "x": X},
    "map": TensorMap(Scratch(0), float16, (8,), (), (8,)),
}


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a.cu").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(kernel_source, "KERNELS", tmp_path)
    return "a.cu"


def launch(given: Arguments, inputs: int = 0, index: DType = int32) -> Launch:
    return Launch(
        "a.cu",
        "first",
        grid=(1, 1, 1),
        block=32,
        args=given,
        types=(("T", float16), ("W", uint32), ("Index", index)),
        constants=(("RANK", 2), ("WARPS", 1)),
        code=f"#define INPUTS(X) {' '.join(f'X({i})' for i in range(inputs))}",
    )


# ── what is declared ─────────────────────────────────────────────────────────────────────────────


def test_the_parameters_are_read_from_the_source() -> None:
    signature = signature_of("a.cu", "first", "#define INPUTS(X) X(0) X(1)")
    assert tuple(signature.parameters) == (*NAMES, "x0", "width0", "x1", "width1")
    assert signature.parameters["x"] == Parameter("x", "T", is_pointer=True)
    assert signature.parameters["y"] == Parameter("y", "float", is_pointer=True)
    assert signature.parameters["p"] == Parameter("p", "Plane", is_pointer=False)
    assert signature.parameters["width1"] == Parameter("width1", "Index", is_pointer=False)
    assert signature.structs["Plane"] == (
        *(Member("height", "int", ""), Member("width", "int", "")),
        *(Member("steps", "int", "RANK"), Member("pads", "int", "2")),
        Member("by_width", "Divisor", ""),
    )
    (seed,) = signature_of("a.cu", "second").parameters.values()
    assert seed == Parameter("seed", "unsigned long long", is_pointer=False)


def test_every_kernel_has_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_source, "KERNELS", KERNELS)
    kernel = re.compile(r'^extern "C" __global__ void\s+(?:__launch_bounds__.*\n)?(\w+)\(', re.M)
    repeat = " ".join(f"X({i})" for i in range(3))
    names = ("INPUTS", "OPERANDS", "RESULTS", "BEHIND")
    code = "\n".join(f"#define {name}(X) {repeat}" for name in names)
    found = 0
    for path in KERNELS.rglob("*.cu"):
        for entry in kernel.findall(path.read_text(encoding="utf-8")):
            parameters = signature_of(path.relative_to(KERNELS).as_posix(), entry, code).parameters
            assert parameters
            assert all(re.fullmatch(r"\w+", name) for name in parameters), entry
            assert all(re.fullmatch(r"[\w ]+", one.type) for one in parameters.values()), entry
            found += 1
    assert found > 100


@pytest.mark.parametrize(
    ("entry", "code", "reason"),
    [
        ("third", "", "a.cu: no extern \"C\" kernel 'third'"),
        ("first", "", "a.cu: first: no code defines the macro INPUTS"),
    ],
)
def test_what_is_not_declared_is_named(entry: str, code: str, reason: str) -> None:
    with pytest.raises(KernelError, match=re.escape(reason)) as caught:
        signature_of("a.cu", entry, code)
    assert caught.value.file == "a.cu"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("void first(Divisor by = {}) { grid_dependency_sync(); }", "void first(Divisor by = {"),
        ("namespace own { void first() { grid_dependency_sync(); } }", "namespace own {"),
    ],
)
def test_what_would_hide_a_wait_is_refused(text: str, found: str, tmp_path: Path) -> None:
    """Only in the project's own files: a user's kernel may look like this, and begins late."""
    (tmp_path / "b.cu").write_text(f"enum {{ A, B }};\n{text}", encoding="utf-8")
    with pytest.raises(KernelError, match=re.escape(f"no function or struct begins: {found}")):
        begins_early("b.cu", "first")
    assert not begins_early(UserSource("mine", text), "first")


def test_a_kernel_may_wait_in_a_macro(tmp_path: Path) -> None:
    text = "#define WAIT(i) \\\n    grid_dependency_sync();\nconst int SIZES[] = {1, 2};\n"
    text += "__device__ void wait() { WAIT(0) }\nvoid first() { wait(); }\nvoid second() {}"
    (tmp_path / "c.cu").write_text(text, encoding="utf-8")
    assert begins_early("c.cu", "first")
    assert not begins_early("c.cu", "second")


# ── what is given ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("index", "size"), [(int32, 4), (int64, 8)])
def test_arguments_take_the_order_and_the_types_of_the_parameters(index: DType, size: int) -> None:
    made = launch({**GIVEN, "x0": X, "width0": 9}, 1, index)
    assert tuple(made.args) == (*NAMES, "x0", "width0")
    assert sizes(made) == [128, 8, 8, 8, size, 4, 32, 2 * size, 8, size]
    assert type(made.args["count"]) is index.type
    assert type(made.args["scale"]) is np.float32
    plane = made.args["p"]
    assert isinstance(plane, Struct)
    assert plane.values == (2, 3, 4, 5, 6, 7, 8, 9)
    assert plane["by_width"] == (8, 9)


def test_what_was_arranged_may_be_given_again() -> None:
    made = launch(GIVEN)
    assert launch(made.args) == made
    assert launch({**made.args, "count": 4}) != made


def test_arguments_are_converted_once_for_the_same_parameters() -> None:
    """Launches are made in several steps: with a workspace, behind others, of images."""
    made = launch(GIVEN)
    assert replace(made, scratch=8, note="64x64").args is made.args
    other = replace(made, types=(*made.types[:-1], ("Index", int64)))
    assert type(other.args["count"]) is np.int64


def test_nothing_is_the_null_pointer_or_zeros() -> None:
    made = launch({**GIVEN, "x": None, "p": None})
    assert made.args["x"] is None
    plane = made.args["p"]
    assert isinstance(plane, Struct)
    assert plane.values == (0,) * 8


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"cuont": 3}, "has no argument 'cuont'"),
        ({"y": ...}, "needs the argument 'y'; it has map, x, y"),
        ({"cuont": 3, "count": ...}, "has no argument 'cuont'; did you mean 'count'?"),
        ({"x": 3}, "parameter 'x' is T* = float16*, not 3"),
        ({"x": Y}, "parameter 'x' is T* = float16*, not a tensor float32[3]"),
        ({"y": X}, "parameter 'y' is float*, not a tensor float16[3]"),
        ({"words": tensor(int64, 2)}, "parameter 'words' is W* = uint32*, not a tensor int64[2]"),
        ({"count": X}, "parameter 'count' is Index = int32, not a tensor float16[3]"),
        ({"count": 0.5}, "parameter 'count' is Index = int32, not 0.5"),
        ({"count": None}, "parameter 'count' is Index = int32, not None"),
        ({"scale": (1, 2)}, "parameter 'scale' is float, not (1, 2)"),
        ({"map": X}, "parameter 'map' is TensorMap, not a tensor float16[3]"),
        ({"sizes": (1, 2, 3)}, "parameter 'sizes' is Ints {at[2]}, not members at=(1, 2, 3)"),
        ({"sizes": 5}, "parameter 'sizes' is Ints {at[2]}, not 5"),
        ({"p": (1, 2)}, "pads[2], by_width[2]}, not (1, 2)"),
        ({"p": {**PLANE, "depth": 1}}, "struct 'p' has no member 'depth'"),
        ({"p": {"width": 1}}, "struct 'p' needs the member 'height'"),
        ({"p": {**PLANE, "height": 1.5}}, "not members height=1.5"),
        ({"p": {**PLANE, "steps": (1,)}}, "not members height=2, width=3, steps=(1,)"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], reason: str) -> None:
    changed = {name: one for name, one in {**GIVEN, **given}.items() if one is not ...}
    with pytest.raises(ArgumentError, match=re.escape(reason)) as caught:
        launch(changed)
    assert str(caught.value).startswith("a.cu: first")
    assert caught.value.file == "a.cu"


def test_numbers_that_do_not_fit_are_reasons() -> None:
    with pytest.raises(TooLarge, match="a size of 2147483648; the kernel counts in 32 bits"):
        launch({**GIVEN, "p": {**PLANE, "width": 2**31}})
    with pytest.raises(TooLarge, match="32 bits"):
        launch({**GIVEN, "sizes": (1, 2**31)})
    with pytest.raises(OverflowError):
        launch({**GIVEN, "count": 2**31})
    assert (
        launch({**GIVEN, "count": 2**31, "sizes": (1, 2**31)}, index=int64).args["count"] == 2**31
    )
