"""Type checks of what has changed since it was found right: `make check`.

Pyright needs more than a minute for the whole project. Types of a file can only change with its own
text, or with the interface of a file that it imports: everything but comments, docstrings, and the
bodies of functions that state the type of their result. So a change of a body is a check of one
file, and a change of an interface one of all files that it reaches. The record of what has been
checked is in `build/`: where there is none, as in CI, everything is checked.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "build" / "types.json"
#: Folders of the checked files; the names of their modules start behind them.
FOLDERS = {ROOT / "build" / "typed": ("tercet",), ROOT: ("tests",)}
#: An error that pyright prints, with the path of the file.
_ERROR = re.compile(r"^ *(\S.*?):\d+:\d+ - error", re.MULTILINE)
#: The share of all files from which on the whole project is checked, which starts no slower.
MANY = 0.6


@dataclass(frozen=True, slots=True)
class Import:
    """A name that a file imports.

    Attributes:
        module: the module's full name.
        name: what is imported from it; empty for the module, ``*`` for everything.
        local: what it is called in the file.
    """

    module: str
    name: str
    local: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What types of and in a file depend on.

    Attributes:
        text: digest of its text.
        interface: digest of what types of other files may depend on, imports left out.
        imports: what it imports.
        mentions: the names that occur in its interface.
        attributes: the names of attributes that it reads, of modules among others.
    """

    text: str
    interface: str
    imports: tuple[Import, ...]
    mentions: frozenset[str]
    attributes: frozenset[str]

    @staticmethod
    def of(text: str, module: str, *, is_package: bool = False) -> FileFacts:
        """Return the facts of a file from its text."""
        tree = ast.parse(text)
        imports = tuple(_imports(tree, module if is_package else module.rpartition(".")[0]))
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        _Interface().visit(tree)
        rules = [line for line in text.splitlines() if "pyright:" in line]
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Constant)]
        words = (n.id if isinstance(n, ast.Name) else _quoted(n.value) for n in nodes)
        mentions = frozenset(name for word in words for name in word.split())
        interface = _digest(ast.dump(tree), *rules)
        return FileFacts(_digest(text), interface, imports, mentions, frozenset(attributes))


def _digest(*texts: str) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()


def _quoted(value: object) -> str:
    """Return the names in a quoted annotation, separated by spaces."""
    text = value if isinstance(value, str) else ""
    return "".join(c if c.isalnum() or c == "_" else " " for c in text)


def _imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """Yield what a file in a package imports, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                local = each.asname or each.name.partition(".")[0]
                yield Import(each.name, "", local)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            start = above[: len(above) - node.level + 1] if node.level else []
            module = ".".join((*start, *filter(None, (node.module,))))
            for each in node.names:
                yield Import(module, each.name, each.asname or each.name)


class _Interface(ast.NodeTransformer):
    """Removes what types of other files cannot depend on."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if node.returns is None or any(map(_sets_attribute, ast.walk(node))):
            return self.generic_visit(node)
        node.body = [ast.Pass()]
        return node


def _sets_attribute(node: ast.AST) -> bool:
    """Whether a method may declare an attribute."""
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


class _Reads:
    """Which names of a module other modules read."""

    def __init__(self, modules: Iterable[FileFacts], known: Collection[str]) -> None:
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        for facts in modules:
            for each in facts.imports:
                self._names[each.module].add(each.name)
                inner = source_of(each, known)
                if inner != each.module or not each.name:
                    self._names[inner] |= facts.attributes

    def passes_on(self, module: str, facts: FileFacts, local: str) -> bool:
        """Whether types of others may depend on a name that a module has imported."""
        names = self._names[module]
        return local in facts.mentions or local in names or "*" in names or local == "*"


def source_of(each: Import, known: Collection[str]) -> str:
    """Return the module that an import reads: a submodule, or the one that is named."""
    inner = f"{each.module}.{each.name}"
    return inner if inner in known else each.module


