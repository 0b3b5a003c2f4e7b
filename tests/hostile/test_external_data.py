"""External data that lead elsewhere, or lie about where they are: nothing outside is read."""

import os
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

from tercet.importers.onnx import load
from tercet.importers.onnx.reading import external
from tercet.runtime.errors import ModelError, ModelFileError, UnsupportedError
from tercet.runtime.ir.mapped import external_data_in
from tercet.tools.runners.onnx_files import OnnxFile

from .files import EXTERNAL, changed, tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with one good file, and a secret beside the folder."""
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    (inside / "good").write_bytes(bytes(32))
    (inside / "empty").touch()
    (tmp_path / "secret").write_bytes(bytes(32))
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "linked").symlink_to(tmp_path)
    (inside / "circle").symlink_to("circle")
    (inside / "dangling").symlink_to(tmp_path / "nothing")
    (inside / "lost").symlink_to("gone")
    os.mkfifo(inside / "fifo")
    return inside


def with_external(folder: Path, pairs: list[tuple[str, str]]) -> Path:
    proto = tensor(data_location=EXTERNAL)
    for key, value in pairs:
        proto.external_data.add(key=key, value=value)
    model = changed(lambda m: m.graph.initializer[0].CopyFrom(proto))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


LOCATIONS = {
    "../secret": "leaves the model's folder",
    "sub/../../secret": "leaves the model's folder",
    "sub/../good": "leaves the model's folder",
    "..": "leaves the model's folder",
    ".": "leaves the model's folder",
    "": "without a location",
    "/etc/passwd": "is absolute",
    "//etc/passwd": "is absolute",
    "link": "leads out of the model's folder; copy the file .* external_data_dir=",
    "linked/secret": "leads out of the model's folder",
    "dangling": "leads out of the model's folder",
    "lost": "is a link to 'gone', which is not there",
    "circle": "a circle of links",
    "good/x": "leads through a file",
    "fifo": "not a plain file",
    "sub": "not a plain file",
    "sub/": "not a plain file",
    "missing": "is not there; expected in",
    "GOOD": "is not there",
    "..\\secret": "is not there",
    "file:good": "is not there",
    "go\0od": "NUL",
    "x" * 4096: "cannot be read: File name too long",
    "a/" * 4096 + "x": "is not there",
    "empty": "wants bytes 0 to 32",
}


@pytest.mark.parametrize("location", LOCATIONS, ids=lambda text: repr(text[:20]))
def test_external_data_stay_in_their_folder(folder: Path, location: str) -> None:
    path = with_external(folder, [("location", location)])
    with pytest.raises(ModelError, match=LOCATIONS[location]) as caught:
        load(path)
    assert (caught.value.file, caught.value.where) == (str(path), "tensor 'w'")


BIG = str(1 << 63)
RANGES: dict[str, tuple[list[tuple[str, str]], str]] = {
    "negative offset": ([("offset", "-4")], "offset '-4' is not a size"),
    "negative length": ([("length", "-32")], "length '-32' is not a size"),
    "beyond": ([("offset", "1")], "wants bytes 1 to 33"),
    "wrap": ([("offset", BIG), ("length", BIG)], "has 32 bytes"),
    "huge number": ([("offset", "9" * 5000)], "is not a size"),
    "petabyte": ([("length", str(1 << 50))], "has 32 bytes"),
    "short": ([("length", "16")], "takes 32 bytes; found 16"),
    "no number": ([("offset", "0x10")], "is not a size"),
    "other digits": ([("offset", "٣")], "is not a size"),
    "unknown key": ([("__class__", "x")], "unknown key '__class__'"),
    "repeated key": ([("location", "../secret")], "repeated key 'location'"),
}


@pytest.mark.parametrize("kind", RANGES)
def test_external_data_that_lie(folder: Path, kind: str) -> None:
    pairs, reason = RANGES[kind]
    with pytest.raises(ModelError, match=reason):
        load(with_external(folder, [("location", "good"), *pairs]))


#: What replaces data that were not downloaded, and is shorter than them.
DOWNLOADS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "has 0 bytes; was its download interrupted"),
    "a part": (b"\0\0\x80?" * 7, "has 28 bytes; was its download interrupted"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
    "a page": (b"<html>404</html>", "it is an HTML page"),
    "a message": (b"Entry not found", "it is a text file that begins 'Entry not found'"),
}


@pytest.mark.parametrize("kind", DOWNLOADS)
def test_data_that_were_not_downloaded(folder: Path, kind: str) -> None:
    data, reason = DOWNLOADS[kind]
    (folder / "data").write_bytes(data)
    path = with_external(folder, [("location", "data"), ("length", str(32))])
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[:] = [64]
    del model.graph.initializer[0].external_data[1:]
    onnx.save(model, path)
    with pytest.raises(ModelError, match=reason):
        load(path)


def test_external_data_may_overlap(folder: Path) -> None:
    path = with_external(folder, [("location", "./good"), ("offset", "0")])
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.add().CopyFrom(model.graph.initializer[0])
    model.graph.initializer[-1].name = "again"
    path.write_bytes(model.SerializeToString())
    assert load(path).graph.inputs[0].name == "x"


def test_external_data_of_a_model_in_memory(folder: Path) -> None:
    data = with_external(folder, [("location", "good")]).read_bytes()
    for source in (data, ModelProto.FromString(data)):
        with pytest.raises(ModelFileError, match="external_data_dir="):
            load(source)
        assert load(source, external_data_dir=folder).graph.inputs[0].name == "x"
        with pytest.raises(ModelError, match="is not there; expected in"):
            load(source, external_data_dir=folder / "sub")
        with external_data_in(folder):
            assert load(source).graph.inputs[0].name == "x"


# ── external data behind links ───────────────────────────────────────────────────────────────


def cached(root: Path) -> Path:
    """Return a model as Hugging Face's cache has it, its weights beside it under other names."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "abc" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    path = with_external(blobs, [("location", "model.onnx.data")]).rename(blobs / "3f")
    (blobs / "7a").write_bytes(bytes(32))
    (snapshot / "model.onnx").symlink_to(os.path.relpath(path, snapshot))
    (snapshot / "model.onnx.data").symlink_to(os.path.relpath(blobs / "7a", snapshot))
    return snapshot / "model.onnx"


