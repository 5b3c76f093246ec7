"""Benchmarks on any number of ranks: exact expectations, counted errors, and one document per run."""

import json
import sys
import threading
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import algorithms, collectives
from mpicoll.bench.compare import Candidate, compare
from mpicoll.bench.gaussian import GaussianWorkload
from mpicoll.bench.workload import UNEVEN, Workload, split_counts
from mpicoll.cli import info
from mpicoll.cli import main as command_line
from mpicoll.cluster import NAMES
from mpicoll.codes import codes_of
from mpicoll.errors import ArgumentError
from mpicoll.execute import Context
from mpicoll.gpu import cuda_awareness
from mpicoll.measure.provenance import measured_on
from mpicoll.measure.timing import alternate, repeats_for
from mpicoll.schedule import Recv, Reduce, Send, rounds
from mpicoll.support.arrays import element_type
from mpicoll.verify import quantisations

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


@pytest.mark.parametrize(("collective", "in_place"), list(product(collectives.COLLECTIVES, (False, True))))
def test_every_algorithm_gives_what_is_expected(comm, collective, in_place):
    words = [*(each.name for each in algorithms.proposed(collective)), "native", "auto"]
    for nbytes, root in ((4, 0), (12 * 1021 * SIZE + 4, SIZE - 1)):
        candidates, options = list(map(Candidate, words)), {"root": root, "in_place": in_place}
        rows = compare(comm, collective, candidates, nbytes, np.dtype("float32"), repeats=2, **options)
        assert [row["algorithm"] for row in rows] == words
        assert [row["wrong"] for row in rows] == [0] * len(words)
        assert all(row["bytes"] == 4 * row["count"] and row["median_us"] >= row["min_us"] > 0 for row in rows)


@pytest.mark.parametrize(("collective", "split"), list(product(UNEVEN, ("one", "random"))))
def test_blocks_of_uneven_size(comm, collective, split):
    words = [*(each.name for each in algorithms.proposed(collective)), "native", "auto"]
    for in_place in (False, True):
        candidates, options = list(map(Candidate, words)), {"root": SIZE - 1, "in_place": in_place, "split": split}
        rows = compare(comm, collective, candidates, 12 * 1021 * SIZE + 4, np.dtype("float32"), repeats=1, **options)
        assert [(row["algorithm"], row["split"], row["wrong"]) for row in rows] == [(word, split, 0) for word in words]
    counts = split_counts(split, 1000 * SIZE, SIZE)
    assert sum(counts) == 1000 * SIZE and (SIZE < 3 or max(counts) > 1.2 * min(counts))


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather", "bcast", "reduce"])
def test_compressed_results_are_compared_with_their_bound(comm, collective):
    nodes = Context.of(WORLD).topology.nodes
    words = [each.name for each in algorithms.proposed(collective) if each.compressible]
    names = ("int8", "bfloat16")
    candidates = [Candidate(word, compression=name) for name in names for word in [*words, "auto"]]
    for nbytes, root, in_place in ((4, 0, True), (40_000 * SIZE, SIZE - 1, False)):
        options = {"root": root, "in_place": in_place}
        rows = compare(comm, collective, [Candidate("native"), *candidates], nbytes, np.dtype("f4"), repeats=1, **options)
        assert [row["wrong"] for row in rows] == [0] * len(rows) and "compression" not in rows[0]
        for row in rows[1:]:
            word = row.get("chose", row["algorithm"])
            expected = 0 if row["algorithm"] == "auto" else quantisations(algorithms.find(collective, word), SIZE, nodes)
            assert row["quantisations"] == expected and row["of_bound"] <= 1
            most = codes_of(row["compression"]).expected_error(expected) if expected else 1e-6
            assert row["rms_error"] <= 1.05 * most or nbytes == 4


def test_elements_beyond_the_bound_are_wrong(comm):
    case = GaussianWorkload(comm, "allreduce", 1000, np.dtype("f4"))
    asked = "pairwise", None, "int8"
    case.prepare(poison=True)
    case.call(*asked)()
    assert case.errors(*asked).wrong == 0
    if RANK == SIZE - 1:
        case.result[[3, 500]] += 1
        case.result[7] = np.nan
    errors = case.errors(*asked)
    assert errors.wrong == 3 and errors.largest == np.inf and errors.of_bound > 1


def test_collectives_without_blocks_of_ranks_have_none_that_are_uneven(comm):
    with pytest.raises(ArgumentError, match="bcast has no blocks of ranks .* reduce_scatter, allgather, gather, scatter"):
        Workload(comm, "bcast", 100, np.dtype("float32"), split="one")
    with pytest.raises(ArgumentError, match="unknown split 'odd'; there are: even, one, random"):
        Workload(comm, "gather", 100, np.dtype("float32"), split="odd")


@pytest.mark.parametrize(("dtype", "op"), [("float16", "sum"), ("longdouble", "sum"), ("int8", "sum"),
                                           ("int64", "prod"), ("uint16", "bxor"),
                                           ("float64", "max"), ("int32", "land"), ("complex128", "sum")])  # fmt: skip
