"""Who may import whom: the folders of the project, and the rooms inside of each."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("runtime", "importers", "backends", "tools")

# What each folder may import besides itself; what is not listed here is unrestricted.
ALLOWED = {
    "runtime": (),
    "importers": ("runtime",),
    "backends/numpy": ("runtime",),
    "backends/cuda": ("runtime",),
    "backends/cudnn": ("runtime", "backends/cuda"),
    "backends/regions": ("runtime", "importers/onnx"),
    "backends/openvino": ("runtime", "backends/numpy", "backends/regions"),
    "backends/tensorrt": ("runtime", "backends/cuda", "backends/regions"),
}

# The rooms of a folder from the ground up, and the modules beside them: each with what it may
# import. Nobody is named before it has its own line, so there is no circle.
ROOMS: dict[str, dict[str, str]] = {
    "runtime": {
        "text": "",
        "spelling": "",
        "errors": "text spelling",
        "base": "text errors",
        "ir": "text errors base",
        "ops": "text errors base ir",
        "passes": "text errors base ir ops",
        "options": "text errors base ir passes",
        "plan": "text errors base ir ops options",
        "backend": "plan",
        "host": "plan",
        "control": "text errors base ir ops passes options plan",
        "session": "text errors base ir ops passes options plan control",
    },
    "runtime/passes": {
        "editing": "",
        "pointwise": "",
        "rounding": "",
        "moved_places": "",
        "driver": "moved_places",
        "polynomial": "editing",
        "pattern": "editing polynomial",
        "fusion": "editing rounding driver pattern",
        "linear": "rounding pattern fusion",
        "tidying": "editing pointwise driver pattern",
        "bucketing": "editing",
        "control": "editing pointwise driver",
        "elementwise": "editing pointwise driver polynomial pattern fusion",
        "half": "editing pointwise driver",
        "integers": "editing driver",
        "moves": "editing pointwise rounding moved_places driver pattern fusion",
        "norms": "editing pointwise rounding driver pattern fusion linear",
        "attention": "editing pointwise rounding moved_places driver pattern fusion moves",
        "layouts": "editing pointwise driver pattern fusion tidying moves norms attention",
        "images": "editing pointwise rounding driver fusion linear moves norms attention layouts",
        "products": "editing pointwise rounding driver pattern fusion linear moves norms",
        "stacks": "editing pointwise rounding driver products",
    },
    "backends/cuda": {
        "integers": "",
        "recipe": "",
        "codegen": "recipe",
        "driver": "recipe",
        "algorithms": "recipe codegen",
        "control": "recipe driver",
        "interop": "driver",
        "device": "recipe codegen driver control interop",
        "gemm": "recipe codegen algorithms",
        "norm": "recipe codegen algorithms",
        "attention": "recipe codegen algorithms gemm norm",
        "conv": "recipe codegen algorithms gemm",
        "ops": "recipe codegen algorithms gemm norm attention conv",
        "custom": "recipe algorithms",
        "families": "codegen algorithms custom gemm conv ops",
        "patterns": "recipe codegen gemm norm conv attention",
        "joined_moves": "codegen",
        "epilogue_nodes": "recipe codegen algorithms gemm",
        "fusion": "recipe codegen algorithms gemm conv patterns joined_moves epilogue_nodes",
        "smaller_groups": "recipe codegen fusion",
        "cutting": "recipe attention fusion",
        "tuning": "recipe codegen driver algorithms families",
        "group_recipes": "recipe codegen algorithms gemm conv fusion families",
        "claims": "recipe codegen driver algorithms device gemm conv fusion"
        " smaller_groups cutting families group_recipes",
        "backend": "recipe device claims tuning",
        "on_paper": "recipe codegen driver control",
    },
    "backends/numpy": {
        "numerics": "",
        "regex": "",
        "engine": "numerics",
        "windows": "numerics engine",
        "ops": "numerics regex engine windows",
        "backend": "numerics engine ops",
    },
    "importers/onnx": {
        "source": "",
        "upgrading": "source",
        "contrib": "source upgrading",
        "reading": "source upgrading contrib",
        "writing": "source upgrading reading",
    },
    "tools": {
        "common": "",
        "demo": "common",
        "generate": "common",
        "run": "common",
        "report": "common",
        "conformance": "common",
        "runners": "common",
        "verdict": "common",
        "export": "common verdict",
        "compress": "common verdict export",
        "compare": "common runners verdict export",
        "inspect": "common report verdict export",
        "profile": "common export",
        "doctor": "common profile",
        "tune": "common export inspect",
        "bench": "common runners verdict export compare profile",
        "bisect": "common runners verdict export compare",
        "commands": "common demo generate run report conformance runners verdict export compress "
        "compare inspect profile doctor tune bench bisect",
        "cli": "common commands",
        "workshop": "common demo generate run report conformance runners verdict export compare "
        "inspect profile doctor tune bench bisect",
    },
}


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import; a relative one as its path from the root: ./runtime/text.

    Those that only type checkers see count, too.
    """
    for node in statements(file):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif node.level == 0:
            yield node.lineno, node.module or ""
        else:
            package = file.relative_to(ROOT).parents[node.level - 1]
            for name in [node.module.replace(".", "/")] if node.module else node.names:
                path = package / (name if isinstance(name, str) else name.name)
                yield node.lineno, f"./{path.as_posix()}"


