"""Prompt cache files: the KV caches of a prompt, saved for another process."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np

from ..importers.onnx.reading.signatures import mistaken
from ..runtime.base.files import replacing
from ..runtime.errors import FileError, ModelError
from ..runtime.ir.graph import Graph
from ..runtime.ir.types import Array
from ..runtime.session.cache_layout import DecoderLayout

_PREFIX = "cache/"
#: Bytes of every constant that are hashed to identify a model among others of its shape.
_SAMPLE = 4096


def mark_of(graph: Graph) -> str:
    """Return a digest that identifies the weights of a model."""
    found = blake2b(digest_size=16)
    for value in sorted(graph.constants, key=lambda each: each.name):
        if value.data is not None and value.data.dtype.kind != "O":
            found.update(f"{value.name}{value.data.dtype}{value.data.shape}".encode())
            found.update(value.data.reshape(-1)[:_SAMPLE].tobytes()[:_SAMPLE])
    return found.hexdigest()


def write_caches(path: Path, mark: str, ids: list[int], caches: Mapping[str, Array]) -> None:
    """Write tokens and their KV caches to an .npz file.

    Args:
        path: the file; replaced atomically.
        mark: the digest of the model; see `mark_of`.
        ids: the tokens.
        caches: arrays by input name; dtypes that numpy lacks are stored as bytes.
    """
    arrays = {f"{_PREFIX}{n}": a.view(f"u{a.itemsize}") for n, a in caches.items()}
    with replacing(path) as stream:
        np.savez(stream, allow_pickle=False, mark=np.array(mark), ids=np.array(ids), **arrays)


def read_caches(path: Path, mark: str, layout: DecoderLayout) -> tuple[Array, dict[str, Array]]:
    """Return the tokens, int64 [1, length], and the KV caches by input name.

    Raises:
        FileError: the file cannot be read.
        ModelError: it is not a file of caches, or one of another model.
    """
    file = str(path)
    try:
        with path.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                instead = mistaken(path) or "it is not an .npz file"
                raise ModelError(f"is not a file of caches: {instead}", file=file)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                held = {name: archive[name] for name in archive.files}
    except OSError as error:
        raise FileError(error.errno, error.strerror or str(error), file) from error
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as error:
        raise ModelError(f"is not a file of caches: {error}", file=file) from error
    for name in ("mark", "ids"):
        if name not in held:
            raise ModelError("is missing; this is not a file of caches", file=file, where=name)
    if str(held["mark"]) != mark:
        raise ModelError(
            "belongs to a model with other weights; compute the prompt again",
            file=file,
            where="mark",
        )
    kinds = {each.past: each.dtype for each in layout.caches}
    caches = {
        name.removeprefix(_PREFIX): array
        for name, array in held.items()
        if name.startswith(_PREFIX)
    }
    for name, array in caches.items():
        if name not in kinds or array.dtype.itemsize != kinds[name].itemsize:
            raise ModelError("is not a cache of this model", file=file, where=f"'{name}'")
    ids = held["ids"]
    if ids.ndim != 1 or ids.dtype.kind != "i":
        raise ModelError(f"{ids.dtype}{list(ids.shape)}: expected tokens", file=file, where="ids")
    return ids[None], {name: array.view(kinds[name]) for name, array in caches.items()}