def test_types_and_operations(comm, dtype, op):
    words = ["native", "ring"] if dtype != "float16" else ["ring", "auto"]
    rows = compare(comm, "allreduce", list(map(Candidate, words)), 9000, np.dtype(dtype), repeats=1, op=op)
    assert not any(row["wrong"] for row in rows)


@pytest.mark.parametrize("words", [["--algorithms", "ring,auto"], ["--algorithms", "pairwise", "--compression", "int8"]])
def test_native_is_left_out_where_it_cannot_serve_the_call(capsys, tmp_path, words):
    path = tmp_path / "results.json"
    assert _bench("--dtype", "float16", "--sizes", "1K", "--repeats", "1", "--json", str(path), *words) == 0
    output = capsys.readouterr().out
    assert RANK or ("native is left out" in output and json.loads(path.read_text())["results"])


@pytest.mark.parametrize(("dtype", "op"), [("float32", "land"), ("bool", "sum"), ("complex64", "max"), ("float16", "land")])
def test_operations_that_mpi_does_not_define(comm, dtype, op):
    with pytest.raises(mpicoll.errors.BufferError, match=f"MPI does not define {op.upper()} on {dtype}"):
        compare(comm, "allreduce", [Candidate("native")], 900, np.dtype(dtype), repeats=1, op=op)
    with pytest.raises(ArgumentError, match="no candidate can serve allreduce of float16"):
        compare(comm, "allreduce", [Candidate("native")], 900, np.dtype("float16"), repeats=1)


@pytest.mark.parametrize("collective", collectives.COLLECTIVES)
def test_elements_that_are_wrong_are_counted(comm, collective):
    case = Workload(comm, collective, 5000, np.dtype("float32"))
    case.prepare(poison=True)
    holds = case.result is not None
    if collective == "bcast" and RANK == 0:
        assert case.wrong() == 0  # the root's buffer is the input
        return
    assert case.wrong() == (case.expected.size if holds else 0)
    if holds:
        case.result[...] = case.expected
        case.result[7 % case.result.size] += 1
        assert case.wrong() == 1


def test_a_collective_that_does_nothing_is_wrong_everywhere(comm, monkeypatch):
    monkeypatch.setattr(mpicoll.Communicator, "Allreduce", lambda self, *given, **named: None)
    rows = compare(comm, "allreduce", [Candidate("ring")], 4000, np.dtype("float32"), repeats=1)
    assert rows[0]["wrong"] >= 1000 * SIZE


def test_bandwidths_are_those_of_nccl_tests(comm):
    case = Workload(comm, "allreduce", 1 << 20, np.dtype("float32"))
    assert case.rates(1.0) == pytest.approx((4 * 2**20 / 1e9, 4 * 2**20 / 1e9 * 2 * (SIZE - 1) / SIZE))


def test_candidates_alternate_in_changing_order(comm):
    calls = []
    times = alternate(comm, {name: lambda name=name: calls.append(name) for name in "abc"}, 40)
    turns = {"".join(calls[start : start + 3]) for start in range(0, 120, 3)}
    assert turns == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert len(set(comm.allgather("".join(calls)))) == 1
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 40, "b": 40, "c": 40}
    everyone = comm.allgather([seconds.tolist() for seconds in times.values()])
    assert all(other == everyone[0] for other in everyone)
    repeats = comm.allgather(repeats_for(comm, {"nothing": lambda: None}, 0.001))
    assert len(set(repeats)) == 1 and 5 <= repeats[0] <= 1000


def test_environment_is_the_same_on_all_ranks(comm):
    facts = measured_on(comm)
    assert all(other == facts for other in comm.allgather(facts))
    assert facts["size"] == SIZE == sum(facts["ranks_per_node"])
    assert facts["nodes"] == len(facts["hosts"]) == len(facts["ranks_per_node"])
    assert facts["mpi"].startswith(tuple(f"{name} " for name in NAMES.values()))
    answer, how = cuda_awareness()
    assert answer in (True, False, None) and how


def test_info_says_what_there_is(monkeypatch):
    monkeypatch.setenv("MPICOLL_GPU", "staged")
    facts = info.gather(WORLD)
    text = info.describe(facts)
    assert facts["settings"]["MPICOLL_GPU"] == facts["gpu_mode"] == "staged"
    assert facts["environment"]["mpi"] in text and f"{SIZE} on" in text and "CUDA-aware" in text
    assert "device memory   staged: MPICOLL_GPU=staged\n" in text
    assert all(host["gpu_mode_because"] == "MPICOLL_GPU=staged" for host in facts["gpus"])