@cache
def statements(file: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The imports of a file, wherever in it they stand; every test reads all files."""
    found: list[ast.Import | ast.ImportFrom] = []
    blocks: list[ast.AST] = [ast.parse(file.read_bytes())]
    for block in blocks:  # which gets longer
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            for node in getattr(block, field, ()):
                (found if isinstance(node, ast.Import | ast.ImportFrom) else blocks).append(node)
    return tuple(found)


def offences(folder: str, is_wrong: Callable[[str], bool]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, name in imports(file)
        if is_wrong(name)
    ]


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_only_what_its_layer_may(folder: str) -> None:
    allowed = tuple(f"./{name}/" for name in (folder, *ALLOWED[folder]))
    assert not offences(
        folder,
        lambda name: name.startswith(("./", "tercet")) and not f"{name}/".startswith(allowed),
    )


@pytest.mark.parametrize("folder", ROOMS)
def test_every_room_is_in_the_table(folder: str) -> None:
    """And every room imports only what is above its line, so that the table has no circle."""
    here = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    here |= {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
    rooms = ROOMS[folder]
    assert set(rooms) == here
    for number, (room, allowed) in enumerate(rooms.items()):
        assert set(allowed.split()) <= set(list(rooms)[:number]), room


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms_import_only_what_they_may(folder: str) -> None:
    found: list[str] = []
    for room, allowed in ROOMS[folder].items():
        path = ROOT / folder / room
        files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        for file in files:
            for line, name in imports(file):
                target = name.removeprefix(f"./{folder}").strip("/").split("/")[0]
                is_inside = name == f"./{folder}" or name.startswith(f"./{folder}/")
                if is_inside and target not in (room, *allowed.split()):
                    found.append(f"{file.relative_to(ROOT)}:{line} imports {name}")
    assert not found


@pytest.mark.parametrize("folder", ["backends/numpy", "importers", "tools"])
def test_no_files_import_each_other_in_a_circle(folder: str) -> None:
    """Not even within functions: what is left without modules that import none of the rest."""
    files = {file.relative_to(ROOT).with_suffix("").as_posix() for file in modules(folder)}
    left = {file: arrows(ROOT / f"{file}.py") & files - {file} for file in files}
    while ends := {file for file, targets in left.items() if not targets & left.keys()}:
        for file in ends:
            del left[file]
    assert not sorted(left)


def modules(folder: str) -> Iterator[Path]:
    """The files of a folder that are in the wheel."""
    files = (file for file in (ROOT / folder).rglob("*.py") if file.name != "__init__.py")
    return (file for file in files if ROOT / "tools" / "workshop" not in file.parents)


def arrows(file: Path) -> set[str]:
    """The modules that a file imports, as paths from the root without endings."""
    found = {name.removeprefix("./") for _, name in imports(file) if name.startswith("./")}
    for node in statements(file):
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            package = file.relative_to(ROOT).parents[node.level - 1] / node.module.replace(".", "/")
            found |= {(package / alias.name).as_posix() for alias in node.names}
    return found


@pytest.mark.parametrize("folder", [*FOLDERS, "tercet", "tests"])
def test_no_folder_is_imported_absolutely(folder: str) -> None:
    assert not offences(folder, lambda name: name.split(".")[0] in FOLDERS)


def test_what_is_not_in_the_wheel_is_imported_by_nobody_in_it() -> None:
    """`tools/workshop` is for a checkout."""
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for top in (*FOLDERS, "tercet")
        for file in sorted((ROOT / top).rglob("*.py"))
        if ROOT / "tools" / "workshop" not in file.parents
        for line, name in imports(file)
        if f"{name}/".startswith("./tools/workshop/") or name.startswith("tercet.tools.workshop")
    ]
    assert not found


def test_every_module_is_loaded_once_under_tercet() -> None:
    # Stand-ins for the libraries that only a workshop trains with: to import them takes seconds.
    script = """
import contextlib, importlib, pkgutil, sys
from unittest.mock import MagicMock
for name in ("torch", "torch.nn", "torch.nn.functional", "sklearn", "sklearn.datasets",
             "sklearn.model_selection"):
    sys.modules[name] = MagicMock()
import tercet
for name in ("runtime", "importers", "backends", "tools"):
    package = importlib.import_module(f"tercet.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"tercet.{name}.", onerror=str):
        with contextlib.suppress(ImportError):  # a library of an extra that is not installed
            importlib.import_module(module.name)
print(*sys.modules)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {f"tercet.{name}" for name in FOLDERS} <= set(loaded)
    assert not {name for name in loaded if name.split(".")[0] in FOLDERS}
