"""ONNX's suite on emulated kernels: some of its cases among the tests, all of them by hand.

python -m tests.kernels.test_suite [PATTERN]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet import backends
from tercet.backends.cuda.backend import CudaBackend
from tercet.onnx_backend import TercetBackend
from tercet.tools.conformance.judge import judge
from tercet.tools.conformance.report import read_expectation
from tercet.tools.conformance.run import select
from tercet.tools.conformance.suite import CATEGORIES, ConformanceCase

from .emulator import needs_compiler, open_emulated

#: Networks take minutes each.
SMALL = [category for category in CATEGORIES if category != "light"]
#: Which share of the cases is among the tests, in as many of them.
SHARE, TESTS = 15, 5


class Emulated(TercetBackend):
    backend = "cuda"


def unexpected(cases: Sequence[ConformanceCase]) -> Iterator[str]:
    """Yield what fails and is not known to; what is not supported is as on a GPU."""
    known = read_expectation("cuda").reasons
    for case in cases:
        outcome = judge(case, Emulated)
        if outcome.status == "failed" and case.id not in known:
            yield f"{case.id}: {outcome.reason}"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("first", range(TESTS))
def test_some_cases(first: int, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "open_backends", lambda *_: (emulated,))
    assert not list(unexpected(select("", SMALL)[first :: SHARE * TESTS]))


def main(pattern: str = "") -> int:
    """Run all cases whose ids match; return 1 where one fails that should not."""
    with TemporaryDirectory() as folder:
        emulated = open_emulated(Path(folder), setattr)
        backends.open_backends = lambda *_: (emulated,)
        cases = select(pattern, SMALL)
        failed = 0
        for text in unexpected(cases):
            failed += 1
            print(text, flush=True)
        print(f"{len(cases)} cases, {failed} failed unexpectedly")
        return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
