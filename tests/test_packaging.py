"""The package that users install: its list of folders, its data, its weight at import."""

import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tercet", "runtime", "backends", "importers", "tools")
#: What only developers run, from a checkout.
NOT_IN_THE_WHEEL = ROOT / "tools" / "workshop"
#: pip, which prints what it would install and ends. It has read of each wheel what that depends on;
#: even for a dry run, old versions would fetch wheels of half a gigabyte as well.
RESOLVER = """
import json, sys
from pip._internal.cli.main import main
from pip._internal.exceptions import InstallationError
from pip._vendor.resolvelib import Resolver

resolve = Resolver.resolve

def resolve_only(*arguments, **options):
    found = resolve(*arguments, **options).mapping.values()
    print(json.dumps({each.name: str(each.version) for each in found}))
    raise InstallationError("nothing is fetched")

Resolver.resolve = resolve_only
sys.exit(main())
"""


@pytest.fixture(scope="module")
def setuptools_table() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def run(script: str, *, folder: Path) -> str:
    """What a fresh Python prints that finds tercet in `folder` only."""
    prelude = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    command = [sys.executable, "-I", "-c", prelude + script]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


def python_files() -> list[Path]:
    files = (file for top in FOLDERS for file in (ROOT / top).rglob("*.py"))
    return [file for file in files if NOT_IN_THE_WHEEL not in file.parents]


def test_packages_are_the_folders_that_hold_python(setuptools_table: dict[str, Any]) -> None:
    folders = {file.parent for file in python_files()}
    paths = [folder.relative_to(ROOT).parts for folder in folders]
    names = sorted(".".join(path if path[0] == "tercet" else ("tercet", *path)) for path in paths)
    assert setuptools_table["packages"] == names
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout, so that nothing is left in the checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", target, source]
    subprocess.run(build, check=True, capture_output=True, text=True)
    return next(target.glob("tercet-*.whl"))


def test_wheel_holds_every_module_and_all_data(wheel: Path) -> None:
    kernels, demo = ROOT / "backends" / "cuda" / "kernels", ROOT / "tercet" / "demo"
    files = [*kernels.rglob("*.cu"), *kernels.rglob("*.cuh"), *demo.iterdir()]
    files += python_files()
    files += [ROOT / "tercet" / "py.typed"]
    files += (ROOT / "tools" / "conformance").glob("*.toml")
    paths = {file.relative_to(ROOT).as_posix() for file in files if file.is_file()}
    expected = {path if path.startswith("tercet/") else f"tercet/{path}" for path in paths}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = "import tercet, tercet.runtime; print(tercet.__file__, tercet.runtime.__file__)"
    found = [Path(file) for file in run(script, folder=tmp_path).split()]
    package = tmp_path / "tercet"
    assert found == [package / "__init__.py", package / "runtime" / "__init__.py"]


def test_import_loads_nothing_optional() -> None:
    """Nor what takes long, which is loaded when it is first used."""
    script = """
import sys, tercet
print(len(sys.modules), *{name.split(".")[0] for name in sys.modules})
"""
    count, *names = run(script, folder=ROOT).split()
    optional = {"cuda", "cudnn", "numpy", "onnx", "onnxruntime", "PIL", "rich", "tensorrt", "torch"}
    assert not {*optional, "openvino", "typer"} & set(names)
    assert int(count) < 200


@pytest.mark.parametrize(("extra", "major"), [("cuda12", 12), ("cuda13", 13)])
def test_extras_resolve_on_a_clean_machine(extra: str, major: int, tmp_path: Path) -> None:
    """What pip would install for Python 3.12 on Linux, from wheels, with nothing there yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["optional-dependencies"][extra])
    if major == 13:  # the rest is the same for both, and takes as long to resolve
        wanted += project["dependencies"]
    pip = [sys.executable, "-c", RESOLVER, "--disable-pip-version-check", "--quiet", "install"]
    where = ["--ignore-installed", "--target", str(tmp_path / "site"), "--only-binary=:all:"]
    kinds = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
    machine = [f"--platform={kind}_x86_64" for kind in kinds]
    command = [*pip, "--dry-run", "--use-feature=fast-deps", "--python-version=3.12"]
    answer = subprocess.run(
        [*command, *where, *machine, *wanted], check=False, capture_output=True, text=True
    )
    if "No matching distribution found for numpy" in answer.stderr:
        pytest.skip("no package index can be reached from here")
    assert "ERROR: nothing is fetched" in answer.stderr, answer.stderr
    found = json.loads(answer.stdout)
    assert found["cuda-bindings"].split(".")[0] == str(major)
    assert {"cuda-core", "nvidia-cudnn-frontend", f"nvidia-cudnn-cu{major}"} <= set(found)
    assert not (tmp_path / "site").exists(), "a dry run installs nothing"
