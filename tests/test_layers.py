"""Who may import whom: runtime stands alone, backends and importers stand on it."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
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


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import; a relative one as its path from the root: ./runtime/ir."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.ImportFrom):
            package = file.relative_to(ROOT).parents[node.level - 1]
            for name in [node.module.replace(".", "/")] if node.module else node.names:
                path = package / (name if isinstance(name, str) else name.name)
                yield node.lineno, f"./{path.as_posix()}"


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


@pytest.mark.parametrize("folder", [*FOLDERS, "tercet", "tests"])
def test_no_folder_is_imported_absolutely(folder: str) -> None:
    assert not offences(folder, lambda name: name.split(".")[0] in FOLDERS)


def test_every_module_is_loaded_once_under_tercet() -> None:
    script = """
import contextlib, importlib, pkgutil, sys
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
