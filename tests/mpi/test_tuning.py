"""Tables, the probe, nodes, and ranks that must agree: on any number of ranks."""

import json
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import engine, select
from mpicoll.bench import tuning as tune
from mpicoll.bench.compare import Candidate, compare
from mpicoll.cli import main as command_line
from mpicoll.communicator import communicator
from mpicoll.execute.context import Context
from mpicoll.select import probe, table
from mpicoll.support import settings
from mpicoll.transport import topology
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = pytest.mark.mpi


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """A function that sets a variable for this process as if it had been started so, and gives a fresh communicator."""
    handles = []

    def forget():
        for cached in (table.user, table.problem, select.environment_rules, communicator._warn_once):
            cached.cache_clear()

    def configure(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        forget()
        handles.append(MPI.Intracomm(WORLD).Create_group(WORLD.Get_group()))  # has no context: the ranks look at each other
        return mpicoll.Communicator(handles[-1])

    yield configure
    for handle in handles:
        handle.Free()
    monkeypatch.undo()
    forget()


def shared(tmp_path, text):
    """A file with this text that all ranks can read."""
    path = WORLD.bcast(tmp_path / "table.json")
    if RANK == 0:
        path.write_text(text, encoding="utf-8")
    WORLD.Barrier()
    return path


def written(rules, mpi=None, **more):
    """The text of a table with one entry for allreduce here."""
    here = {"mpi": mpi or topology.library(), "transport": "shared memory", "ranks": SIZE, "nodes": 1}
    return json.dumps({"schema": 1, "entries": [{**here, "collective": "allreduce", "rules": rules, **more}]})


def test_a_table_decides(configured, tmp_path):
    rules = [{"from": "0", "algorithm": "native"}, {"from": "1K", "algorithm": "pairwise"},
             {"from": "4K", "algorithm": "ring", "segment_bytes": "1K"}]  # fmt: skip
    comm = configured(MPICOLL_TUNING_FILE=shared(tmp_path, written(rules)))
    said = [comm.explain("allreduce", np.zeros(nbytes // 8)) for nbytes in (512, 1024, 2048, 1 << 20)]
    if SIZE > 1:
        assert [(one.algorithm, one.segment_bytes) for one in said] == [
            ("native", None), ("pairwise", None), ("pairwise", None), ("ring", 1024)]  # fmt: skip
        assert "table.json, from 4K bytes" in said[-1].reason
    data = np.full(1 << 17, RANK + 1.0)
    comm.Allreduce(MPI.IN_PLACE, data)
    assert (data == SIZE * (SIZE + 1) / 2).all() and (comm.sent[0] > 0) == (SIZE > 1)


def test_the_environment_is_stronger_and_what_cannot_serve_is_passed_over(configured, tmp_path):
    path = shared(tmp_path, written([{"from": "0", "algorithm": "ring"}]))
    comm = configured(MPICOLL_TUNING_FILE=path, MPICOLL_ALGORITHM="allreduce:1M-inf:circulant")
    assert comm.explain("allreduce", np.zeros(1 << 17)).algorithm == "circulant"
    op = MPI.Op.Create(lambda a, b, _: None, False)
    said = comm.explain("allreduce", np.zeros(64), op=op)
    assert said.algorithm == "native" and (SIZE == 1 or "cannot serve it" in said.reason)
    op.Free()


BAD = {
    "not json": "it is not JSON",
    '{"schema": 7}': "its schema is 7",
    "[]": "its schema is None",
    '{"schema": 1, "entries": [{}]}': "lacks or misuses a field",
    "other": "it is for Another MPI",
}


@pytest.mark.parametrize("text", BAD)
def test_a_table_that_cannot_be_used_is_one_warning_on_rank_0(configured, tmp_path, text):
    content = written([{"from": "0", "algorithm": "ring"}], mpi="Another MPI 1.0") if text == "other" else text
    path = shared(tmp_path, content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        comm = configured(MPICOLL_TUNING_FILE=path)
        mpicoll.Communicator(comm)
    messages = [str(one.message) for one in caught if "MPICOLL_TUNING_FILE" in str(one.message)]
    assert len(messages) == (RANK == 0)
    assert not messages or (BAD[text] in messages[0] and str(path) in messages[0])
    assert comm.explain("allreduce", np.zeros(8)).algorithm == "native"


def test_a_table_that_is_not_there(configured, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        configured(MPICOLL_TUNING_FILE=WORLD.bcast(tmp_path / "missing.json"))
    assert len([one for one in caught if "No such file" in str(one.message)]) == (RANK == 0)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", [settings.ALGORITHM, settings.TUNING_FILE, settings.PROBE])
def test_ranks_that_disagree_are_told_so_on_all_ranks(configured, tmp_path, name):
    path = shared(tmp_path, written([{"from": "0", "algorithm": "ring"}]))
    values = {settings.ALGORITHM: ("allreduce:ring", "allreduce:circulant"), settings.PROBE: ("0", "1"),
              settings.TUNING_FILE: (path.with_name("missing"), path)}[name]  # fmt: skip
    with pytest.raises(mpicoll.ArgumentError, match=f"ranks disagree about {name}: rank.*; rank {SIZE - 1}: "):
        configured(**{name: values[RANK == SIZE - 1]})


def test_bad_switch(configured):
    with pytest.raises(mpicoll.ArgumentError, match="MPICOLL_VERBOSE=perhaps: expected 0 or 1"):
        configured(MPICOLL_VERBOSE="perhaps")


def test_verbose_says_once_what_ran_and_why(configured, capfd):
    comm, data = configured(MPICOLL_VERBOSE="1"), np.ones(1 << 17)
    for _ in range(3):
        comm.Allreduce(MPI.IN_PLACE, data)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mpicoll: Allreduce of 1M bytes")]
    served = {line.split(": ")[2] for line in lines}
    in_c = engine.has_doors() and SIZE > 1  # from the second call on
    assert len(lines) == len(served) == (0 if RANK else 2 if in_c else 1)


# ---- the probe


@pytest.fixture
def unknown(configured):
    """A function that gives a fresh communicator whose network no table knows, and its context."""

    def make(**variables):
        comm = configured(**variables)
        context = Context.of(comm)
        context.topology = context.topology._replace(nodes=tuple(range(SIZE)), fabric="a network nobody knows")
        return comm, context

    return make


def probed(context, collective="allreduce"):
    """The decades that were probed."""
    return sorted(key[1] for key in context.measured if key[0] == collective)


@pytest.mark.mpi(min_size=2)
def test_an_unknown_transport_is_probed_once_and_alike_on_all_ranks(unknown, monkeypatch):
    monkeypatch.setattr(probe, "HOPELESS", float("inf"))  # on a busy machine the first calls may take any time
    comm, context = unknown(MPICOLL_PROBE="1000")
    assert comm.explain("allreduce", np.zeros(1 << 15)).predicted_seconds is None  # asking measures nothing
    assert not context.measured
    data = np.full(1 << 13, RANK + 1.0)
    comm.Allreduce(MPI.IN_PLACE, data)
    assert (data == SIZE * (SIZE + 1) / 2).all()
    found = context.measured["allreduce", 0]
    assert WORLD.allgather(found) == [found] * SIZE and found.nbytes == probe.size_of(0) == 64 << 10
    assert ("native", None) in found.seconds and len(found.seconds) > 1
    comm.Allreduce(MPI.IN_PLACE, np.ones(1 << 14))
    assert context.measured["allreduce", 0] is found and Context.of(comm.Dup()).measured == context.measured
    said = comm.explain("allreduce", np.zeros(1 << 14), algorithm="ring")
    assert said.predicted_seconds > 0 and "predicted" in str(said)
    assert "probed at 64K bytes: " in comm.explain("allreduce", np.zeros(1 << 14)).reason


@pytest.mark.mpi(min_size=2)
def test_each_decade_of_sizes_is_probed_by_its_first_call(unknown):
    comm, context = unknown(MPICOLL_PROBE="1000")
    comm.Allreduce(MPI.IN_PLACE, np.ones(1 << 13))
    assert probed(context) == [0]
    assert "until a call of 160K or more has probed" in comm.explain("allreduce", np.zeros(1 << 16)).reason
    comm.Allreduce(MPI.IN_PLACE, np.ones(1 << 16))
    assert probed(context) == [0, 1] and context.measured["allreduce", 1].nbytes == 640 << 10
    assert "probed at 640K bytes: " in comm.explain("allreduce", np.zeros(1 << 16)).reason
    comm.Bcast(np.ones(1 << 13))
    comm.Reduce(np.ones(1 << 13), np.ones(1 << 13) if RANK == 0 else None)
    assert probed(context, "bcast") == probed(context, "reduce") == [0]


@pytest.mark.mpi(min_size=2)
def test_a_probe_that_would_take_too_long_is_not_made(unknown):
    """Large calls are served as the largest that can be probed; where there is none, `explain` says what a call takes."""
    comm, context = unknown()
    context.measured["link"] = probe.Link(1e-6, 10e6, 0.0)  # 64K takes 7 ms or more, 640K 66
    comm.Allreduce(MPI.IN_PLACE, np.ones(1 << 20))
    assert context.measured["allreduce", 2].nbytes == probe.size_of(1)
    comm, context = unknown()
    context.measured["link"] = probe.Link(1.0, 1e9, 0.0)
    comm.Allreduce(MPI.IN_PLACE, np.ones(1 << 20))
    said = comm.explain("allreduce", np.ones(1 << 20))
    assert said.algorithm == "native" and "too slow to probe, a call of 64K takes" in said.reason


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("limit", ["0", "off"])
def test_no_probe_where_it_is_off(unknown, limit):
    comm, context = unknown(MPICOLL_PROBE=limit)
    comm.Allreduce(MPI.IN_PLACE, np.ones(1 << 15))
    assert not context.measured and comm.sent == (0, 0)


def test_bad_limit_of_a_probe(configured):
    with pytest.raises(mpicoll.ArgumentError, match="MPICOLL_PROBE=-1: expected seconds"):
        configured(MPICOLL_PROBE="-1")


def test_a_probe_takes_what_is_clearly_faster():
    times = {("native", None): 2e-3, ("ring", None): 1.9e-3, ("ring", 60_000): 1e-3, ("circulant", None): 3e-3}
    found = probe.Probe(1 << 20, times).choice()
    assert (found.name, found.segment_bytes) == ("ring", 60_000)
    assert "probed at 1M bytes: ring in pieces of 60000 2.00 x, ring 1.05 x, native 1.00 x" in found.reason
    assert probe.Probe(1 << 20, {**times, ("ring", 60_000): 1.8e-3}).choice().name == "native"


def test_what_a_probe_tries():
    topology = topology_of(range(7))
    fast, slow = (probe.Link(alpha, 60e6, 1e-10) for alpha in (5e-6, 5e-3))
    query = select.Query("allreduce", topology, 1 << 20)
    tried = probe.candidates(query, fast, probe.size_of(1))
    assert tried[0] == ("circulant", None) and {("ring", None), ("ring", 60_000)} < set(tried)
    words = [algorithm for algorithm, _ in probe.candidates(query, slow, probe.size_of(0))]
    assert {"recursive_doubling", "tree"} < set(words) and "ring" not in words
    several = query._replace(topology=topology_of([0, 0, 1, 1]))
    assert probe.candidates(several, fast, probe.size_of(0))[0] == ("hierarchical", None)


def topology_of(nodes):
    return topology.Topology(tuple(nodes), "a network nobody knows", topology.library())


# ---- nodes


def test_nodes_are_inherited_by_parts_of_a_communicator(comm):
    context = Context.of(comm)
    context.topology = context.topology._replace(nodes=tuple(rank // 2 for rank in range(SIZE)))
    reverse = comm.Split(0, -RANK)
    assert Context.of(reverse).topology.nodes == topology._numbered([rank // 2 for rank in reversed(range(SIZE))])
    odd = comm.Split(RANK % 2, RANK)
    assert Context.of(odd).topology.node_count == odd.Get_size()
    assert Context.of(comm.Dup()).topology == context.topology
    assert Context.of(comm.Create_group(comm.Get_group())).topology == context.topology


def test_ranks_of_one_machine_are_one_node():
    found = Context.of(mpicoll.Communicator(WORLD)).topology
    assert found.nodes == (0,) * SIZE and found.transport == "shared memory"


# ---- tuning


def test_hopeless_candidates_are_measured_once(comm):
    slow = Candidate("slow", make=lambda case: lambda: [case.comm.Barrier() for _ in range(3000)])
    rows = compare(comm, "allreduce", [Candidate("native"), slow], 64, np.dtype("f4"), repeats=7, hopeless=2)
    assert rows[0]["repeats"] == 7 and (rows[1]["repeats"] == 2 or SIZE == 1)


def test_tune_writes_a_table_that_selection_reads(configured, tmp_path, capsys):
    path = WORLD.bcast(tmp_path / "tuned.json")
    with pytest.raises(SystemExit) as ended:
        command_line(["tune", "--output", str(path), "--sizes", "1K,64K", "--segments", "1K,4K", "--min-time", "0.1",
                      "--collectives", "allreduce,bcast"])  # fmt: skip
    assert not ended.value.code
    WORLD.Barrier()
    found = table.parse(path.read_text(encoding="utf-8"), "tuned")
    assert [entry.collective for entry in found.entries] == ["allreduce", "bcast"]
    here = Context.of(mpicoll.Communicator(WORLD)).topology
    assert all(entry.fits(entry.collective, here) for entry in found.entries)
    link = found.links.get((here.library, here.transport))
    assert link is None or link[1] > 0  # too short to tell, or a bandwidth
    assert RANK or "[1/4] allreduce 1K: " in capsys.readouterr().out
    comm = configured(MPICOLL_TUNING_FILE=path)
    (rule,) = found.rules("allreduce", here, 1 << 16)
    said = comm.explain("allreduce", np.zeros(1 << 13))
    assert SIZE == 1 or (said.algorithm == rule.algorithm and "tuned.json" in said.reason)
    assert said.predicted_seconds is None or said.predicted_seconds >= 0


def test_a_barrier_is_tuned_at_its_one_size(comm):
    (entry,), _ = tune.tune(comm, ["barrier"], [1 << 10, 1 << 12], [], np.dtype("f4"), 0.01)
    (rule,) = entry["rules"]
    assert rule["from"] == "0"


SLIPS = {
    "a rule has no field 'form'.*did you mean from": '"rules": [{"form": "64K", "algorithm": "ring"}]',
    "no field 'segment_byte'": '"rules": [{"from": "0", "algorithm": "ring", "segment_byte": "64K"}]',
    "whole number of bytes": '"rules": [{"from": 0.5, "algorithm": "ring"}]',
    "size above 0 for segment_bytes": '"rules": [{"from": "0", "algorithm": "ring", "segment_bytes": 0}]',
    "true or false for typed, got 'true'": '"rules": [], "typed": "true"',
    "an entry has no field 'type'": '"rules": [], "type": true',
    "1 or more ranks and nodes": '"rules": [], "nodes": 0',
}


@pytest.mark.parametrize(("message", "fields"), SLIPS.items(), ids=list(SLIPS))
def test_slips_in_a_table_are_not_taken_for_something_else(message, fields):
    place = '"mpi": "MPICH", "transport": "any", "ranks": "any", "nodes": "any", "collective": "allreduce"'
    with pytest.raises(mpicoll.ArgumentError, match=message):
        table.parse(f'{{"schema": 1, "entries": [{{{place}, {fields}}}]}}', "slips")


def test_no_figure_of_a_link_is_negative():
    link = '{"mpi": "MPICH", "transport": "any", "alpha": -1, "bandwidth": 5, "gamma": 0}'
    with pytest.raises(mpicoll.ArgumentError, match="below 0"):
        table.parse(f'{{"schema": 1, "entries": [], "links": [{link}]}}', "slips")


@pytest.mark.parametrize("range_", ["64k-8k", "1k-1k", "8k-0"])
def test_an_empty_range_in_the_environment_is_an_error(range_):
    with pytest.raises(mpicoll.ArgumentError, match="no size is from"):
        select.choice.parse_rules(f"allreduce:{range_}:ring")


def test_a_new_entry_comes_before_what_was_there(tmp_path):
    entry = {"mpi": "An MPI", "transport": "tcp", "ranks": "any", "nodes": "any", "collective": "allreduce",
             "rules": [{"from": "0", "algorithm": "ring"}]}  # fmt: skip
    path = tmp_path / "table.json"
    path.touch()  # as mktemp leaves it
    table.write(path, {}, [entry], None)
    link = {"mpi": "An MPI", "transport": "tcp", "alpha": 1, "bandwidth": 1, "gamma": 0}
    table.write(path, {}, [{**entry, "ranks": 4}], link)
    found = table.parse(path.read_text(), "it")
    assert [one.ranks for one in found.entries] == [4, "any"] and found.links
    place = topology.Topology((0, 1, 2, 3), "tcp", "An MPI 5")
    assert found.knows(place) and len(found.rules("allreduce", place, 8)) == 2


@pytest.mark.parametrize(("size", "word"), [(8, "recursive_doubling"), (7, "tree")])
def test_small_calls_that_are_bound_each_time_are_left_to_mpi(monkeypatch, size, word):
    monkeypatch.setattr(table, "user", lambda: (None, ""))
    place = topology.Topology(tuple(range(size)), "tcp", "MPICH 5.0.2")
    for nbytes, repeated, once in ((8, "native", "native"), (4096, word, "native"), (16 << 10, "native", "native")):
        request = select.Query("allreduce", place, nbytes)
        assert (select.choose(request).name, select.choose(request._replace(once=True)).name) == (repeated, once)
    large = select.Query("allreduce", place, 1 << 24, once=True)
    assert select.choose(large).name == "ring"


@pytest.mark.parametrize("pieces", [-1, "1M", 1.5])
def test_bad_pieces(comm, pieces):
    with pytest.raises(mpicoll.ArgumentError, match="segment_bytes=.*expected a number of bytes, or 0"):
        comm.Allreduce(MPI.IN_PLACE, np.ones(8), algorithm="ring", segment_bytes=pieces)


@pytest.mark.mpi(min_size=2)
def test_whole_messages_on_request(comm):
    for collective, word in (("allreduce", "ring"), ("bcast", "pipeline")):
        whole = comm.explain(collective, np.zeros(1 << 17), algorithm=word, segment_bytes=0)
        assert whole.segment_bytes is None
    assert comm.explain("allreduce", np.zeros(SIZE * 1000), algorithm="ring", segment_bytes=0).messages == 2 * (SIZE - 1)


def test_winner_prefers_mpi_and_then_what_serves_the_size_before():
    def row(word, median, segment=None):
        return {"algorithm": word, "segment_bytes": segment, "median_us": median}

    rows = [row("native", 102), row("ring", 100, 4096), row("circulant", 101)]
    assert tune.winner(rows, ("circulant", None)) == ("native", None)
    assert tune.winner(rows[1:], ("circulant", None)) == ("circulant", None)
    assert tune.winner(rows[1:], ("native", None)) == ("ring", 4096)


def test_fit_finds_the_figures_that_made_the_times():
    alpha, bandwidth, gamma = 2e-5, 1e9, 1e-10
    rows = []
    for word in ("ring", "circulant", "recursive_doubling", "parameter_server"):
        for nbytes in (1 << 10, 1 << 16, 1 << 22):
            seconds = probe.Link(alpha, bandwidth, gamma).seconds("allreduce", word, 7, nbytes)
            rows.append({"collective": "allreduce", "algorithm": word, "segment_bytes": None, "bytes": nbytes,
                         "median_us": seconds * 1e6})  # fmt: skip
    place = topology.Topology(tuple(range(7)), "tcp", "An MPI 1")
    found = tune.fit(place, rows)
    assert [found[name] for name in ("alpha", "bandwidth", "gamma")] == pytest.approx([alpha, bandwidth, gamma], rel=1e-6)


# ---- from how many bytes codes save time


def test_a_table_says_from_how_many_bytes_calls_are_compressed(configured, tmp_path):
    place = topology.Topology((0, 1, 2), "tcp", "An MPI 5")
    lows = {"int8": "1M", "int4": "inf"}
    anywhere = {"mpi": "An MPI", "transport": "tcp", "ranks": "any", "nodes": "any"}
    text = written([{"from": "0", "algorithm": "ring"}], **anywhere, compressed_from=lows)
    configured(MPICOLL_TUNING_FILE=shared(tmp_path, text))

    def chosen(nbytes, compression, where=place):
        return select.choose(select.Query("allreduce", where, nbytes, compression=compression, unfit="MPI sends elements"))

    assert [chosen(nbytes, "int8").compressed for nbytes in ((1 << 20) - 4, 1 << 20, 1 << 24)] == [False, True, True]
    assert "not compressed: below 1M bytes that takes no less time" in chosen(1 << 16, "int8").reason
    assert not chosen(1 << 26, "int4").compressed and "not compressed: here that takes no" in chosen(1 << 26, "int4").reason
    # what no table says
    assert [chosen(nbytes, "float16").compressed for nbytes in (1 << 15, 1 << 16)] == [False, True]
    elsewhere = topology.Topology((0, 1, 2), "tcp", "Another MPI 1")
    assert [chosen(nbytes, "int8", elsewhere).compressed for nbytes in (1 << 15, 1 << 16)] == [False, True]
    with pytest.raises(mpicoll.ArgumentError, match="compression: expected None, .* got 'int9'"):
        table.parse(written([], compressed_from={"int9": "1M"}), "mine")


@pytest.mark.mpi(min_size=2)
def test_compressed_calls_are_compared_with_the_fastest_exact_one(configured, monkeypatch):
    comm = configured()
    seconds = {}

    def compared(comm, collective, candidates, nbytes, dtype, **options):
        return [
            {"algorithm": one.algorithm, "compression": one.compression, "bytes": nbytes, "wrong": 0,
             "median_us": seconds[nbytes, one.compression]} for one in candidates
        ]  # fmt: skip

    exact = [{"bytes": nbytes, "algorithm": word, "segment_bytes": None, "median_us": us, "wrong": 0}
             for nbytes in (1024, 2048, 4096) for word, us in (("native", 20.0), ("ring", 10.0))]  # fmt: skip
    for nbytes, int8, int4 in ((1024, 5.0, 5.0), (2048, 9.0, 11.0), (4096, 5.0, 9.9)):
        seconds |= {(nbytes, ""): 10.0, (nbytes, "int8"): int8, (nbytes, "int4"): int4}
    monkeypatch.setattr(tune, "compare", compared)
    found = tune.compressed_from(comm, "allreduce", ["int8", "int4"], exact, np.dtype("f4"), 0.01)
    assert found == {"int8": "1K", "int4": "inf"}  # int4: at the largest size less than 3 % faster
    seconds[2048, "int8"] = 11.0
    assert tune.compressed_from(comm, "allreduce", ["int8"], exact, np.dtype("f4"), 0.01) == {"int8": "4K"}
    assert tune.compressed_from(comm, "alltoall", ["int8"], exact, np.dtype("f4"), 0.01) == {}


@pytest.mark.mpi(min_size=2)
def test_tuning_measures_compressed_calls(configured):
    rows = compare(comm := configured(), "allreduce", [Candidate("ring")], 1 << 16, np.dtype("f4"), repeats=1)
    found = tune.compressed_from(comm, "allreduce", ["int8"], rows, np.dtype("f4"), 0.01)
    assert found in ({"int8": "64K"}, {"int8": "inf"}) and len(set(WORLD.allgather(str(found)))) == 1
