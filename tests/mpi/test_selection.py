"""Which algorithm serves a call: the call's own word, the environment, sizes; and what is said about it."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import gpu, select
from tests.support.cases import METHODS, PRIME, RANK, SIZE, Case, expected, outside_of_mpi, same, words

pytestmark = pytest.mark.mpi


@pytest.fixture
def forced(monkeypatch):
    """A function that sets MPICOLL_ALGORITHM for this process as if it had been started so."""

    def force(text):
        monkeypatch.setenv("MPICOLL_ALGORITHM", text)
        select.environment_rules.cache_clear()

    yield force
    monkeypatch.undo()
    select.environment_rules.cache_clear()


@pytest.mark.parametrize("method", [method for method in METHODS if not method.endswith(("v", "Reduce_scatter"))])
def test_environment_decides(comm, forced, method):
    for word in words(method):
        forced(f"{METHODS[method]}:{word}")
        fresh, case = comm.Dup(), Case(method)  # one that has not chosen before
        same(case.call(fresh), expected(method))
        said = fresh.explain(METHODS[method], *case.arguments[: 1 if method == "Bcast" else 2])
        assert (said.algorithm, said.reason) == (word, f"MPICOLL_ALGORITHM={METHODS[method]}:{word}")
        assert fresh.sent[0] == said.messages
        fresh.Free()


@pytest.mark.mpi(min_size=2)
def test_environment_decides_of_blocks_whose_sizes_only_pairs_of_ranks_know(comm, forced):
    for rules, messages in (("alltoall:bruck", 0), ("alltoall:0-inf:pairwise", SIZE - 1), ("alltoall:0-1G:pairwise", 0)):
        forced(rules)
        fresh = comm.Dup()
        same(Case("Alltoallv").call(fresh), expected("Alltoallv"))
        assert fresh.sent[0] == messages, rules
        fresh.Free()


def test_ranges(comm, forced):
    forced("allreduce:0-8k:ring, allreduce:8K-16k:pairwise,allreduce:tree")
    for nbytes, word in ((0, "ring"), (8, "ring"), (8184, "ring"), (8192, "pairwise"), (16376, "pairwise"), (16384, "tree")):
        assert comm.explain("allreduce", np.zeros(nbytes // 8)).algorithm == word


def test_the_call_is_stronger_than_the_environment(comm, forced):
    forced("allreduce:ring")
    assert comm.explain("allreduce", np.zeros(8), algorithm="pairwise").algorithm == "pairwise"
    comm.Allreduce(MPI.IN_PLACE, np.zeros(8), algorithm="native")
    assert comm.sent == (0, 0)


def test_an_entry_that_cannot_serve_falls_to_the_next(comm, forced):
    op = MPI.Op.Create(lambda a, b, _: None, False)
    forced("allreduce:ring,allreduce:circulant,allreduce:pairwise")
    said = comm.explain("allreduce", np.zeros(8), op=op)
    assert said.algorithm == "pairwise"
    forced("allreduce:ring")
    said = comm.explain("allreduce", np.zeros(8), op=op)
    assert said.algorithm == "native"
    assert "MPICOLL_ALGORITHM=allreduce:ring cannot serve it" in said.reason and "not commutative" in said.reason
    data = np.full(3, float(RANK))
    comm.Allreduce(MPI.IN_PLACE, data, op)
    op.Free()


def test_native_in_the_environment_cannot_reduce_half_precision(comm, forced):
    forced("allreduce:native")
    said = comm.explain("allreduce", np.zeros(8, "f2"))
    assert said.algorithm != "native" and "MPI has no such reduction" in said.reason
    data = np.ones(8, "f2")
    comm.Allreduce(MPI.IN_PLACE, data)
    same(data, np.full(8, SIZE, "f2"))


def test_counts_that_only_the_root_knows(comm, forced):
    """Ranges cannot match where not all ranks know the size; a word for all sizes can."""
    forced("gather:0-1G:binomial")
    assert comm.explain("gather", np.zeros(3)).algorithm == "binomial"
    Case("Gatherv").call(comm)
    assert comm.sent == (0, 0)
    forced("gather:linear")
    comm = comm.Dup()  # one that has not chosen before
    same(Case("Gatherv").call(comm), expected("Gatherv"))
    assert comm.sent[0] == (RANK != 0)
    comm.Free()


BAD = {
    "allreduce": "expected collective:algorithm", "allreduce:rung": "'rung'.*ring", "sum:ring": "unknown collective",
    "allreduce:1-2:3:ring": "expected", "allreduce:8k:ring": "cannot use", "allreduce:x-y:ring": "cannot use",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_bad_environment(forced, text):
    forced(text)
    with pytest.raises(mpicoll.ArgumentError, match=f"(?s)MPICOLL_ALGORITHM.*{BAD[text]}"):
        mpicoll.Communicator(MPI.COMM_WORLD)


def test_bad_gpu_mode(monkeypatch):
    monkeypatch.setenv("MPICOLL_GPU", "sideways")
    with pytest.raises(mpicoll.ArgumentError, match="sideways.*auto, direct or staged"):
        gpu.gpu_mode()
    with pytest.raises(mpicoll.ArgumentError, match="MPICOLL_GPU=sideways"):
        mpicoll.Communicator(MPI.COMM_WORLD)


def test_default(comm):
    small, large = comm.explain("allreduce", np.zeros(8)), comm.explain("allreduce", np.zeros(1 << 23))
    assert small.algorithm == "native" and small.messages is None
    assert large.algorithm == ("native" if SIZE == 1 else "circulant")
    assert "default table" in large.reason or SIZE == 1
    assert large.lower_bound == 2 * (SIZE - 1) / SIZE * (8 << 23)
    same(Case("Allreduce", 1 << 14).call(comm), expected("Allreduce", 1 << 14))


@pytest.mark.parametrize("count", [0, PRIME])
def test_explain_says_what_it_is_about(comm, count):
    text = str(comm.explain("allreduce", np.zeros(count), algorithm="ring"))
    assert f"allreduce of {8 * count} bytes on {SIZE} ranks: ring (asked for by the call)" in text
    assert "lower bound" in text


@pytest.mark.skipif(RANK > 0 or SIZE > 1, reason="a process of its own, started from no MPI job")
def test_environment_of_a_process():
    code = "from mpi4py import MPI; import mpicoll; mpicoll.Communicator(MPI.COMM_SELF)"
    assert outside_of_mpi(code, MPICOLL_ALGORITHM="allreduce:ring").returncode == 0
    failed = outside_of_mpi(code, MPICOLL_ALGORITHM="allreduce:rung")
    assert failed.returncode and "choose from" in failed.stderr
