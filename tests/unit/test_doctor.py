"""Findings of the doctor, from measurements made by hand; the model they make; the rounds of pairs."""

import json
from dataclasses import replace

import pytest

from mpicoll import cli
from mpicoll.doctor import (
    CollectiveResult, CoreResult, Measured, NodeTraffic, PairResult, RankFacts, describe, findings, fitted,
)
from mpicoll.doctor import cores, transports
from mpicoll.doctor.core_findings import busy_ranks
from mpicoll.doctor.examination import first_link
from mpicoll.doctor.finding import rate_text
from mpicoll.doctor.link_findings import slow_pairs, switch_groups
from mpicoll.doctor.pairs import MOST_ROUNDS, tournament
from mpicoll.errors import ArgumentError
from mpicoll.cli.modelfile import read_model

RATE = 12.5e6
LATENCY = 30e-6


def healthy(hosts=5, each=1, kernel="", **settings):
    """A cluster without a fault: each rank has a core of its own."""
    ranks = [RankFacts(rank, rank // each, f"n{rank // each}", kernel or f"k{rank // each}", (rank % each,), (rank % each,), 1,
                       "OMP_NUM_THREADS", settings) for rank in range(hosts * each)]  # fmt: skip
    pairs = [PairResult(source, target, LATENCY * (1 + 0.1 * (source % 2)), RATE * (1 - 0.02 * (target % 3)), 1 << 20)
             for source in range(hosts) for target in range(hosts) if source != target]  # fmt: skip
    of_cores = [CoreResult(rank.rank, 0.012 + 0.0005 * (rank.rank % 3), 0.99, (7,), 2e10, 0.02) for rank in ranks]
    traffic = [NodeTraffic(node, 10 << 20, {"eth0": 11 << 20, "lo": 0, "eth1": 500}, {"eth0": 1e9, "eth1": 1e9})
               for node in range(hosts)]  # fmt: skip
    alone = [pair for pair in pairs if {pair.source, pair.target} in ({0, 1}, {2, 3})]
    return Measured("MPICH 5.0.2", "tcp", ranks, of_cores, pairs, alone, traffic=traffic,
                    collectives=[CollectiveResult("allreduce", 1 << 20, 0.14, 0.135, "ring", 0.134)])  # fmt: skip


def with_pairs(measured, factor, late=lambda source, target: 1.0, sessions=2):
    """The cluster with each bandwidth times factor(source, target), each latency times late(…)."""
    def changed(pairs):
        return [replace(pair, bandwidth=pair.bandwidth * factor(pair.source, pair.target), sessions=sessions,
                        latency=pair.latency * late(pair.source, pair.target)) for pair in pairs]  # fmt: skip
    return replace(measured, pairs=changed(measured.pairs), alone=changed(measured.alone))


def with_rank(measured, rank, **facts):
    ranks = [replace(each, **facts) if each.rank == rank else each for each in measured.ranks]
    return replace(measured, ranks=ranks)


def with_core(measured, rank, **figures):
    of_cores = [replace(each, **figures) if each.rank == rank else each for each in measured.cores]
    return replace(measured, cores=of_cores)


def told(measured):
    """(severity, kind, nodes) of each finding."""
    return [(finding.severity, finding.kind, finding.nodes) for finding in findings(measured)]


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("each", [1, 2])
def test_nothing_is_found_in_a_healthy_cluster(hosts, each):
    assert told(healthy(hosts, each)) == []
    assert not slow_pairs(healthy(hosts, each)) and not busy_ranks(healthy(hosts, each))


@pytest.mark.parametrize("hosts", [3, 4, 5, 9])
def test_a_host_at_a_tenth_of_the_rate(hosts):
    slow = with_pairs(healthy(hosts), lambda source, target: 0.1 if 1 in (source, target) else 1)
    assert told(slow) == [("slow", "node-slow", (1,))]
    (finding,) = findings(slow)
    assert "n1 sends and receives at" in finding.seen and "n1 (rank 1)" == finding.where and "10.2 times" in finding.costs
    assert all(1 in pair for pair in slow_pairs(slow)) and len(slow_pairs(slow)) == 3


