"""The command `mpicoll simulate`: its table, its files, and what it refuses."""

import json
import subprocess
import sys

import pytest

from mpicoll import algorithms, cli
from mpicoll.collectives import COLLECTIVES
from mpicoll.simulate.costs import closed_form
from mpicoll.support.units import format_seconds
from tests.support.launching import ROOT, environment


@pytest.fixture
def simulate(capsys, registry):
    """Run the command; its exit status, lines of output that are no notes, and error output."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(["simulate", *map(str, arguments)])
        output = capsys.readouterr()
        return end.value.code or 0, [line.split() for line in output.out.splitlines() if line[0] != "#"], output.err

    return run


def test_the_table(simulate):
    options = "--size", 8, "--bytes", "8000,16000", "--alpha", "5us", "--bandwidth", "8Gb/s", "--gamma", "1ns"
    status, lines, error = simulate("allreduce", "--algorithms", "ring, circulant", *options)
    assert (status, error) == (0, "")
    assert lines[0] == "bytes algorithm time busbw GB/s rounds x bound exact".split()
    # 14 rounds of 5 us, 14 blocks of 1 us, 7 additions of 1 us; the bound: three rounds
    assert lines[1] == "8000 ring 91.0us 0.154 14 6.07 clocks".split()
    assert [line[:2] for line in lines[1:]] == [[size, word] for size in ("8000", "16000") for word in ("ring", "circulant")]


def test_every_algorithm_of_every_collective(simulate):
    for collective in COLLECTIVES:
        for options in ([], ["--ranks-per-node", 2]):
            of_bytes = [] if collective == "barrier" else ["--bytes", "1K"]
            status, lines, _ = simulate(collective, "--size", 5, *of_bytes, *options)
            words = [each.name for each in algorithms.registered(collective) if options or not each.node_aware]
            assert status == 0 and [line[1] for line in lines[1:]] == words


def test_results_as_json_and_as_a_picture(simulate, tmp_path):
    pytest.importorskip("matplotlib")
    options = "--ranks-per-node", 2, "--placement", "cyclic", "--node-bandwidth", "400Gb/s", "--segment-bytes", "1K"
    outputs = "--json", tmp_path / "out.json", "--plot", tmp_path / "out.svg"
    assert simulate("bcast", "--size", 6, "--bytes", "4K:8K", *options, *outputs)[0] == 0
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["schema"] == 1 and document["network"]["levels"][0]["group"] == [0, 1, 2, 0, 1, 2]
    assert document["network"]["bandwidth"] == 12.5e9 and document["network"]["levels"][0]["bandwidth"] == 50e9
    assert len(document["results"]) == 2 * len(algorithms.registered("bcast"))
    pipeline = next(row for row in document["results"] if row["algorithm"] == "pipeline")
    assert pipeline["segment_bytes"] == 1024 and pipeline["exact"] == "clocks" and pipeline["us"] > 0
    assert "<!-- share of the bound -->" in (tmp_path / "out.svg").read_text()


def test_links_carry_codes(simulate, tmp_path):
    options = "--size", 7, "--bytes", 7 * 256 * 4, "--alpha", "0", "--bandwidth", "8Gb/s", "--compression", "int8"
    written = tmp_path / "out.json"
    status, lines, _ = simulate("allreduce", "--algorithms", "pairwise", *options, "--json", written)
    assert status == 0 and lines[1][:2] == ["7K", "pairwise"]
    (row,) = json.loads(written.read_text())["results"]
    assert row["compression"] == "int8" and row["rounds"] == 2
    # a group for each rank: 12 messages of 260 bytes; of those that start together whole ones find both ends free only
    # after a gap, of two messages in all
    assert row["us"] == pytest.approx(14 * 0.260) and row["x_bound"] == pytest.approx(14 / 12)
    simulate("allreduce", "--algorithms", "pairwise", *options, "--coding", "1ns", "--json", written)
    (coded,) = json.loads(written.read_text())["results"]
    # of 256 elements: 6 blocks that are sent, 6 that come, and the sum, which is coded and decoded
    assert coded["us"] == pytest.approx(row["us"] + (6 + 6 + 2 + 6) * 1.024)


def test_messages_in_pieces(simulate, tmp_path):
    """What flows through the rounds is sooner done; what is not cut says so."""
    written, seconds = tmp_path / "out.json", {}
    for segment in ([], ["--segment-bytes", "2K"], ["--segment-bytes", "4K", "--eager", "4K"]):
        options = "--size", 4, "--bytes", "64K", "--alpha", "0", "--algorithms", "reduce_bcast,direct,pipeline", *segment
        assert simulate("allreduce", *options, "--json", written)[0] == 0
        rows = {row["algorithm"]: row for row in json.loads(written.read_text())["results"]}
        asked = 1024 * len(segment) or None
        assert [row["segment_bytes"] for row in rows.values()] == [asked, None, asked or 256 << 10]
        assert rows["reduce_bcast"]["rounds"] == 4
        seconds[len(segment)] = {name: row["us"] for name, row in rows.items()}
    assert seconds[4]["reduce_bcast"] < seconds[2]["reduce_bcast"] < seconds[0]["reduce_bcast"]
    assert seconds[2]["direct"] == seconds[0]["direct"] and seconds[2]["pipeline"] < seconds[0]["pipeline"]
    status, _, error = simulate("allreduce", "--algorithms", "ring", "--size", 512, "--bytes", "1G", "--segment-bytes", "60000")
    assert status == 2 and "choose --size" in error and "or longer segments" in error


def test_only_what_can_be_compressed_is(simulate):
    for collective in ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce"):
        for options in ([], ["--ranks-per-node", 2]):
            status, lines, _ = simulate(collective, "--size", 5, "--bytes", "1K", "--compression", "int4", *options)
            words = [each.name for each in algorithms.registered(collective)
                     if each.compressible and (options or not each.node_aware)]  # fmt: skip
            assert status == 0 and [line[1] for line in lines[1:]] == words
    status, _, error = simulate("allreduce", "--algorithms", "ring", "--compression", "int8")
    assert status == 2 and "--compression int8: ring cannot be compressed; these can: parameter_server, pairwise" in error
    status, _, error = simulate("alltoall", "--compression", "int8")
    assert status == 2 and "--compression int8: alltoall cannot be compressed" in error
    assert "expected None, 'float16'" in simulate("bcast", "--compression", "int5")[2]


def test_a_barrier_has_no_bytes(simulate):
    status, lines, _ = simulate("barrier", "--size", 4, "--algorithms", "tree")
    assert status == 0 and [line[:5] for line in lines[1:]] == [["-", "tree", "10.0us", "-", "2"]]
    status, _, error = simulate("barrier", "--bytes", "1K")
    assert status == 2 and "--bytes: expected a collective that moves data, got barrier" in error


def test_runs_too_long_are_replaced_by_the_formula_or_refused(simulate):
    status, lines, _ = simulate("allreduce", "--algorithms", "ring", "--size", 4096, "--bytes", "1M")
    expected = closed_form("allreduce", "ring", 4096).seconds(1 << 20, 5e-6, 12.5e9)
    assert status == 0 and lines[1][-1] == "formula" and lines[1][2] == format_seconds(expected) == "41.1ms"
    status, _, error = simulate("allreduce", "--algorithms", "ring", "--size", 2000, "--ranks-per-node", 4, "--bytes", "1M")
    assert status == 2 and error.count("\n") == 1
    assert "ring at 2000 ranks has about 23990000 rounds and transfers" in error and "choose --size 500 or less" in error


@pytest.mark.parametrize("options, message", [
    (["--alpha", "5"], "--alpha: expected a time such as 5us, 1.5ms or 2s, got '5'"),
    (["--gamma", "fast"], "--gamma: expected a time"),
    (["--bandwidth", "12GB/s"], "--bandwidth: expected a rate in bits per second"),
    (["--bytes", "0"], "--bytes: expected sizes such as"),
    (["--bytes", "lots"], "expected a size such as"),
    (["--size", "1"], "--size: expected 2 or more ranks, got 1"),
    (["--ranks-per-node", "0"], "--ranks-per-node: expected 1 or more, got 0"),
    (["--node-alpha", "1us"], "need --ranks-per-node"),
    (["--ranks-per-node", "2", "--placement", "random"], "--placement: expected block or cyclic"),
    (["--segment-bytes", "0"], "--segment-bytes: expected a size above 0"),
    (["--coding", "1ns"], "--coding needs --compression"),
    (["--eager", "some"], "--eager: expected a size"),
    (["--algorithms", "rings"], "allreduce has no algorithm 'rings'"),
    (["--algorithms", "native"], "native is MPI's own call"),
    (["--algorithms", "ring,nccl"], "nccl is NVIDIA's NCCL: it has no schedule to simulate"),
    (["--json", "/no/such/folder/out.json"], "cannot write"),
    (["--file", "nowhere.py"], "there is no file nowhere.py"),
])
def test_bad_input_is_one_clear_line(simulate, options, message):
    status, _, error = simulate("allreduce", *options)
    assert status == 2 and message in error and error.count("\n") == 1


def test_a_users_file(simulate):
    options = "--file", ROOT / "tests/support/mine.py", "--size", 6, "--bytes", "1K", "--algorithms", "ring"
    status, lines, _ = simulate("allreduce", *options)
    assert status == 0 and len(lines) == 3 and lines[2][1:3] == ["my_ring", lines[1][2]]


def test_needs_neither_mpi_nor_numpy():
    code = ("import sys; sys.modules.update(mpi4py=None, numpy=None); from mpicoll import cli; "
            "cli.main('simulate allreduce --size 4 --bytes 1K --algorithms ring'.split())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0 and "ring" in done.stdout, done.stderr


def test_a_graph_that_is_too_large(simulate, tmp_path, monkeypatch):
    monkeypatch.setattr("mpicoll.cli.simulate.MOST_WORK", 71)
    (tmp_path / "graph").write_text("dims: 4 3 1")  # 12 ranks, 72 edges, of which 24 are to a rank itself
    status, _, error = simulate("neighbor_alltoall", "--graph", tmp_path / "graph")
    assert status == 2
    assert "--graph: 12 ranks and 72 edges take too long to run: expected at most 71 ranks and ends of edges together" in error
