"""The stand-ins are as strict as they say."""

import numpy as np

from mpicoll import buffers, gpu
from tests.support.fakes import cupy_is, fakecupy
from tests.support.fakes.fakecupy.memory import owner


def test_page_locked_memory_is_known_as_long_as_bytes_of_it_are_in_use():
    """NumPy forgot its owner; while another thread held that, a copy began that never arrived."""
    with cupy_is(fakecupy):
        array = gpu.PAGE_LOCKED.empty(4096, np.uint8)[8:100].view("u2")
        location = buffers.address(array)
        assert owner(location).device is None
        del array
        assert owner(location) is None
