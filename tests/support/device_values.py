"""What must hold of the values that device arrays are reduced to, whether the device is real or not: the host's bits."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.support.arrays import element_type
from tests.support.cases import RANK, mixed_magnitudes, same
from tests.support.fakes.arrays import Named

WORDS = ("ring", "circulant", "recursive_doubling", "halving_doubling", "allgather_reduce")
TYPES = ("float64", "float32", "float16", "bfloat16")
LOGICAL = ("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")


class DeviceValues:
    """Checks over an array module `xp`."""

    def compare(self, xp, comm, host, op, word):
        """In place, and into another array, as the host has it."""
        octets = host.dtype.name == "bfloat16"  # CuPy before 14 has no such type
        shown = lambda array: Named(array, "bfloat16") if octets else array
        device = xp.array(host.view("u2") if octets else host)
        other = xp.array(np.zeros_like(host).view("u2") if octets else np.zeros_like(host))
        comm.Allreduce(shown(device), shown(other), op=op, algorithm=word)
        comm.Allreduce(MPI.IN_PLACE, shown(device), op=op, algorithm=word)
        comm.Allreduce(MPI.IN_PLACE, host, op=op, algorithm=word)
        wanted = host.view("u2") if octets else host
        same(device, wanted)
        same(other, wanted)

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("word", WORDS)
    def test_sums_have_the_bits_of_the_host(self, xp, mode, comm, word, dtype):
        self.compare(xp, comm, mixed_magnitudes(RANK, 1031, numbers(dtype)), MPI.SUM, word)

    @pytest.mark.parametrize("name", ["PROD", "MAX", "MIN"])
    @pytest.mark.parametrize("dtype", TYPES)
    def test_other_operations(self, xp, mode, comm, dtype, name):
        self.compare(xp, comm, mixed_magnitudes(RANK, 99, numbers(dtype)), getattr(MPI, name), "ring")

    @pytest.mark.parametrize("name", LOGICAL)
    def test_logic(self, xp, mode, comm, name):
        self.compare(xp, comm, (np.arange(99, dtype="i4") + RANK) % 3, getattr(MPI, name), "ring")


def numbers(name):
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own")
    return element_type(name)
