"""Plans that are kept on disk: whatever a user can ask is as if they had been made again."""

from __future__ import annotations

import os
import pickle
import subprocess
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from time import time_ns
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet import ModelWarning, keeping, load, loading, preparing, version
from tercet.backends.cuda import backend
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.step import KernelStep
from tercet.backends.cuda.on_paper import PaperDevice
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import NumpyBackend
from tercet.importers import onnx as importer
from tercet.importers.onnx.reading import large_tensors
from tercet.importers.onnx.reading import read as reading
from tercet.preparing import Prepared
from tercet.runtime.errors import UsageError
from tercet.runtime.session import kept_plans
from tercet.runtime.session.kept_graphs import Unkept, loaded
from tercet.runtime.session.model import Model
from tercet.runtime.session.program_pool import ProgramPool

from .kept_networks import NETWORKS, Compiler, entries, sizes_of, told, written

Open = Callable[..., Model]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Open]:
    """Load a file for a GPU on paper, with plans that are kept in a folder."""
    monkeypatch.delenv("TERCET_VERIFY_PASSES")
    monkeypatch.setattr(version, "IMPORTED", time_ns())  # whoever edits the package meanwhile
    models, chain = list[Model](), dict[str, Any]()

    def open_chain(*_: object) -> Any:
        device: Any = PaperDevice(chain["target"], None)
        monkeypatch.setattr(device, "compiler", Compiler(chain["target"]))
        return CudaBackend(device), *chain["others"]

    def opened(
        path: Path, *, target: Target = H200, others: tuple[Any, ...] = (), **options: Any
    ) -> Model:
        chain.update(target=target, others=others)
        models.append(load(path, "cuda", cache=tmp_path / "cache", **options))
        return models[-1]

    monkeypatch.setattr(loading._backends, "begin", lambda *_: None)
    monkeypatch.setattr(loading._backends, "open_backends", open_chain)
    yield opened
    for each in models:
        each.close()


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let reading a model's file fail from now on."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the model was read again")

    return lambda: monkeypatch.setattr(importer, "load", fail)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", [name for name, (_, is_kept) in NETWORKS.items() if is_kept])
def test_kept_plans_are_those_that_are_made(
    name: str, precision: str, opened: Open, unread: Callable[[], None], tmp_path: Path
) -> None:
    path = written(tmp_path, name)
    made = opened(path, precision=precision)
    shapes, others = sizes_of(made), sizes_of(made, 3)
    expected = told(made, shapes), told(made, others)
    assert len(entries(tmp_path, "program")) == 1 + (shapes != others)
    unread()
    kept = opened(path, precision=precision)
    assert (told(kept, shapes), told(kept, others)) == expected