@pytest.mark.parametrize("hosts", [3, 4, 5, 9])
def test_one_that_only_sends_slowly(hosts):
    slow = with_pairs(healthy(hosts), lambda source, target: 0.1 if source == 2 else 1)
    assert told(slow) == [("slow", "node-slow-one-way", (2,))]
    assert "n2 sends at" in findings(slow)[0].seen and "receives as fast as others" in findings(slow)[0].seen


def test_with_two_nodes_nobody_knows_whose_fault_it_is():
    slow = with_pairs(healthy(2), lambda source, target: 0.1 if source == 0 else 1)
    assert told(slow) == [("slow", "link-slow-one-way", (0, 1))]


def test_one_link_is_a_fault_only_if_it_was_slow_again():
    slow = with_pairs(healthy(5), lambda source, target: 0.3 if (source, target) == (3, 1) else 1)
    assert told(slow) == [("slow", "link-slow-one-way", (3, 1))] and slow_pairs(slow) == [(3, 1)]
    assert told(with_pairs(slow, lambda source, target: 1, sessions=1)) == []
    better = replace(slow, alone=[*slow.alone, replace(slow.pairs[0], source=3, target=1)])
    assert told(better) == []


def test_switches_are_levels_and_no_fault():
    two = with_pairs(healthy(6), lambda source, target: 1 if source // 3 == target // 3 else 0.4)
    assert told(two) == [("note", "levels", (0, 1, 2, 3, 4, 5))]
    assert switch_groups(two.best_pairs().values(), 6) == [[0, 1, 2], [3, 4, 5]]
    model = fitted(two)
    assert [(level.name, level.group) for level in model.levels] == [("switch", 3)] and model.bandwidth < 0.5 * RATE


def test_a_late_node_and_what_one_machine_has_in_their_place():
    late = with_pairs(healthy(5), lambda *pair: 1, lambda *pair: 20 if 4 in pair else 1)
    assert told(late) == [("slow", "node-late", (4,))] and all(4 in pair for pair in slow_pairs(late))
    one = replace(late, ranks=healthy(5, kernel="same").ranks)
    assert told(one) == [("note", "one-kernel", ())]


def test_other_bytes_on_arrival():
    bad = healthy(4)
    bad = replace(bad, pairs=[replace(bad.pairs[0], wrong=1), *bad.pairs[1:]])
    assert told(bad) == [("wrong", "data-corrupted", (0, 1))]


def test_two_ranks_on_one_core():
    both = with_rank(healthy(3, 2), 3, processors=(0,), cores=(0,))
    (finding,) = findings(both)
    assert (finding.kind, finding.nodes, finding.ranks) == ("core-shared", (1,), (2, 3))
    assert "2 ranks of n1 may only run on processor 0" in finding.seen and "--cpu-bind" in finding.remedy


def test_more_ranks_than_cores_without_binding():
    crowded = healthy(1, 3)
    for rank in range(3):
        crowded = with_rank(crowded, rank, processors=(0, 1), cores=(0, 1))
    (finding,) = findings(crowded)
    assert finding.kind == "core-shared" and finding.remedy.startswith("start fewer ranks")


@pytest.mark.parametrize(("variable", "severity"), [("OMP_NUM_THREADS", "slow"), ("", "note")])
def test_threads_for_which_there_are_no_cores(variable, severity):
    assert told(with_rank(healthy(3), 1, threads=8, threads_by=variable)) == [(severity, "threads", (1,))]


def test_a_core_that_computes_something_else():
    busy = with_core(healthy(4), 2, share=0.5, busy=1.0, other="burn (pid 7)")
    assert told(busy) == [("slow", "core-busy", (2,))] and busy_ranks(busy) == [2]
    assert "burn (pid 7)" in findings(busy)[0].seen
    assert told(with_core(healthy(4), 2, digests=(7, 8))) == [("wrong", "core-wrong", (2,))]


def test_a_busy_machine_is_no_fault_of_its_virtual_hosts():
    busy = healthy(4, kernel="same")
    for rank in range(4):
        busy = with_core(busy, rank, share=0.3, busy=1.0)
    assert {kind for _, kind, _ in told(busy)} == {"machine-busy", "one-kernel"}
    assert told(with_core(busy, 1, other="burn (pid 7)"))[0] == ("slow", "core-busy", (1,))


def test_unbound_ranks_of_one_machine_share_what_the_luckiest_gets():
    noisy = healthy(4, kernel="same")
    for rank in range(4):
        noisy = with_rank(noisy, rank, processors=(0, 1), cores=(0, 1))
    noisy = with_core(noisy, 2, share=0.4, busy=0.8)
    assert told(noisy) == [("note", "one-kernel", ())]
    bound = with_rank(noisy, 2, processors=(0,), cores=(0,))
    assert told(bound) == [("slow", "core-busy", (2,)), ("note", "one-kernel", ())]


def test_slow_cores_and_slow_memory():
    assert told(with_core(healthy(4), 1, seconds=0.03)) == [("slow", "core-slow", (1,))]
    assert told(with_core(healthy(4), 1, memory=4e9)) == [("slow", "memory-slow", (1,))]


def test_interfaces():
    other = healthy(3)
    odd = replace(other.traffic[1], carried={"eth0": 9, "eth1": 11 << 20})
    assert told(replace(other, traffic=[other.traffic[0], odd, other.traffic[2]])) == [("slow", "interface", (1,))]
    fast = [replace(traffic, speeds={"eth0": 1e9, "mlx5_0": 1e11}) for traffic in other.traffic]
    assert told(replace(other, traffic=fast)) == [("slow", "interface-slow", (0, 1, 2))]


def test_settings():
    odd = with_rank(healthy(3, FI_TCP_IFACE="eth0"), 2, settings={"FI_TCP_IFACE": "eth1"})
    assert told(odd) == [("slow", "settings-differ", (2,))]
    assert "FI_TCP_IFACE is eth1 on 1 rank, and eth0" in findings(odd)[0].seen
    assert told(healthy(3, OMPI_MCA_mpi_yield_when_idle="1"))[0][1] == "yields"
    assert told(healthy(3, OMPI_MCA_btl_tcp_eager_limit="80"))[0][1] == "eager-limit"


def test_connections_that_begin_slowly_again():
    def resting(measured):
        return replace(measured, ranks=[replace(facts, slow_restarts=True) for facts in measured.ranks])

    (finding,) = findings(resting(healthy(3)))
    assert (finding.severity, finding.kind, finding.where) == ("note", "slow-restart", "all nodes")
    assert "sysctl -w net.ipv4.tcp_slow_start_after_idle=0" in finding.remedy
    assert told(replace(resting(healthy(3)), transport="ucx")) == [] == told(resting(healthy(1, each=2)))
    assert told(healthy(3)) == []
    (finding,) = findings(with_rank(healthy(3), 1, slow_restarts=True))
    assert (finding.severity, finding.kind, finding.where) == ("note", "slow-restart", "n1")
    assert "as root on these nodes" in finding.remedy
    assert not transports.chosen({})


def test_what_auto_would_gain():
    slow = replace(healthy(3), collectives=[CollectiveResult("allreduce", 1 << 20, 0.31, 0.102, "ring", 0.1)])
    (finding,) = findings(slow)
    assert finding.severity == "note"
    assert finding.seen == "MPI_Allreduce of 1M takes 3.10 times what the links allow; mpicoll takes 1.02"


def test_a_page_and_a_document():
    slow = with_pairs(healthy(5), lambda source, target: 0.1 if 1 in (source, target) else 1)
    page = describe(slow, findings(slow))
    assert [heading for heading, _ in page][-2:] == ["slow", "result"] and page[-1][1] == "1 finding to act on"
    assert json.loads(json.dumps(slow.as_json()))["pairs"][0]["nbytes"] == 1 << 20
    assert describe(healthy(1), [])[-1] == ("result", "nothing slow or wrong was found")


@pytest.mark.parametrize("count", range(1, 12))
def test_a_tournament_meets_each_pair_once(count):
    rounds = tournament(count)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [(first, second) for first in range(count) for second in range(first + 1, count)]
    for pairs in rounds:
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes))


