"""Copies that several threads share, against numpy."""

from __future__ import annotations

import os
from threading import Barrier, get_ident
from typing import Any

import numpy as np
import pytest

from tercet.runtime.base import copying
from tercet.runtime.base.copying import copied, copy, pieces
from tercet.runtime.ir.types import Array

from ..packages import needs_fork

DATA = np.random.default_rng(1).standard_normal((7, 11, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LARGE", 100)
    monkeypatch.setattr(copying, "PIECE", 64)
    monkeypatch.setattr(copying, "usable_cpus", lambda: 4)
    monkeypatch.setattr(copying, "_COPIERS", copying._Copiers())


def like(source: Array) -> Array:
    return np.full(source.shape, np.nan, np.float32)


@pytest.mark.parametrize(
    "source",
    [DATA, DATA.transpose(2, 0, 1), DATA[::2], DATA.astype(np.float64), DATA[..., :0], DATA[0, 0]],
    ids=["large", "transposed", "strided", "another type", "empty", "small"],
)
def test_elements_are_those_of_numpy(source: Array) -> None:
    to = like(source)
    copy(to, source)
    assert np.array_equal(to, source)


def test_each_piece_is_reported_once_it_is_copied() -> None:
    to = like(DATA)
    there, wanted, seen = pieces(to), pieces(DATA), list[int]()
    for index in copied(there, wanted):
        np.testing.assert_array_equal(there[index], wanted[index])
        seen.append(index)
    assert sorted(seen) == list(range(-(-DATA.nbytes // copying.PIECE)))
    assert np.array_equal(to, DATA)


def test_to_an_array_of_another_order() -> None:
    to = np.full(DATA.T.shape, np.nan, np.float32)
    copy(to.T, DATA)
    assert np.array_equal(to.T, DATA)


class Watched(list[Array]):
    """Pieces whose readers are recorded; the first four wait for each other."""

    def __init__(self, data: Array) -> None:
        super().__init__(pieces(data))
        self.readers, self.together = set[int](), Barrier(4)

    def __getitem__(self, key: Any) -> Any:
        if get_ident() not in self.readers:
            self.readers.add(get_ident())
            self.together.wait(20)
        return super().__getitem__(key)


def test_four_threads_copy_which_are_the_same_the_next_time() -> None:
    readers = list[set[int]]()
    for _ in range(2):
        to, source = like(DATA), Watched(DATA)
        assert len(list(copied(pieces(to), source))) == len(source)
        assert np.array_equal(to, DATA)
        readers.append(source.readers)
    assert readers[0] == readers[1]
    assert get_ident() not in readers[0]


def test_nothing_is_copied_after_the_generator_is_closed() -> None:
    to, nothing = like(DATA), like(DATA)
    for _ in range(50):
        indices = copied(pieces(to), pieces(DATA))
        next(indices)
        indices.close()
        to[...] = np.nan
        np.testing.assert_array_equal(to, nothing)
    copy(to, DATA)
    assert np.array_equal(to, DATA)


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    copy(like(DATA), DATA)
    child = os.fork()
    if child == 0:
        to = like(DATA)
        copy(to, DATA)
        os._exit(0 if np.array_equal(to, DATA) else 1)
    assert os.waitpid(child, 0)[1] == 0
