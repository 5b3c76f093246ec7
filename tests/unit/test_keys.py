"""The keys by which repeated calls find their plans."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.calls import key_of

MEMORY = np.zeros(256, np.uint8)
START = -MEMORY.ctypes.data % 16


def elements(at):
    return MEMORY[START + at :][:64]


FORMS = {
    "a list": lambda at: [elements(at), MPI.DOUBLE],
    "a view": lambda at: memoryview(elements(at)).cast("d"),
    "an array": lambda at: elements(at).view("d"),
}


@pytest.mark.parametrize("message", FORMS.values(), ids=FORMS)
def test_a_call_with_elements_that_are_not_aligned_has_a_plan_of_its_own(message):
    """It packs them: loops of C may assume that an element lies where its type asks for."""
    aligned, other, odd = (key_of(key_of, [message(at)], None, None)[0] for at in (0, 64, 3))
    assert aligned == other != odd