def test_many_nodes_play_a_sample_of_the_rounds():
    rounds = tournament(500)
    assert len(rounds) == MOST_ROUNDS and all(len(pairs) == 250 for pairs in rounds)


@pytest.mark.parametrize("hosts, each", [(1, 1), (1, 2), (2, 2), (5, 1)])
def test_the_first_link_is_one_that_was_measured(hosts, each):
    measured = healthy(hosts, each)
    inside = PairResult(0, 1, 1e-6, 5e9, 1 << 20)
    assert first_link(replace(measured, inside=[inside] * (each > 1))) == (
        (0, each, measured.best_pairs()[0, 1].bandwidth) if hosts > 1 else (0, 1, 5e9) if each > 1 else None)  # fmt: skip


def test_the_first_link_on_nodes_too_many_to_measure_all():
    """Of more than 64 nodes a sample of the rounds is played, in which the first two may not meet."""
    measured = healthy(5)
    some = [pair for pair in measured.pairs if {pair.source, pair.target} != {0, 1}]
    source, target, _ = first_link(replace(measured, pairs=some, alone=[]))
    assert {source, target} != {0, 1}


def test_the_model_is_read_by_simulate_and_tells_of_other_files(tmp_path, capsys):
    measured = replace(healthy(5, 2), inside=[PairResult(0, 1, 1e-6, 5e9, 1 << 20)], eager=61440)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(fitted(measured).as_json()))
    model = read_model(str(path))
    assert model == fitted(measured)
    network = model.network(64)
    assert network.levels[0].group == 2 and network.levels[0].bandwidth == 5e9
    assert network.bandwidth == pytest.approx(RATE, rel=0.05)
    assert model.network(64, 1).levels == () and network.eager == 61440
    path.with_name("older.json").write_text(path.read_text().replace('"eager": 61440', '"more": 0'))
    assert read_model(str(path.with_name("older.json"))) == replace(model, eager=0)
    for text, message in (("{}", "not a model"), ('{"kind": 1}', "not a model"), ("[" * 100_000, "nested too deeply"),
                          (path.read_text().replace('"contention": 1.0', '"contention": -1'), "contention -1"),
                          (path.read_text().replace('"eager": 61440', '"eager": -1'), "eager -1"),
                          (path.read_text().replace('"eager": 61440', '"eager": Infinity'), "infinity"),
                          (path.read_text().replace('"group": 2', '"group": Infinity'), "infinity")):  # fmt: skip
        path.with_name("other.json").write_text(text)
        with pytest.raises(ArgumentError, match=message):
            read_model(str(path.with_name("other.json")))
    with pytest.raises(SystemExit) as end:
        cli.main(["simulate", "allreduce", "--size", "12", "--bytes", "1M", "--algorithms", "ring", "--network", str(path)])
    # the node's link carries 2 * 5/6 of the vector
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert not end.value.code and line[1] == "ring" and 120 < float(line[2].removesuffix("ms")) < 170


