"""What `explain` says of compressed calls: the messages and bytes that are sent, and the error of the result."""

from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.codes import codes_of
from mpicoll.errors import ArgumentError

pytestmark = pytest.mark.mpi

SIZE = MPI.COMM_WORLD.Get_size()
METHODS = {"allreduce": "Allreduce", "reduce_scatter": "Reduce_scatter_block", "allgather": "Allgather",
           "bcast": "Bcast", "reduce": "Reduce"}  # fmt: skip
EVERY = [(name, each.name) for name in METHODS for each in algorithms.proposed(name) if each.compressible]


def buffers(name, count, dtype):
    """Input and result of `count` elements, or, of blocks of ranks, of as many for each rank."""
    whole = count * SIZE if name in ("reduce_scatter", "allgather") else count
    vector, block = np.ones(whole, dtype), np.ones(count, dtype)
    if name == "bcast":
        return [vector]
    return {"reduce_scatter": [vector, block], "allgather": [block, vector]}.get(name, [vector, np.empty_like(vector)])


@pytest.mark.parametrize(("name", "word"), EVERY)
def test_sent_is_what_was_explained(comm, name, word):
    cases = product((1, SIZE + 1, 3001), (None, 4096), (("int8", "f4"), ("int4", "f8"), ("float16", "f4")))
    for count, pieces, (compression, dtype) in cases:
        arguments = buffers(name, count, dtype)
        options = {"algorithm": word, "segment_bytes": pieces, "compression": compression}
        said = comm.explain(name, *arguments, root=SIZE - 1, **options)
        rooted = {"root": SIZE - 1} if name in ("bcast", "reduce") else {}
        before = comm.sent
        getattr(comm, METHODS[name])(*arguments, **rooted, **options)
        sent = tuple(after - earlier for after, earlier in zip(comm.sent, before))
        assert sent == (said.messages, said.bytes_sent)
        assert said.compression == compression and f"{word}" in str(said) and ", compressed" in str(said)


@pytest.mark.skipif(SIZE == 1, reason="one rank sends nothing")
def test_the_error_is_a_part_of_the_contract(comm):
    arguments = buffers("allreduce", 1000, "f4")
    said = comm.explain("allreduce", *arguments, algorithm="pairwise", compression="int8")
    assert (said.compression, said.quantisations) == ("int8", 2)
    assert said.expected_error == pytest.approx(0.0099, rel=0.01) == codes_of("int8").expected_error(2)
    text = str(said)
    assert "256 values share a scale, their largest magnitude / 127" in text
    assert "off by at most half the sum of the contributions' scales + half the result's scale + rounding" in text
    assert "relative error (RMS) to expect of Gaussian data: 0.0099" in text
    assert said.predicted_seconds is None
    said = comm.explain("allgather", *buffers("allgather", 1000, "f4"), algorithm="ring", compression="bfloat16")
    assert said.quantisations == 1 and "bfloat16 rounds each value once" in str(said) and "result's" not in str(said)


def test_calls_without_codes_promise_nothing(comm):
    said = comm.explain("allreduce", *buffers("allreduce", 1000, "f4"), algorithm="ring")
    assert (said.compression, said.quantisations, said.expected_error) == ("", 0, 0.0) and "scale" not in str(said)


def test_what_is_not_compressed_is_served_as_without_compression(comm):
    """Inside a node; MPI's own call, too, which never sends codes."""
    for name, method in METHODS.items():
        for count in (1, 100):
            arguments = buffers(name, count, "f4")
            allowed = comm.explain(name, *arguments, compression="int8")
            assert allowed.algorithm == comm.explain(name, *arguments).algorithm
            assert allowed.compression == "" and "; not compressed: all ranks are on one node" in allowed.reason
            getattr(comm, method)(*arguments, compression="int8")
            summed = SIZE if name in ("allreduce", "reduce_scatter") else 1
            assert name == "reduce" or (arguments[-1] == summed).all()
    with pytest.raises(ArgumentError, match="MPI's messages are not compressed"):
        comm.explain("allreduce", *buffers("allreduce", 9, "f4"), algorithm="native", compression="int8")
