"""Traces of real steps on any number of ranks: a file of the format's shape, one clear error on every rank."""

import json
from collections import defaultdict

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.errors import ArgumentError
from mpicoll.measure.timeline import clock_shift, write_timeline
from mpicoll.train import SGD, Dataset, Trainer, mlp
from mpicoll.train.monitor import meter as clocked
from mpicoll.train.monitor.meter import FIELDS, Meter

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


@pytest.fixture
def path(tmp_path):
    return WORLD.bcast(str(tmp_path / "trace.json"))


def step(meter, comm):
    """One step with a flight beside computation, and another that overlaps the first and a blocking collective."""
    vector = numpy.ones(5000)
    with meter.step():
        began, request = clocked.perf_counter(), MPI.Intracomm.Iallreduce(comm, MPI.IN_PLACE, vector)
        with meter.computing("forward"):
            product = vector.reshape(50, 100) @ numpy.ones((100, 50))
            with meter.waiting("bucket 0"):
                request.Wait()
            meter.in_flight("bucket 0", began, clocked.perf_counter())
        with meter.communicating("loss"):
            comm.Allreduce(MPI.IN_PLACE, product, algorithm="ring")
        meter.in_flight("bucket 1", began, clocked.perf_counter())


def traced(path, comm, steps):
    """The trace of some steps, read on every rank."""
    meter = Meter(comm, numpy)
    meter.tracing = True
    for _ in range(steps):
        step(meter, comm)
    write_timeline(path, meter.events, comm)
    comm.Barrier()
    with open(path, encoding="utf-8") as file:
        return json.load(file), meter


def by_thread(trace):
    """(rank, name of the thread) -> its (begin, end, name) in whole nanoseconds, as they come in the file."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    rows = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            span = begin, begin + round(event["dur"] * 1000), event["name"]
            rows[event["pid"], names[event["pid"], event["tid"]]].append(span)
    return rows


def test_the_trace_has_every_event_of_every_rank(path, comm):
    trace, meter = traced(path, comm, 3)
    assert set(trace) == {"traceEvents", "displayTimeUnit"} and trace["displayTimeUnit"] == "ms"
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    rows = by_thread(trace)
    steps, phases = [f"step {number}" for number in range(3)], ["bucket 0", "loss"] * 3
    for rank in range(SIZE):
        names = {thread: [name for *_, name in spans] for (owner, thread), spans in rows.items() if owner == rank}
        flights = names.pop("communication") + names.pop("communication 2")
        assert sorted(flights) == ["bucket 0"] * 3 + ["bucket 1"] * 3 + ["loss"] * 3
        assert names == {"step": steps, "compute": ["forward"] * 3, "wait": phases}
    assert min(begin for spans in rows.values() for begin, *_ in spans) == 0
    assert sum(len(spans) for spans in rows.values()) == sum(WORLD.allgather(len(meter.events)))


def test_events_of_a_thread_are_apart_and_steps_enclose_phases(path, comm):
    rows = by_thread(traced(path, comm, 3)[0])
    for (rank, thread), spans in rows.items():
        assert all(begin <= end for begin, end, _ in spans)
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:])), (rank, thread, spans)
        steps = rows[rank, "step"]
        assert all(any(first <= begin and end <= last for first, last, _ in steps) for begin, end, _ in spans)


@pytest.mark.mpi(min_size=2)
def test_steps_of_the_ranks_are_in_order_on_one_clock(path, comm, monkeypatch):
    """With the clocks an hour apart: no rank ends a step before another has begun it, for the allreduce needs both."""
    here = clocked.perf_counter
    for module in ("train.monitor.meter", "measure.timeline"):
        monkeypatch.setattr(f"mpicoll.{module}.perf_counter", lambda: here() + 3600 * RANK)
    rows = by_thread(traced(path, comm, 4)[0])
    error = 60_000_000_000  # of the alignment: far less than an hour, far more than the slowest round trip on a busy machine
    for number in range(4):
        steps = [rows[rank, "step"][number] for rank in range(SIZE)]
        assert max(begin for begin, *_ in steps) <= min(end for _, end, _ in steps) + error


def test_clock_shift_of_one_clock_is_bounded_by_the_fastest_round_trip(comm):
    """Ranks of one machine, which share a clock, are off by no more than all round trips took, and rank 0 by nothing."""
    own = comm.Split()
    begin = clocked.perf_counter()
    shift = clock_shift(own)
    spent = max(own.allgather(clocked.perf_counter() - begin))
    own.Free()
    assert abs(shift) <= spent and (RANK or shift == 0)


def test_a_trainer_is_traced(path):
    random = numpy.random.default_rng(0)
    data = Dataset.split(random.standard_normal((40, 6)), random.integers(0, 3, 40), 0)
    trainer = Trainer(mlp([6, 8, 3]), SGD(), mpicoll.Communicator(WORLD))
    meter = trainer.strategy.meter
    meter.tracing = True
    trainer.fit(data, steps=5, batch_size=12)
    write_timeline(path, meter.events, trainer.comm)
    WORLD.Barrier()
    with open(path, encoding="utf-8") as file:
        rows = by_thread(json.load(file))
    for rank in range(SIZE):
        assert [name for *_, name in rows[rank, "step"]] == [f"step {number}" for number in range(5)]
        assert rows[rank, "compute"] and rows[rank, "communication"]
    assert all(set(step) == set(FIELDS) for step in meter.steps)


def test_ranks_agree_on_the_summary(comm):
    meter = Meter(comm, numpy)
    for _ in range(3):
        step(meter, comm)
    summary = meter.summary_of_ranks()
    others = comm.allgather({name: value for name, value in summary.items() if name != "waiting_s"})
    assert all(other == others[0] for other in others)
    assert summary["compute_min_s"] <= summary["compute_median_s"] <= summary["compute_max_s"]
    slowest = comm.bcast(meter.typical("compute_s"), summary["slowest_rank"])
    assert summary["compute_max_s"] == slowest >= meter.typical("compute_s")
    assert summary["waiting_s"] == meter.ranks["waiting_s"] >= 0


# ---- errors, on every rank


def raises(text, call, *arguments):
    with pytest.raises(ArgumentError, match=text):
        call(*arguments)
    WORLD.Barrier()  # all ranks got here: nobody waits inside


def test_a_path_that_cannot_be_written(path, comm, tmp_path):
    meter = Meter(comm, numpy)
    meter.tracing = True
    step(meter, comm)
    missing = WORLD.bcast(str(tmp_path / "missing" / "trace.json"))
    raises("trace: cannot write .*missing/trace.json .No such file", write_timeline, missing, meter.events, comm)
    raises("cannot write .*Is a directory", write_timeline, WORLD.bcast(str(tmp_path)), meter.events, comm)
    raises("^path: expected the path of a file, got 7", write_timeline, 7, meter.events, comm)


def test_nothing_was_traced(path, comm):
    meter = Meter(comm, numpy)
    step(meter, comm)
    raises("expected events, got none; set meter.tracing before", write_timeline, path, meter.events, comm)