def test_links_of_a_cache_lead_beside_the_model(tmp_path: Path) -> None:
    path = cached(tmp_path)
    assert load(path).graph.inputs[0].name == "x"
    (tmp_path / "other").symlink_to(path)
    with pytest.raises(ModelFileError, match="is not there"):
        load(tmp_path / "other")


def test_links_out_of_a_cache_are_refused(tmp_path: Path) -> None:
    path = cached(tmp_path)
    (tmp_path / "secret").write_bytes(bytes(32))
    path.with_name("model.onnx.data").unlink()
    path.with_name("model.onnx.data").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelFileError, match="leads out of the model's folder") as caught:
        load(path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("kind", ["hard", "inner", "chain", "folder", "up and down"])
def test_links_within_the_folder(folder: Path, kind: str) -> None:
    os.link(folder / "good", folder / "hard")
    (folder / "inner").symlink_to("good")
    (folder / "chain").symlink_to(folder / "inner")
    (folder / "here").symlink_to(folder)
    (folder / "sub" / "up").symlink_to("../good")
    location = {"folder": "here/good", "up and down": "sub/up"}.get(kind, kind)
    assert load(with_external(folder, [("location", location)])).graph.inputs[0].name == "x"


def test_a_folder_that_is_a_link_is_the_folder_behind_it(folder: Path, tmp_path: Path) -> None:
    with_external(folder, [("location", "good")])
    (tmp_path / "short").symlink_to(folder)
    assert load(tmp_path / "short" / "model.onnx").graph.inputs[0].name == "x"


def test_a_file_that_becomes_a_link_after_the_check_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path that was found is opened without following links."""
    path = with_external(folder, [("location", "link")])
    monkeypatch.setattr(external.os.path, "realpath", os.path.abspath)
    with pytest.raises(ModelFileError, match="circle of links"):
        load(path)


def test_what_another_program_gets_has_its_data_under_the_same_rules(folder: Path) -> None:
    path = with_external(folder, [("location", "good")])
    held = OnnxFile(path).self_contained().graph.initializer[0]
    assert (held.raw_data, len(held.external_data)) == (bytes(32), 0)
    with pytest.raises(UnsupportedError, match="leads out of its folder"):
        OnnxFile(with_external(folder, [("location", "link")])).self_contained()
