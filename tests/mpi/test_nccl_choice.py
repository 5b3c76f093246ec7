"""Who asks for NCCL: calls, the environment, tables, benchmarks, the trainer; and what is said of it."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import select
from mpicoll.bench import Candidate, compare, tuning
from mpicoll.train.options import Options
from tests.support.cases import RANK, SIZE, WORLD, same

pytestmark = [pytest.mark.mpi, pytest.mark.thorough]


def test_explain(comm, xp, nccl):
    said = comm.explain("allreduce", xp.array(np.ones(1000)), algorithm="nccl")
    assert (said.algorithm, said.rounds, said.bytes_sent, said.reason) == ("nccl", None, None, "asked for by the call")
    assert "nccl (asked for by the call)" in str(said) and not nccl.log


@pytest.mark.parametrize("count", [3, 1 << 12, 1 << 18])
def test_it_is_never_chosen_unasked(comm, xp, nccl, count):
    comm.Allreduce(MPI.IN_PLACE, xp.array(np.ones(count, "f4")))
    assert comm.explain("allreduce", xp.array(np.ones(count, "f4"))).algorithm != "nccl" and not nccl.log


@pytest.fixture
def forced(monkeypatch):
    """MPICOLL_ALGORITHM names NCCL, and then something else."""
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:nccl,allreduce:circulant")
    select.environment_rules.cache_clear()
    yield
    select.environment_rules.cache_clear()


def test_the_environment_may_name_it(xp, nccl, forced):
    comm = mpicoll.Communicator(WORLD.Dup())
    given = (np.ones(3), "circulant"), (xp.array(np.ones(3)), "nccl"), (xp.array(np.ones(3, "i2")), "circulant")
    for data, word in given:
        comm.Allreduce(MPI.IN_PLACE, data)
        same(data, np.full(3, SIZE, data.dtype))
        said = comm.explain("allreduce", data)
        assert said.algorithm == word and ("nccl cannot serve it (NCCL" in said.reason) == (word != "nccl")
    assert nccl.log == ["init", "allReduce"]
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_what_nccl_cannot_serve_falls_to_the_next(xp, nccl, forced, monkeypatch):
    monkeypatch.setattr(nccl, "gpu", lambda device: "0")
    comm, data = mpicoll.Communicator(WORLD.Dup()), xp.array(np.ones(3))
    for _ in range(2):
        comm.Allreduce(MPI.IN_PLACE, data)
        comm.Iallreduce(MPI.IN_PLACE, data).Wait()
    same(data, np.full(3, 1.0 * SIZE**4))
    said = comm.explain("allreduce", data)
    assert said.algorithm == "circulant" and "are on one GPU" in said.reason and not nccl.log
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_memory_that_differs_where_the_environment_names_it(xp, nccl, forced):
    """Half of the ranks would ask NCCL: an error, no hang."""
    comm, data = mpicoll.Communicator(WORLD.Dup()), np.ones(3) if RANK == 1 else xp.array(np.ones(3))
    with pytest.raises(mpicoll.CollectiveMismatch, match="not make the same call"):
        comm.Allreduce(MPI.IN_PLACE, data)
    comm.Free()


@pytest.mark.parametrize("text", ["scatter:nccl", "gather:0-8k:nccl"])
def test_rules_for_what_nccl_does_not_have(text):
    with pytest.raises(mpicoll.ArgumentError, match="of MPI's collectives it has allreduce, reduce_scatter, "):
        select.choice.parse_rules(text)


@pytest.fixture
def module(xp, monkeypatch):
    """The stand-in for CuPy, with what benchmarks need of it."""
    monkeypatch.setattr(xp, "invert", lambda one, out: out.set(np.invert(one.get())), raising=False)
    monkeypatch.setattr(xp, "empty_like", lambda one: xp.empty(one.shape, one.dtype), raising=False)
    monkeypatch.setattr(xp.ndarray, "__ne__", lambda one, other: one.get() != other.get(), raising=False)
    return xp


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather", "bcast", "reduce"])
def test_benchmarks(comm, module, nccl, collective, in_place):
    candidates = [Candidate("native"), Candidate("nccl"), Candidate("nccl", 1024)]
    rows = compare(comm, collective, candidates, 4096, np.dtype("f4"), repeats=2, in_place=in_place, module=module)
    assert [(row["algorithm"], row["segment_bytes"], row["wrong"]) for row in rows][1:] == [("nccl", None, 0)] * 2


def test_tuning(comm, module, nccl, tmp_path):
    """A table may name it, where NCCL was a candidate because it was asked for."""
    tried = tuning.candidates("allreduce", SIZE, 4096, [1024], nccl=True)
    assert [one.algorithm for one in tried].count("nccl") == 1
    assert "nccl" not in [one.algorithm for one in tuning.candidates("allreduce", SIZE, 4096, [1024])]
    assert "nccl" not in [one.algorithm for one in tuning.candidates("scatter", SIZE, 4096, [1024], nccl=True)]
    rows = tuning.measure(comm, "allreduce", [4096], [1024], np.dtype("f4"), 0.01, module=module, nccl=True)
    assert "nccl" in [row["algorithm"] for row in rows]
    assert not [row for row in rows if row["wrong"]]
    fastest = [dict(row, median_us=1.0 if row["algorithm"] == "nccl" else 9.0) for row in rows]
    entry = tuning.entry(mpicoll.execute.Context.of(comm).topology, "allreduce", fastest)
    assert entry["rules"][-1]["algorithm"] == "nccl"
    select.table.write(tmp_path / "table.json", {}, [entry], None)
    read = select.table.parse((tmp_path / "table.json").read_text(), "table")
    assert read.entries[0].rules[-1].algorithm == "nccl"


@pytest.mark.parametrize("strategy", ["allreduce", "zero1", "zero2"])
def test_the_trainer_takes_it(strategy):
    options = Options(strategy=strategy, algorithm="nccl")
    options.check()
    assert {options.algorithms[name] for name in options.collectives} == {"nccl"} and not options.counted
