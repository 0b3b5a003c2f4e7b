"""Garbage is collected again after a block without."""

import gc

import pytest

from tercet.runtime.base.collecting import no_collection


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