def outdated(old: Mapping[str, FileFacts], new: Mapping[str, FileFacts]) -> set[str]:
    """Return the modules whose types must be checked again.

    Args:
        old: the facts of all modules when they were last checked.
        new: their facts now.
    """
    known = old.keys() | new.keys()
    reads = _Reads((*old.values(), *new.values()), known)

    def interface(module: str, facts: FileFacts) -> tuple[str, set[Import]]:
        passed = {each for each in facts.imports if reads.passes_on(module, facts, each.local)}
        return facts.interface, passed

    changed = {m for m, facts in new.items() if m not in old or old[m].text != facts.text}
    reached = {m for m in changed if m not in old or interface(m, old[m]) != interface(m, new[m])}
    reached |= old.keys() - new.keys()
    importers: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for module, facts in new.items():
        for each in facts.imports:
            importers[source_of(each, known)].add((module, each.local))
    found, waiting = set(changed), list(reached)
    while waiting:
        for module, local in importers[waiting.pop()]:
            found.add(module)
            if module not in reached and reads.passes_on(module, new[module], local):
                reached.add(module)
                waiting.append(module)
    return found


# ── the project ──────────────────────────────────────────────────────────────────────────────────


def _modules() -> dict[str, Path]:
    """Return all checked files by the names of their modules."""
    found: dict[str, Path] = {}
    for folder, tops in FOLDERS.items():
        for top in tops:
            for file in sorted((folder / top).rglob("*.py")):
                parts = file.relative_to(folder).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def _environment() -> str:
    """Return a digest of what types depend on besides the project's files."""
    installed = sorted(f"{found.name} {found.version}" for found in distributions())
    stubs = sorted((ROOT / "typings").rglob("*.pyi"))
    files = (ROOT / "pyproject.toml", *stubs, Path(__file__))
    return _digest(sys.version, *installed, *(file.read_text("utf-8") for file in files))


def _read(record: Path, environment: str) -> dict[str, FileFacts]:
    """Return the facts of the last run; none if it was in another environment."""
    try:
        data = json.loads(record.read_text("utf-8"))
        if data["environment"] != environment:
            return {}
        return {
            module: FileFacts(
                facts["text"],
                facts["interface"],
                tuple(Import(*each) for each in facts["imports"]),
                frozenset(facts["mentions"]),
                frozenset(facts["attributes"]),
            )
            for module, facts in data["modules"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(record: Path, environment: str, modules: Mapping[str, FileFacts]) -> None:
    facts = {
        module: {
            **{"text": found.text, "interface": found.interface},
            "imports": [list(asdict(each).values()) for each in found.imports],
            "mentions": sorted(found.mentions),
            "attributes": sorted(found.attributes),
        }
        for module, found in modules.items()
    }
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps({"environment": environment, "modules": facts}), "utf-8")


def _facts(files: Mapping[str, Path], old: Mapping[str, FileFacts]) -> dict[str, FileFacts]:
    """Return the facts of all files; only those that changed are parsed."""
    found: dict[str, FileFacts] = {}
    for module, file in files.items():
        text = file.read_text("utf-8")
        known = old.get(module)
        if known is None or known.text != _digest(text):
            known = FileFacts.of(text, module, is_package=file.stem == "__init__")
        found[module] = known
    return found


def _check(files: Iterable[Path]) -> tuple[int, set[str]]:
    """Run pyright on some files, or on the whole project if there are none.

    Returns:
        Its exit code, and the paths of files with errors.
    """
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    return done.returncode, set(_ERROR.findall(done.stdout))


def kept(facts: Mapping[str, FileFacts], wrong: Collection[str]) -> dict[str, FileFacts]:
    """Return what is recorded after a run: a file with errors is checked again."""
    return {m: replace(found, text="") if m in wrong else found for m, found in facts.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check types, and return pyright's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="check the whole project")
    chosen = parser.parse_args(arguments)
    environment, files = _environment(), _modules()
    old = _read(RECORD, environment)
    new = _facts(files, old)
    wanted = outdated(old, new)
    whole = chosen.all or len(wanted) > MANY * len(files)
    count = len(files) if whole else len(wanted)
    print(f"types: {count} of {len(files)} files", flush=True)
    if not count:
        return 0
    code, paths = _check(() if whole else sorted(files[module] for module in wanted))
    if code == 0 or paths:
        wrong = {module for module, file in files.items() if str(file) in paths}
        _write(RECORD, environment, kept(new, wrong))
    return code


if __name__ == "__main__":
    sys.exit(main())
