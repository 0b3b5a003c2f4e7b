"""Caches in files: what is restored goes on as if it had been read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tercet import FileError, Generator, InputError, ModelError, TercetError, UsageError
from tercet.generation import loading as module
from tercet.runtime.session.decoding import CachedDecoder
from tercet.runtime.session.static_cache import StaticCaches

from .folders import DECODERS, Opened
from .test_static_caches import handed_on

PROMPT = [0, 259, 71, 223, 287, 278]
NAMES = ["optimum_llama", "genai_qwen2_fp16", "genai_gemma2_int4"]


@pytest.mark.parametrize("statically", [False, True], ids=["handed on", "in place"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_restored_goes_on(
    name: str, statically: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not statically:
        monkeypatch.setattr(module, "open_decoder", handed_on)
    file = tmp_path / "cache.npz"
    with Generator(DECODERS / name, reuse=True) as generator:
        decoder = generator._writer.opened(1)
        assert isinstance(decoder, CachedDecoder)
        assert isinstance(decoder.store, StaticCaches) == statically
        first = generator.generate_ids(PROMPT, max_new_tokens=4)
        longer = [*PROMPT, *first.ids[0]]
        generator.save(file)
        held = generator.ids
        wanted = generator.generate_ids(longer, max_new_tokens=8)
    with Generator(DECODERS / name, reuse=True) as generator:
        assert generator.restore(file) == len(held) == len(longer) - 1
        assert generator.ids == held
        found = generator.generate_ids(longer, max_new_tokens=8)
        assert (found.ids, found.reused) == (wanted.ids, len(held))


def test_caches_go_from_one_kind_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cache.npz"
    with Generator(DECODERS / "optimum_llama", reuse=True) as generator:
        first = generator.generate_ids(PROMPT, max_new_tokens=4).ids[0]
        generator.save(file)
        wanted = generator.generate_ids([*PROMPT, *first], max_new_tokens=8).ids
    monkeypatch.setattr(module, "open_decoder", handed_on)
    with Generator(DECODERS / "optimum_llama", reuse=True) as generator:
        generator.restore(file)
        found = generator.generate_ids([*PROMPT, *first], max_new_tokens=8)
        assert (found.ids, found.reused) == (wanted, len(PROMPT) + 3)


@pytest.fixture(scope="module")
def llama(opened: Opened) -> Generator:
    return opened(DECODERS / "optimum_llama", reuse=True)


@pytest.fixture(scope="module")
def archive(llama: Generator, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What is saved of two tokens behind a prompt."""
    file = tmp_path_factory.mktemp("saved") / "caches.npz"
    llama.generate_ids(PROMPT, max_new_tokens=2)
    llama.save(file)
    return file.read_bytes()


@pytest.fixture
def saved(archive: bytes, tmp_path: Path) -> Path:
    file = tmp_path / "optimum_llama.npz"
    file.write_bytes(archive)
    return file


def rewritten(file: Path, **arrays: np.ndarray) -> Path:
    with np.load(file) as archive:
        held = {**archive, **arrays}
    np.savez(file, **{name: data for name, data in held.items() if data.size})
    return file


def test_a_file_of_another_model(saved: Path) -> None:
    """Of other weights, or of other caches."""
    with (
        Generator(DECODERS / "optimum_qwen3", reuse=True) as generator,
        pytest.raises(ModelError, match=r"optimum_llama\.npz: mark: belongs to a model with other"),
    ):
        generator.restore(saved)


@pytest.mark.parametrize(
    ("arrays", "kind", "text"),
    [
        ({"mark": np.zeros(0)}, ModelError, "mark: is missing"),
        ({"ids": np.zeros(3)}, ModelError, "ids: float64[3]: expected tokens"),
        (
            {"ids": np.zeros(3, np.int64)},
            InputError,
            "'past_key_values.0.key': float32[1, 2, 7, 4]; the model's cache of 3 positions is",
        ),
        ({"cache/other": np.zeros(3)}, ModelError, "'other': is not a cache of this model"),
        ({"cache/past_key_values.0.key": np.zeros(0)}, InputError, "'past_key_values.0.key': noth"),
        ({"ids": np.zeros(99, np.int64)}, InputError, "99 positions; the caches have room for 64"),
    ],
)
def test_files_that_do_not_fit(
    arrays: dict[str, np.ndarray],
    kind: type[TercetError],
    text: str,
    llama: Generator,
    saved: Path,
) -> None:
    file = rewritten(saved, **arrays)
    llama.rewind(0)
    with pytest.raises(kind) as caught:
        llama.restore(file)
    assert text in str(caught.value)
    assert str(file) in str(caught.value)
    assert llama.ids == []
    assert llama.generate_ids(PROMPT, max_new_tokens=1).ids


def test_what_is_no_file_of_caches(llama: Generator, archive: bytes, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("some words")
    data = archive
    entry = data.index(b"PK\1\2") + 6  # the version of zip that reads it
    (tmp_path / "newer.npz").write_bytes(data[:entry] + b"\x63" + data[entry + 1 :])
    llama.rewind(0)
    with pytest.raises(ModelError, match=r"text\.npz: .* caches: it is not an \.npz file$"):
        llama.restore(tmp_path / "text.npz")
    with pytest.raises(ModelError, match=r"newer\.npz: .*: zip file version 9\.9"):
        llama.restore(tmp_path / "newer.npz")
    with pytest.raises(FileError, match=r"gone\.npz"):
        llama.restore(tmp_path / "gone.npz")
    with pytest.raises(UsageError, match="the caches hold no tokens"):
        llama.save(tmp_path / "new.npz")
    with (
        Generator(DECODERS / "optimum_llama") as generator,
        pytest.raises(UsageError, match="made with reuse=True"),
    ):
        generator.restore(tmp_path / "text.npz")