def test_info_warns_of_the_wrong_bcast_of_intel_mpi():
    warned = [info.wrong_bcast(*given) for given in (
        (("Intel MPI", (2021, 18, 1)), 5, {}), (("Intel MPI", (2021, 16, 0)), 6, {"I_MPI_COLL_INTRANODE": "shm"}),
        (("Intel MPI", (2021, 18, 1)), 4, {}), (("Intel MPI", (2021, 15, 0)), 6, {}), (("Intel MPI", (2021, 19, 0)), 6, {}),
        (("Intel MPI", (2021, 18, 1)), 6, {"I_MPI_COLL_INTRANODE": "pt2pt"}),
        (("Intel MPI", (2021, 18, 1)), 6, {"I_MPI_ADJUST_BCAST": "1"}), (("MPICH", (5, 0, 2)), 6, {}),
    )]  # fmt: skip
    assert [len(lines) for lines in warned] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert "I_MPI_COLL_INTRANODE=pt2pt" in warned[0][0] and "20,000 bytes" in warned[0][0]


def _bench(*arguments):
    """Exit status of the command on these ranks; the hooks it installs are taken away again."""
    hooks = sys.excepthook, threading.excepthook
    try:
        with pytest.raises(SystemExit) as ended:
            command_line(["bench", *arguments])
    finally:
        sys.excepthook, threading.excepthook = hooks
    return ended.value.code


@pytest.mark.mpi(min_size=2)
def test_the_trace_has_what_the_schedule_says(tmp_path):
    path, words = WORLD.bcast(str(tmp_path / "trace.json")), ["ring", "parameter_server", "recursive_doubling"]
    sizes = ["--sizes", "8K", "--segment-bytes", "1G", "--repeats", "1"]  # whole messages
    assert _bench("--algorithms", ",".join(words), *sizes, "--trace", path) == 0
    WORLD.Barrier()
    with open(path, encoding="utf-8") as file:
        spans = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    calls = {(span["name"].split()[1], span["pid"]): span for span in spans if span["cat"] == "call"}
    assert sorted(calls) == sorted((word, rank) for word in ["native", *words] for rank in range(SIZE))
    for (word, rank), call in calls.items():
        inside = [span for span in spans if span["pid"] == rank and span["cat"] != "call"
                  and call["ts"] <= span["ts"] <= call["ts"] + call["dur"]]  # fmt: skip
        names = [span["name"] for span in sorted(inside, key=lambda span: span["ts"])]
        messages, reductions = _scheduled(word, rank)
        assert sorted(name for name in names if "send to" in name or "receive from" in name) == sorted(messages)
        assert names.count("reduce") >= reductions and (names.count("reduce") > 0) == (reductions > 0)
        assert sum(name.startswith("wait ") for name in names) == len(messages)
        assert all(0 < span["args"]["bytes"] <= 8192 for span in inside)
        assert all(span["ts"] + span["dur"] <= call["ts"] + call["dur"] for span in inside)
    assert set(WORLD.allgather(len(spans))) == {len(spans)}


def _scheduled(word, rank):
    """The messages of a rank in an allreduce, and how often it reduces."""
    if word == "native":
        return [], 0
    algorithm = algorithms.find("allreduce", word)
    blocks = algorithm.vector_blocks(SIZE)
    operations = [op for step in rounds(algorithm.generator, rank, SIZE, blocks=blocks) for op in step]
    messages = [f"send to {op.peer}" if type(op) is Send else f"receive from {op.peer}" for op in operations
                if type(op) in (Send, Recv)]  # fmt: skip
    return messages, sum(type(op) is Reduce for op in operations)


def test_the_document(tmp_path):
    path = WORLD.bcast(str(tmp_path / "bench.json"))
    sizes = ["--sizes", "1K:4K", "--factor", "4", "--repeats", "2"]
    assert _bench("--algorithms", "ring,tree,auto", *sizes, "--json", path) == 0
    WORLD.Barrier()
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    assert document["schema"] == 1 and document["environment"]["size"] == SIZE
    assert [(row["bytes"], row["algorithm"]) for row in document["results"]] == list(
        product((1024, 4096), ("native", "ring", "tree", "auto"))
    )
    pieces = {row["algorithm"]: row["segment_bytes"] for row in document["results"]}
    assert pieces["native"] is None and pieces["tree"] > 0
    assert set(document["results"][0]) >= {"collective", "algorithm", "segment_bytes", "bytes", "count", "dtype", "op",
                                           "median_us", "min_us", "p95_us", "mean_us", "max_us",
                                           "algbw", "busbw", "wrong"}  # fmt: skip


def test_element_types():
    assert element_type("float32") == np.float32
    with pytest.raises(ArgumentError, match="element type"):
        element_type("float31")


def test_the_columns_of_osu(capsys):
    assert _bench("--algorithms", "ring,auto", "--sizes", "1K:4K", "--factor", "4", "--repeats", "2", "--format", "osu") == 0
    lines = capsys.readouterr().out.splitlines()
    if RANK:
        assert not lines
        return
    titles = [line for line in lines if line.startswith("# mpicoll bench")]
    assert [title.split(", ")[2] for title in titles] == ["native", "ring", "auto"]
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [(row[0], row[4]) for row in rows] == 3 * [("1024", "2"), ("4096", "2")]
    assert all(float(low) <= float(mean) <= float(high) for _, mean, low, high, _ in rows)
