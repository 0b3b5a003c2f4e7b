"""An operator's family has one file name in `runtime/ops`, in every backend, and in the tests.

A file may also be a part of a family: `attention_rows.py` is one of `attention`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tercet.backends.numpy.ops import FILES

ROOT = Path(__file__).resolve().parent.parent
DECLARED = ROOT / "runtime" / "ops"
BACKENDS = {name: ROOT / "backends" / name for name in ("numpy", "cuda", "cudnn")}
#: What declares an implementation: a decorator with operators, or a selector's method.
DECORATORS = {"kernel", "builder", "claims"}
#: How many implementations a backend has at least; cudnn's tables name most of its operators.
MINIMUM = {"numpy": 60, "cuda": 60, "cudnn": 9}
#: Files of cudnn whose operators are in tables, and the families of these.
TABLES = {"pointwise": "elementwise", "reduce": "reduce"}
KERNELS = ROOT / "backends" / "cuda" / "kernels"

#: The room of kernels of a family that has none of its own, by what the kernels have in common.
KERNEL_ROOMS = {
    "boxes": "image",
    "recurrent_ways": "sequence",
    "pool": "image",
    "pool_words": "image",
    "resize": "image",
    "conv_variants": "conv",
    "counted": "reduce",
    "screens": "reduce",
    "search": "reduce",
    "reduce_cumulative": "reduce",
    "gather": "move",
    "movement": "move",
    "copies": "move",
    "tiled_copies": "move",
    "conditional_nodes": "move",  # counters and flags of control flow
    "contrib_distance": "ml",
    "contrib_linalg": "gemm",
    "ml_linear": "ml",
    "ml_trees": "ml",
    "loss": "norm",  # sums of logarithms, as softmax has them
    "packed": "gemm",
    "quantize": "elementwise",
    "random": "elementwise",
    "recurrence_kernel": "elementwise",  # chains, a step after another
    "shared_chains": "elementwise",
    "placed_chains": "elementwise",
    "fold_kernel": "reduce",
    "reduction_kernel": "reduce",
    "row_kernel": "reduce",
    "segment_kernel": "reduce",
    "scan_kernel": "reduce",
    "filtered_lines": "sequence",
    "recurrent": "sequence",
    "signal": "sequence",
    "text": "sequence",
    "training": "sequence",
}
#: Kernels of another room than that of the file which launches them, and why.
KERNELS_ELSEWHERE = {
    "codegen/copies.py": {"gemm/pack_halves.cu"},  # into a format that products read
    "tuning/judge.py": {"norm/squared_error.cu"},  # by which results are compared
}

#: Operators that a file of another family runs, which does the same work already, and why.
ELSEWHERE = {
    ("cuda", "ArrayFeatureExtractor"): "gather",  # it is a Gather
    ("cuda", "MaxUnpool"): "gather",  # a scatter of the greatest elements
    ("cuda", "BitCast"): "movement",  # bytes are copied
    ("cuda", "Dropout"): "random",  # it draws numbers
    ("cuda", "Compress"): "counted",  # the data decide how many results there are
    ("cuda", "NonZero"): "counted",
    ("cuda", "Det"): "product",  # products of any strides
    ("cuda", "Einsum"): "product",
}
#: Kernels whose names are put together where they are launched.
NAMED_IN_PARTS = {
    "attention/attention_decode.cu",
    "attention/attention_f16x3.cu",
    "attention/attention_mma.cu",
    "attention/attention_tiles.cu",
    "elementwise/elementwise.cu",
    "elementwise/moved.cu",
    "gemm/experts_floats_sum.cu",
    "gemm/experts_packed.cu",
    "gemm/experts_packed_sum.cu",
    "gemm/reduce_splits.cu",
    "gemm/reduce_splits_f16.cu",
}


@cache
def families() -> dict[str, str]:
    """Operator → the file that declares it."""
    found: dict[str, str] = {}
    for file in DECLARED.glob("*.py"):
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and any(
                ast.unparse(each).split("(")[0] == "op" for each in node.decorator_list
            ):
                found[node.name] = file.stem
    return found


@cache
def implementations(folder: Path) -> Sequence[tuple[str, str]]:
    """Return operators and the files in which their implementations are."""
    found: list[tuple[str, str]] = []
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            named: list[ast.expr] = []
            if isinstance(node, ast.FunctionDef):
                for each in node.decorator_list:
                    if isinstance(each, ast.Call) and ast.unparse(each.func) in DECORATORS:
                        named += each.args
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                named += node.args if node.func.attr == "register" else ()
            found += ((ast.unparse(one).rpartition(".")[2], file.stem) for one in named)
    return found


def test_families_are_read() -> None:
    found = families()
    assert len(found) > 180
    assert (found["Conv"], found["Softmax"], found["RoiAlign"]) == ("conv", "norm", "boxes")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_family_has_one_name(backend: str) -> None:
    family, wrong = families(), []
    implemented = [pair for pair in implementations(BACKENDS[backend]) if pair[0] in family]
    assert len(implemented) >= MINIMUM[backend]
    for operator, file in implemented:
        expected = ELSEWHERE.get((backend, operator), family[operator])
        if file != expected and not file.startswith(f"{expected}_"):
            wrong.append(f"{operator} is in {file}.py, not in {expected}.py")
    assert not wrong


def test_every_file_of_numpy_is_imported_with_a_family() -> None:
    files = {file.stem for file in (BACKENDS["numpy"] / "ops").glob("*.py")} - {"__init__"}
    assert set(FILES) == files
    known = set(families().values())
    lost = [file for file in FILES if not any(f"{file}_".startswith(f"{one}_") for one in known)]
    assert not lost


#: A model whose only constant is computed, and which has a pooling.
SMALL = """
<ir_version: 10, opset_import: ["" : 21]>
small (float[1, 2, 4, 4] x) => (y) <int32 w = {3}> {
    p = MaxPool<kernel_shape = [2, 2]>(x)
    v = Cast<to = 1>(w)
    y = Mul(p, v)
}
"""


def test_only_families_of_a_model_are_imported() -> None:
    script = f"""
