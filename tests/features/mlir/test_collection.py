"""The garbage collector rests while a module is read, and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest
from kernelcast.features.mlir.parse.text_limits import no_collection


def test_it_rests_inside_and_works_again_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), no_collection():  # noqa: PT012  the error must come from inside
        assert not gc.isenabled()
        with no_collection():
            pass
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
