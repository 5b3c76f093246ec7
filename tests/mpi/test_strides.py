"""Strided arrays: blocks in the logical order of the view, and its gaps stay."""

import numpy as np
import pytest
from mpi4py import MPI

from tests.support.cases import RANK, SIZE, same, words

pytestmark = pytest.mark.mpi

VIEWS = {
    "every second": lambda base: base.reshape(-1)[::2],
    "columns": lambda base: base[:, 1:3],
    "transposed": lambda base: base.T,
    "backwards": lambda base: base[::-1, ::-1],
    "Fortran": np.asfortranarray,
    "one row backwards": lambda base: base[2, ::-1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_strided_reduction(comm, view, word):
    """The view gets the sum, the gaps stay."""
    data, wanted = (np.arange(24.0).reshape(6, 4) for _ in range(2))
    mine, reference = view(data), view(wanted)
    reference[...] = reference * SIZE
    comm.Allreduce(MPI.IN_PLACE, mine, algorithm=word)
    same(mine, reference)
    same(data, wanted)
    result = view(np.zeros((6, 4)))
    comm.Allreduce(mine, result, algorithm=word)
    same(result, reference * SIZE)


@pytest.mark.parametrize("method", ["Allgather", "Gather", "Scatter", "Bcast"])
@pytest.mark.parametrize("kind", ["every second", "columns", "backwards"])
def test_strided_blocks(comm, method, kind):
    """Blocks lie in the logical order of a strided array."""
    view = VIEWS[kind]
    for word in [None, "native", *words(method)]:
        whole, base = view(np.zeros((6 * SIZE, 4))), view(np.arange(24.0).reshape(6, 4) + 100 * RANK)
        parts = [view(np.arange(24.0).reshape(6, 4) + 100 * rank).ravel() for rank in range(SIZE)]
        everything = np.concatenate(parts)
        if method == "Bcast":
            comm.Bcast(base, SIZE - 1, algorithm=word)
            same(base, view(np.arange(24.0).reshape(6, 4) + 100 * (SIZE - 1)))
        elif method == "Scatter":
            whole[...] = everything.reshape(whole.shape)
            comm.Scatter(whole if RANK == 0 else None, base, algorithm=word)
            same(base.ravel(), parts[RANK])
        else:
            getattr(comm, method)(base, whole, algorithm=word)
            if RANK == 0 or method == "Allgather":
                same(whole.ravel(), everything)


@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_fortran_arrays_are_taken_in_memory_order(comm, word):
    data = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    result = np.zeros(6 * SIZE)
    comm.Allgather(data, result, algorithm=word)
    same(result, np.tile(data.ravel(order="K"), SIZE))