import sys, tercet
model = tercet.load({SMALL!r})
model.run([[[[[1.0] * 4] * 4] * 2]])
print(*(name.rpartition(".")[2] for name in sys.modules if ".numpy.ops." in name))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(found.stdout.split()) == {"pool"}


def test_exceptions_are_needed() -> None:
    family = families()
    found = {(name, *pair) for name in BACKENDS for pair in implementations(BACKENDS[name])}
    for (backend, operator), file in ELSEWHERE.items():
        assert (backend, operator, file) in found, operator
        assert family[operator] != file, operator


def test_tables_of_cases_are_named_after_families() -> None:
    known = set(families().values())
    for file in (ROOT / "tests" / "ops").glob("cases_*.py"):
        name = file.stem.removeprefix("cases_")
        assert any(name == one or name.startswith(f"{one}_") for one in known), file.name


def test_tables_of_cudnn_lie_in_files_of_their_families() -> None:
    known = set(families().values())
    for file, family in TABLES.items():
        assert (BACKENDS["cudnn"] / f"{file}.py").is_file()
        assert family in known


def launched() -> Iterator[tuple[str, str]]:
    """Yield files of the cuda backend and the kernel files that they name."""
    cuda = BACKENDS["cuda"]
    for file in sorted(cuda.rglob("*.py")):
        for name in re.findall(r'"(\w+/\w+\.cu)"', file.read_text(encoding="utf-8")):
            yield file.relative_to(cuda).as_posix(), name


def test_kernels_lie_in_the_rooms_of_their_families() -> None:
    wrong: list[str] = []
    for file, kernel in launched():
        folder, stem = file.split("/")[0], Path(file).stem
        room = KERNEL_ROOMS.get(stem, stem if folder in ("ops", "codegen") else folder)
        if kernel.split("/")[0] != room and kernel not in KERNELS_ELSEWHERE.get(file, ()):
            wrong.append(f"{file} launches {kernel}, not one of {room}/")
    assert not wrong


def test_every_kernel_is_launched_and_every_exception_needed() -> None:
    found = set(launched())
    files = {path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*.cu")}
    assert files - {kernel for _, kernel in found} == NAMED_IN_PARTS
    stems = {Path(file).stem for file, _ in found}
    assert set(KERNEL_ROOMS) <= stems
    for file, kernels in KERNELS_ELSEWHERE.items():
        assert {(file, kernel) for kernel in kernels} <= found
