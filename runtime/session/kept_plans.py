"""Models and plans that later processes read from a folder, instead of making them again.

What is between a file and a plan depends on the file's bytes, the options, the device and the
versions of what made it, and on nothing else. The entry of a model has its graphs, as imported and
after the passes, and says where the elements of constants are: in the model's files, whose digests
it has, or in a file of its own, if passes computed them. The entry of a program has its graph, with
sizes, and its rows. What is missing, damaged, or of other files is made again.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from ..base.cache import Cache, make_folder
from ..base.file_parts import Array, Block, digest_of, read_digested
from ..base.files import replacing, signature
from ..base.parallel import same_threads
from ..base.record import record
from ..control.resources import Resources
from ..ir.graph import Graph
from ..ir.mapped import Mapped
from ..ir.types import ValueType
from ..options import Options
from ..passes import Rewrites
from ..plan.backend import Backend, Device, knows
from ..plan.exchange import HOST_IO, IOPlacement
from ..plan.keeping import Portable, marks_of
from ..plan.layout import lay_out
from ..plan.partition import Partition
from ..plan.rows import Layout
from ..plan.weights import WeightStore
from .kept_graphs import BESIDE, Arrays, Place, Unkept, dumped, loaded

#: Bytes of a model's files: all are read to see whether they are the same.
MOST_READ = 2 << 30
#: Bytes of computed constants that are kept of a model, and of a program.
MOST_COMPUTED, MOST_OF_PROGRAM = 256 << 20, 16 << 20
#: Bytes of all entries; those that were used longest ago are removed.
MOST = 2 << 30
#: What reading an entry raises if it is not what this version writes.
_FAILURES = (
    Unkept,
    OSError,
    EOFError,
    ImportError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    pickle.PickleError,
)
_MODEL, _WEIGHTS, _PROGRAM = ".model", ".weights", ".program"


@record
class KeptFile:
    """A file with constants of a model.

    Attributes:
        path: with links resolved.
        name: of external data in the model, which are mapped; None for a file that is read.
        size: its bytes.
        digest: of all of them.
    """

    path: str
    name: str | None
    size: int
    digest: bytes


class Snapshot(NamedTuple):
    """A model before anything is planned.

    Attributes:
        about: what the file says of itself, by attribute of `ModelSource`.
        graph: as imported.
        made: the graph after the passes.
        rewrites: what they did.
        mapped: its external data.
    """

    about: Mapping[str, Any]
    graph: Graph
    made: Graph
    rewrites: Rewrites
    mapped: tuple[Mapped, ...]


class KeptModel:
    """The entries of one model with its options.

    Args:
        folder: of the cache.
        file: the model's path as given.
        key: all that its graphs depend on besides its files.

    Raises:
        OSError: there is no such file.
    """

    def __init__(self, folder: Path, file: str, key: bytes) -> None:
        self._folder, self._file, self._path = folder / "plans", file, os.path.realpath(file)
        self._cache = Cache(self._folder)
        self._name = sha256(key + os.fsencode(self._path)).hexdigest()[:40]
        self._signed = {self._path: signature(self._path)}
        self._identity = b""  # of the entry that the model was read from, or written to
        self._arrays = list[Array]()
        self._snapshot: Snapshot | None = None
        self._blocks: tuple[Block, ...] = ()

    # ── models ───────────────────────────────────────────────────────────────────────────────

    @same_threads()
    def read(self) -> Snapshot | None:
        """Return the model, or None if it has to be made."""
        entry = self._cache.read(self._name + _MODEL)
        if entry is None:
            return None
        try:
            files, places, graphs = loaded(entry, (), {})
            blocks, mapped = dict[int, Sequence[Block]](), list[Mapped]()
            for number, each in enumerate(files):
                blocks[number] = self._read(number, each, places, mapped)
            self._arrays = [place.array(blocks[place.file]) for place in places]
            about, graph, made, rewrites = loaded(graphs, self._arrays, {})
        except _FAILURES:
            self._arrays = []
            return None
        self._identity = sha256(entry).digest()
        for suffix in (_MODEL, _WEIGHTS):
            self._touch(self._name + suffix)
        return Snapshot(about, graph, made, rewrites, tuple(mapped))

    def _read(
        self, number: int, about: KeptFile, places: Sequence[Place], mapped: list[Mapped]
    ) -> list[Block]:
        """Return the bytes of a file that arrays are in.

        Raises:
            Unkept: it is another file.
            OSError, EOFError: it cannot be read.
        """
        if about.name is not None and self._resolved(about.name) != about.path:
            raise Unkept(f"'{about.name}' is another file")
        bounds = _together(place.bounds for place in places if place.file == number)
        with open(about.path, "rb", opener=_without_waiting) as file:
            before = os.fstat(file.fileno())
            if before.st_size != about.size or not S_ISREG(before.st_mode):
                raise Unkept(f"'{about.path}' has another size")
            was = signature(file.fileno())
            if about.name is not None:
                mapping = mmap(file.fileno(), about.size, access=ACCESS_READ)
                path = Path(about.path)
                mapped.append(Mapped(about.name, self._file, about.size, ref(mapping), path, was))
                parts, bounds = [np.frombuffer(mapping, np.uint8)], [(0, about.size)]
                digest = digest_of(parts[0])
            else:
                digest, parts = read_digested(file, bounds)
            if digest != about.digest or signature(file.fileno()) != was:
                raise Unkept(f"'{about.path}' has changed")
        return [Block(number, at, data) for (at, _), data in zip(bounds, parts, strict=True)]

    def _resolved(self, name: str) -> str:
        """Return the path of external data."""
        return os.path.realpath(os.path.join(os.path.dirname(self._file), name))

    def note(self, snapshot: Snapshot, blocks: Sequence[Block]) -> None:
        """Note what the model was made of; it is kept with its first program."""
        with suppress(OSError):
            for each in snapshot.mapped:
                self._signed[str(each.path)] = each.signature
            is_small = sum(size for size, *_ in self._signed.values()) <= MOST_READ
            if is_small and not snapshot.rewrites.endless:
                self._snapshot, self._blocks = snapshot, tuple(blocks)

    def _write(self, snapshot: Snapshot, blocks: list[Block]) -> None:
        """Keep the model.

        Raises:
            Unkept: it cannot be kept, or a file has changed.
            OSError: a file cannot be read or written.
        """
        if self._cache.refusal():
            raise Unkept("others may write to the folder")
        mapped = snapshot.mapped
        for number, each in enumerate(mapped, 1):
            if (mapping := each.mapping()) is not None:
                blocks.append(Block(number, 0, np.frombuffer(mapping, np.uint8)))
        arrays = Arrays((), blocks, MOST_COMPUTED, len(mapped) + 1)
        graphs = dumped(tuple(snapshot[:-1]), arrays, {})
        bounds = [
            _together(place.bounds for place in arrays.places if place.file == number)
            for number in range(len(mapped) + 2)
        ]
        files = [_described(self._path, bounds[0])]
        files += [_described(str(each.path), (), each.name) for each in mapped]
        if arrays.others:
            files.append(self._write_weights(arrays, bounds[-1]))
        if any(signature(path) != was for path, was in self._signed.items()):
            raise Unkept("a file has changed")
        entry = dumped((files, arrays.places, graphs), Arrays((), (), 0), {})
        self._cache.write(self._name + _MODEL, entry)
        self._arrays, self._identity = arrays.all, sha256(entry).digest()

    def _write_weights(self, arrays: Arrays, bounds: Sequence[tuple[int, int]]) -> KeptFile:
        """Write computed constants; return what was written, not what others have since.

        Raises:
            OSError: they cannot be written.
        """
        weights = self._folder / (self._name + _WEIGHTS)
        draft = self._folder / f".{token_hex(8)}.part"
        make_folder(self._folder)
        try:
            with replacing(draft, mode=0o600) as stream:
                stream.writelines(arrays.parts())
            about = _described(str(draft), bounds)
            os.replace(draft, weights)
        finally:
            draft.unlink(missing_ok=True)
        return replace(about, path=str(weights))

    def close(self) -> None:
        """Forget what the model is made of; nothing is kept any more."""
        self._identity, self._arrays, self._snapshot, self._blocks = b"", [], None, ()

    # ── programs ─────────────────────────────────────────────────────────────────────────────

    def program(
        self,
        types: Mapping[str, ValueType | None],
        ends: IOPlacement,
        general: Graph,
        resources: Resources,
    ) -> KeptProgram | None:
        """Return a program of all outputs that is kept, or will be; None if it cannot be.

        Args:
            types: of the inputs.
            ends: where inputs and results are.
            general: the graph after the passes.
            resources: what programs are made with.
        """
        marks = marks_of(resources.backends)
        is_known = self._identity or self._snapshot is not None
        if not is_known or marks is None or ends.lent:
            return None
        given: dict[str, object] = {"general": general}
        for device, store in resources.stores.items():
            given |= {f"device {device.name}": device, f"store {device.name}": store}
        sizes = [(name, type_, getattr(type_, "elements", None)) for name, type_ in types.items()]
        return KeptProgram(self, repr((marks, sizes, ends)).encode(), given)

    def read_program(self, key: bytes, given: Mapping[str, object]) -> tuple[Any, ...] | None:
        """Return what was written under a key; None if nothing was."""
        if not self._identity or (entry := self._cache.read(self._entry(key))) is None:
            return None
        try:
            places, rows, behind = loaded(entry, (), {})
            beside = [Block(BESIDE, 0, np.frombuffer(behind, np.uint8))]
            arrays = [*self._arrays, *(place.array(beside) for place in places)]
            found: tuple[Any, ...] = loaded(rows, arrays, given)
        except _FAILURES:
            return None
        self._touch(self._entry(key))
        return found

    def dumped(self, root: tuple[object, ...], given: Mapping[str, object]) -> bytes | None:
        """Return the entry of a program; None if it cannot be kept."""
        try:
            if self._snapshot is not None:
                snapshot, blocks = self._snapshot, [*self._blocks]
                self._snapshot, self._blocks = None, ()
                self._write(snapshot, blocks)
            arrays = Arrays(self._arrays, (), MOST_OF_PROGRAM)
            rows = dumped(root, arrays, given)
            parts = arrays.places, rows, b"".join(arrays.parts())
            return dumped(parts, Arrays((), (), 0), {})
        except _FAILURES:
            return None

    def write_program(self, key: bytes, entry: bytes) -> None:
        """Keep a program, and remove entries that were not used for long."""
        if self._identity:
            self._cache.write(self._entry(key), entry)
            _sweep(self._folder)

    def _entry(self, key: bytes) -> str:
        return sha256(self._identity + key).hexdigest()[:40] + _PROGRAM

    def _touch(self, name: str) -> None:
        """Note that an entry was used."""
        with suppress(OSError):
            os.utime(self._folder / name)


class KeptProgram:
    """One program, which is read or written.

    Args:
        model: the model's entries.
        key: what it depends on besides the model.
        given: what its rows refer to, by name.

    Attributes:
        graph: that of a program that was kept; None if it has to be made.
    """

    def __init__(self, model: KeptModel, key: bytes, given: Mapping[str, object]) -> None:
        self._model, self._key, self._given = model, key, given
        self._found = model.read_program(key, given)
        self.graph: Graph | None = None if self._found is None else self._found[0]
        self._made: bytes | None = None

    def __call__(
        self,
        graph: Graph,
        backends: Sequence[Backend],
        options: Options,
        stores: Mapping[Device, WeightStore],
        ends: IOPlacement = HOST_IO,
        nesting: Backend | None = None,
    ) -> tuple[Layout, Partition]:
        """Return the rows that were kept, or make them; see `plan.layout.lay_out`."""
        if self._found is not None:
            layout = Layout(graph, stores, ends, backends[0].device)
            _, layout.rows, layout.slots, layout.inputs, layout.outputs, refusals = self._found
            return layout, Partition((), refusals)
        layout, found = lay_out(graph, backends, options, stores, ends, nesting)
        steps = [row.step for row in layout.rows if row.step is not None]
        if all(knows(step, Portable) and step.portable for step in steps):
            rows = [replace(row, claim=None) for row in layout.rows]
            root = graph, rows, layout.slots, layout.inputs, layout.outputs, found.refusals
            self._made = self._model.dumped(root, self._given)
        return layout, found

    def end(self) -> None:
        """Write the program, which has been bound."""
        if self._made is not None:
            self._model.write_program(self._key, self._made)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe, which is none, does not wait for somebody who writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _described(path: str, bounds: Sequence[tuple[int, int]], name: str | None = None) -> KeptFile:
    """Return what is known of a file, with a digest for reading these parts of it."""
    with open(path, "rb") as file:
        digest, _ = read_digested(file, bounds, keep=False)
        return KeptFile(path, name, os.fstat(file.fileno()).st_size, digest)


def _together(bounds: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return parts of a file, in order, with those that overlap as one."""
    found = list[tuple[int, int]]()
    for start, end in sorted(bounds):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _sweep(folder: Path) -> None:
    """Remove the entries that were used longest ago, beyond `MOST` bytes.

    What another process has removed is gone; what cannot be removed stays.
    """
    found = list[tuple[int, int, str]]()
    with suppress(OSError), os.scandir(folder) as entries:
        for each in entries:
            with suppress(OSError):
                about = each.stat()
                found.append((about.st_mtime_ns, about.st_size, each.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= MOST:
            return
        with suppress(OSError):
            os.unlink(path)
            total -= size