@pytest.mark.parametrize("name", [name for name, (_, is_kept) in NETWORKS.items() if not is_kept])
def test_programs_of_several_stages_are_made_again(name: str, opened: Open, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    for _ in range(2):
        model = opened(path, others=(NumpyBackend(),), control="host")
        model.prepare(sizes_of(model))
    assert not entries(tmp_path, "program")


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read all initializers as large ones are read, straight from the file."""
    monkeypatch.setattr(reading, "LARGE_FILE", 0)
    monkeypatch.setattr(large_tensors, "LARGE", 16)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.usefixtures("in_parts")
def test_constants_are_read_from_the_files(
    external: bool, opened: Open, unread: Callable[[], None], tmp_path: Path
) -> None:
    path = written(tmp_path, "attention", external=external)
    made = opened(path)
    expected = told(made, sizes_of(made))
    assert not entries(tmp_path, "weights")
    unread()
    kept = opened(path)
    assert told(kept, sizes_of(kept)) == expected
    assert len(kept.source.mapped) == external
    kept.close()
    assert all(each.mapping() is None for each in kept.source.mapped)


def test_computed_constants_have_a_file(
    opened: Open, unread: Callable[[], None], tmp_path: Path
) -> None:
    path = written(tmp_path, "convolutions")
    made = opened(path)
    expected = told(made, sizes_of(made))
    (weights,) = entries(tmp_path, "weights")
    unread()
    kept = opened(path)
    assert told(kept, sizes_of(kept)) == expected
    kept.close()
    weights.unlink()
    with pytest.raises(AssertionError, match="read again"):
        opened(path)


def changed_file(path: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    """Change one byte of a weight, but neither the size nor the time of the file."""
    about, data = path.stat(), bytearray(path.read_bytes())
    data[data.index(b"tests") - 1 : data.index(b"tests") + 5] = b"\x05Tests"
    path.write_bytes(data)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    return {}


def changed_data(path: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    """Change a byte of external data."""
    data = path.with_suffix(".data")
    about, found = data.stat(), bytearray(data.read_bytes())
    found[2] ^= 1
    data.write_bytes(found)
    os.utime(data, ns=(about.st_atime_ns, about.st_mtime_ns))
    return {}


def linked_data(path: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let the name of the external data mean another file."""
    data = path.with_suffix(".data")
    other = data.with_name("other.data")
    other.write_bytes(data.read_bytes()[::-1])
    data.rename(data.with_name("first.data"))
    data.symlink_to("other.data")
    return {}


def piped_data(path: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let a pipe stand for the external data."""
    path.with_suffix(".data").unlink()
    os.mkfifo(path.with_suffix(".data"))
    return {}


def changed_package(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Pretend that a file of the package has changed."""
    keeping._made_by.cache_clear()
    patch.setattr(keeping, "print_of", lambda *_: b"other")
    return {}


def changed_numpy(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Pretend that numpy has another version."""
    keeping._made_by.cache_clear()
    patch.setattr(np, "__version__", "0")
    return {}


@pytest.mark.parametrize(
    "change",
    [
        changed_file,
        changed_data,
        linked_data,
        piped_data,
        changed_package,
        changed_numpy,
        lambda *_: {"precision": "float16"},
        lambda *_: {"skip": ("fold_batchnorm",)},
        lambda *_: {"freeze": {"x": np.ones((1, 4, 16), np.float32)}},
        lambda *_: {"map_external_data": False},
        lambda *_: {"whole_caches": True},
        lambda *_: {"fallback": "numpy"},
    ],
)
def test_what_a_model_depends_on(
    change: Callable[[Path, pytest.MonkeyPatch], dict[str, Any]],
    opened: Open,
    unread: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    path = written(tmp_path, "attention", external=True)
    made = opened(path)
    made.prepare(sizes_of(made))
    made.close()
    options = change(path, monkeypatch)
    unread()
    with pytest.raises(AssertionError, match="read again"):
        opened(path, **options)
    keeping._made_by.cache_clear()


def test_code_that_makes_plans_is_in_the_print(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = list[str]()
    monkeypatch.setattr(keeping, "print_of", lambda found, _: printed.extend(found) or b"")
    keeping._made_by.cache_clear()
    keeping._made_by()
    keeping._made_by.cache_clear()
    for module in (keeping, loading, preparing, importer, kept_plans, backend):
        assert any(Path(str(module.__file__)).is_relative_to(each) for each in printed)


def test_code_that_changes_after_it_was_imported(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(version, "IMPORTED", Path(preparing.__file__).stat().st_mtime_ns)
    keeping._made_by.cache_clear()
    model = opened(written(tmp_path, "mlp"))
    model.prepare(sizes_of(model))
    assert not entries(tmp_path, "*")


def test_what_a_program_depends_on(opened: Open, tmp_path: Path) -> None:
    path = written(tmp_path, "mlp")
    for number, (target, rows) in enumerate([(H200, 1), (A100, 1), (H200, 2)], 1):
        for _ in range(2):
            opened(path, target=target).prepare({"x": (rows, 8)})
        assert len(entries(tmp_path, "program")) == number
    opened(path).prepare({"x": (1, 8)}, to="device")
    assert len(entries(tmp_path, "program")) == 4
    assert len(entries(tmp_path, "model")) == 1


def test_elements_that_decide_shapes_tell_programs_apart(opened: Open, tmp_path: Path) -> None:
    path, x = written(tmp_path, "scales"), np.zeros((1, 1, 4, 4), np.float32)
    for scale, size in [(2.0, 8), (2.5, 10), (2.0, 8), (2.5, 10)]:
        model: Any = opened(path)
        feeds = {"x": x, "s": np.array([1, 1, scale, scale], np.float32)}
        _, program = model._programs.take(("y",), feeds)
        assert program.graph.outputs["y"].type.dims == (1, 1, size, size)
    assert len(entries(tmp_path, "program")) == 2


@pytest.mark.parametrize("kind", ["model", "weights", "program"])
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"\x7f"])
def test_damaged_entries_are_written_again(
    kind: str, damage: Callable[[bytes], bytes], opened: Open, tmp_path: Path
) -> None:
    path = written(tmp_path, "convolutions")
    made = opened(path)
    expected = told(made, sizes_of(made))
    (entry,) = entries(tmp_path, kind)
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    again = opened(path)
    assert told(again, sizes_of(again)) == expected
    assert entry.read_bytes() == whole
    assert len(entries(tmp_path, "program")) == 1


def test_a_folder_that_cannot_be_written(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    path = written(tmp_path, "convolutions")
    model = opened(path)
    assert told(model, sizes_of(model))


def test_steps_that_say_that_they_are_not_portable(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(KernelStep, "portable", False)
    model = opened(written(tmp_path, "mlp"))
    model.prepare(sizes_of(model))
    assert not entries(tmp_path, "*")


class OfAnotherPackage:
    """A backend that does not say what its steps depend on."""

    name = "other"

    def __init__(self) -> None:
        self.device = NumpyBackend().device
        self.claim = NumpyBackend().claim


@pytest.mark.parametrize(
    ("others", "may_be"), [((), True), ((NumpyBackend(),), True), ((OfAnotherPackage(),), False)]
)
def test_a_chain_that_is_never_kept_holds_no_model(
    others: tuple[Any, ...], may_be: bool, opened: Open, tmp_path: Path
) -> None:
    model = opened(written(tmp_path, "mlp"), others=others)
    assert (model._programs._kept is not None) == may_be


def test_plans_are_not_kept_where_users_say_so(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(keeping.PLANS, "0")
    model = opened(written(tmp_path, "mlp"))
    model.prepare(sizes_of(model))
    assert not (tmp_path / "cache").exists()


def test_little_is_kept(opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = written(tmp_path, "convolutions")
    monkeypatch.setattr(kept_plans, "MOST_COMPUTED", 64)
    model = opened(path)
    model.prepare(sizes_of(model))
    assert not (tmp_path / "cache").exists()


def test_entries_that_were_not_used_for_long_are_removed(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = written(tmp_path, "mlp")
    opened(path).prepare({"x": (1, 8)})
    (old,) = entries(tmp_path, "program")
    os.utime(old, (0, 0))
    most = sum(each.stat().st_size for each in old.parent.iterdir())
    (folder := old.parent / "older").mkdir()  # which cannot be removed
    os.utime(folder, (-1, -1))
    monkeypatch.setattr(kept_plans, "MOST", most + folder.stat().st_size)
    opened(path).prepare({"x": (2, 8)})
    (new,) = entries(tmp_path, "program")
    assert new != old
    assert len(entries(tmp_path, "model")) == 1


def test_warnings_are_repeated(opened: Open, tmp_path: Path) -> None:
    path = written(tmp_path, "declared otherwise")
    proto = onnx.load(path)
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 5
    onnx.save(proto, path)
    for _ in range(2):
        model = opened(path)
        with pytest.warns(ModelWarning, match="declares"):
            model.prepare(sizes_of(model))


@pytest.mark.parametrize(
    "named",
    [
        *(pickle.dumps(other) for other in (os.system, print, subprocess.Popen)),
        b"\x80\x04\x8c\x19tercet.runtime.base.cache\x8c\tos.system\x93.",
        b"\x80\x04\x8c\x19tercet.runtime.base.cache\x8c\x02os\x93.",
        b"\x80\x04\x8c\x19tercet.runtime.base.cache\x8c\x0btoken_bytes\x93.",
    ],
)
def test_nothing_else_is_read_from_an_entry(named: bytes) -> None:
    with pytest.raises(Unkept, match="not kept"):
        loaded(named, (), {})


def test_processes_that_keep_a_model_at_once(opened: Open, tmp_path: Path) -> None:
    path = written(tmp_path, "convolutions")
    first, second = opened(path), opened(path)
    expected = told(first, sizes_of(first))
    assert told(second, sizes_of(second)) == expected
    third = opened(path)
    assert told(third, sizes_of(third)) == expected
    assert [len(entries(tmp_path, kind)) for kind in ("model", "weights", "program")] == [1, 1, 1]


def test_closed_models_hold_no_computed_constants(opened: Open, tmp_path: Path) -> None:
    path = written(tmp_path, "convolutions")
    for _ in range(2):
        model = opened(path)
        model.prepare(sizes_of(model))
        own = {id(value.data) for value in model.imported.constants}
        computed = [v.data for v in model.graph.constants if id(v.data) not in own]
        held = [weakref.ref(data) for data in computed if data is not None]
        assert held
        del computed
        model.close()
        assert not [data for each in held if (data := each()) is not None]


def test_a_model_that_is_closed_while_another_thread_begins_to_plan(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = opened(written(tmp_path, "mlp"))
    take = ProgramPool.take

    def closing(pool: ProgramPool, key: object) -> Any:
        found = take(pool, key)
        model.close()
        return found

    monkeypatch.setattr(ProgramPool, "take", closing)
    with pytest.raises(UsageError, match="the model is closed"):
        model.prepare(sizes_of(model))


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("suffix", [".onnx", ".data"])
def test_a_file_that_changes_before_its_plan_is_made(
    suffix: str, is_loaded: bool, opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = written(tmp_path, "attention", external=True)

    def change(*given: Any) -> Prepared:
        os.utime(path.with_suffix(suffix), ns=(0, 0))
        return prepared(*given)

    prepared = preparing.prepared
    if not is_loaded:
        monkeypatch.setattr(preparing, "prepared", change)
    model = opened(path)
    if is_loaded:
        os.utime(path.with_suffix(suffix), ns=(0, 0))
    model.prepare(sizes_of(model))
    assert not entries(tmp_path, "*")


def test_weights_that_another_process_keeps_at_once(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(path: str, *given: Any) -> kept_plans.KeptFile:
        for weights in entries(tmp_path, "weights"):
            weights.write_bytes(bytes(weights.stat().st_size))
        return described(path, *given)

    described = kept_plans._described
    monkeypatch.setattr(kept_plans, "_described", interrupted)
    path = written(tmp_path, "convolutions")
    made = opened(path)
    expected = told(made, sizes_of(made))
    kept = opened(path)
    assert told(kept, sizes_of(kept)) == expected


def test_options_that_are_functions_of_a_user(opened: Open, tmp_path: Path) -> None:
    model = opened(written(tmp_path, "mlp"), integers=lambda *_: False)
    model.prepare(sizes_of(model))
    assert not entries(tmp_path, "*")


def test_only_their_owner_reads_entries(opened: Open, tmp_path: Path) -> None:
    model = opened(written(tmp_path, "convolutions"))
    model.prepare(sizes_of(model))
    kept = [tmp_path / "cache", tmp_path / "cache" / "plans", *entries(tmp_path, "*")]
    assert len(kept) == 5
    assert not [each for each in kept if os.name != "nt" and each.stat().st_mode & 0o077]
