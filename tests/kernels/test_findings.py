"""What is found of constants is found once, and forgotten with them."""

from __future__ import annotations

import gc
from threading import Barrier, Thread

import numpy as np
import pytest

from tercet.backends.cuda.gemm import findings
from tercet.backends.cuda.gemm.findings import Findings, is_finite


def test_each_question_is_answered_once_for_each_array() -> None:
    found, asked, together = Findings[int](), list[str](), Barrier(4, timeout=20)
    one, other = np.zeros(3), np.zeros(3)

    def ask(array: np.ndarray, question: str) -> int:
        return found.of(array, question, lambda: len(asked.append(question) or asked))

    def at_once() -> None:
        together.wait()
        ask(one, "first")

    threads = [Thread(target=at_once) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert asked == ["first"]
    assert [ask(one, "first"), ask(one, "second"), ask(other, "first")] == [1, 2, 3]
    assert one in found
    assert one.copy() not in found


def test_arrays_that_are_gone_are_forgotten() -> None:
    found, array = Findings[int](), np.zeros(3)
    found.of(array, "size", lambda: 3)
    del array
    gc.collect()
    assert not found._known


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_finite(value: float, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    odd = array.copy()
    odd[1, 2] = value
    for _ in range(2):
        assert is_finite(array)
        assert not is_finite(odd)
        monkeypatch.setattr(findings.np, "isfinite", None)  # not read again