def test_tune_on_a_model(tmp_path, capsys):
    path, table = tmp_path / "model.json", tmp_path / "table.json"
    path.write_text(json.dumps(fitted(healthy(5)).as_json()))
    with pytest.raises(SystemExit) as end:
        cli.main(["tune", "--network", str(path), "--ranks", "4,12", "--collectives", "allreduce", "--sizes", "1K,1M",
                  "--output", str(table)])  # fmt: skip
    assert not end.value.code, capsys.readouterr().err
    entries = json.loads(table.read_text())["entries"]
    assert [(entry["ranks"], entry["nodes"]) for entry in entries] == [(4, 4), (12, 12)] and entries[0]["mpi"] == "MPICH 5.0.2"
    assert entries[0]["rules"][0] == {"from": "0", "algorithm": "native"} and entries[0]["rules"][-1]["algorithm"] != "native"
    # over TCP messages have the pieces that calls have there
    assert [entry["rules"][-1]["segment_bytes"] for entry in entries] == [60000, 60000]


def test_what_the_system_does_not_tell_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "Path", lambda name: tmp_path / "missing")
    assert cores.cores_of([0, 1]) == (0, 1) and cores._times() == {} and cores._processes() == {}
    monkeypatch.setattr(transports, "Path", lambda name: tmp_path / "missing")
    assert transports.kernel() == "" and set(transports.counters()) <= {"mlx5_0"}


def test_the_fixed_computation_has_one_result():
    assert cores.compute() == cores.compute() == 3941899462


def test_rates():
    assert [rate_text(rate) for rate in (125, 125e3, 11.97e6, 1.25e9)] == ["1 kb/s", "1 Mb/s", "95.8 Mb/s", "10 Gb/s"]


def test_one_rank_makes_no_model(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", "--output", "model.json"])
    assert end.value.code == 2 and "a model needs two ranks or more" in capsys.readouterr().err
