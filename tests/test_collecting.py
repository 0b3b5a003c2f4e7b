"""No garbage is collected while a model is loaded and planned; it is again behind such a block."""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_stack
from typing import Any

import pytest

import tercet
from tercet.runtime.base.collecting import no_collection

CHAIN = """
<ir_version: 10, opset_import: ["" : 21]>
chain (float[N, 4] x0) => (float[N, 4] x300) {
    NODES
}
""".replace("NODES", " ".join(f"x{i + 1} = Sin (x{i})" for i in range(300)))


def fails() -> None:
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            pass
        assert not gc.isenabled()
        raise ValueError("inside")


def test_only_within_the_block() -> None:
    with pytest.raises(ValueError, match="inside"):
        fails()
    assert gc.isenabled()


def test_what_a_caller_turned_off_stays_off() -> None:
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@contextmanager
def collections() -> Iterator[list[set[str]]]:
    """Give the functions within which garbage is collected, for each time that it is."""
    found = list[set[str]]()

    def note(phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            found.append({frame.f_code.co_name for frame, _ in walk_stack(None)})

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(20)
    try:
        yield found
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)


def made(work: Callable[[], Any]) -> None:
    work()


def test_nothing_is_collected_while_a_model_is_loaded_and_planned() -> None:
    with collections() as found:
        made(lambda: [[i] for i in range(100)])
        assert any("made" in names for names in found), "the test sees when there are some"
        model = tercet.load(CHAIN)
        model.prepare({"x0": (3, 4)})
    assert not [names for names in found if names & {"optimise", "bind", "_build"}]


LASTING = """
import gc
from tercet.runtime.base.collecting import no_collection

with no_collection(lasting=True):
    made = [[]]
assert any(each is made for each in gc.get_objects(generation=2))
gc.freeze()
frozen = gc.get_freeze_count()
with no_collection(lasting=True):
    pass
assert gc.get_freeze_count() == frozen > 0
"""


def test_what_lasts_is_old_and_what_users_froze_stays_frozen() -> None:
    subprocess.run([sys.executable, "-c", LASTING], check=True, timeout=60)
