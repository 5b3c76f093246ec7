"""The commands that need no MPI: list, show, verify."""

import json
import signal
import textwrap

import pytest

from mpicoll import algorithms, cli
from mpicoll.algorithms import NATIVE
from mpicoll.cli.plots import draw_table
from mpicoll.collectives import COLLECTIVES
from mpicoll.select.table import Rule, TableEntry
from mpicoll.verify import prover

pytestmark = pytest.mark.usefixtures("registry")

MINE = """
    import mpicoll
    from mpicoll.schedule import Input, Output, Recv, Reduce, Scratch, Send

    def chain(rank, size, blocks):
        received, total = Scratch("received", 0, blocks), Output(0, blocks) if rank else Input(0, blocks)
        if rank:
            yield Recv(rank - 1, received), Reduce(received, Input(0, blocks), total)
        if rank < size - 1:
            yield Send(rank + 1, total)
            yield Recv(rank + 1, Output(0, blocks))
        if rank:
            yield Send(rank - 1, Output(0, blocks))

    mpicoll.register("allreduce", "chain", chain)
"""


@pytest.fixture
def command(capsys):
    """Run one command; its exit status, output and error output."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(list(map(str, arguments)))
        output = capsys.readouterr()
        if isinstance(end.value.code, str):  # what Python itself does with it
            return 1, output.out, end.value.code
        return end.value.code or 0, output.out, output.err

    return run


@pytest.fixture
def mine(tmp_path):
    """Write a user's file, with something replaced in it."""

    def write(old="", new=""):
        path = tmp_path / "mine.py"
        path.write_text(textwrap.dedent(MINE).replace(old, new) if old else textwrap.dedent(MINE))
        return path

    return write


def test_list_has_a_line_for_every_algorithm(command):
    status, output, _ = command("list")
    assert status == 0 and max(map(len, output.splitlines())) <= 80
    for collective, text in zip(COLLECTIVES, output.split("\n\n")):
        assert text.startswith(f"{collective}. starts: ")
        known = algorithms.list_algorithms(collective)
        words = [line.split()[0] for line in text.splitlines() if line[2] != " "]
        assert [word for word in words if word in known] == known
    words = " ".join(output.split())
    assert "ring 14 24 14/8 m 24/13 m no yes Ring reduce-scatter, ring allgather." in words
    assert "only when asked for: for allreduce, reduce_scatter, allgather, bcast, reduce." in words


def test_list_of_one_collective_says_where_data_start_and_must_end(command):
    status, output, _ = command("list", "scatter")
    assert status == 0 and " ".join(output.split()).startswith(
        "scatter. starts: input, all blocks on the root; must end: output, the rank's own block rounds: ")
    assert "allreduce. " not in output and command("list", "scater")[2].endswith("(did you mean scatter?)\n")


def test_list_as_markdown(command):
    _, output, _ = command("list", "--markdown")
    table = [line for line in output.splitlines() if line.startswith("|")]
    columns = {line.count("|") for line in table}
    assert len(columns) == 1 and len(table) == 2 + sum(len(algorithms.list_algorithms(name)) for name in COLLECTIVES)
    assert "| allreduce | circulant | 6 | 8 | 14/8 m | 24/13 m | no | yes |" in output
    assert "| allreduce | recursive_doubling | 3 | 5 | 3 m | 4 m | yes | folded |" in output


RING_OF_THREE = """
    allreduce ring, 3 ranks: 4 rounds, a rank sends at most 4/3 m.
    m: the vector, in 3 blocks. Below each rank: the ranks in the sum it has of each
    block.

    start
      rank 0       rank 1       rank 2
      0.. 0.. 0..  .1. .1. .1.  ..2 ..2 ..2

    round 1   0 -> 1: block 2   1 -> 2: block 0   2 -> 0: block 1
      0.. 0.2 0..  .1. .1. 01.  .12 ..2 ..2

    round 2   0 -> 1: block 1   1 -> 2: block 2   2 -> 0: block 0
      012 0.2 0..  .1. 012 01.  .12 ..2 012

    round 3   0 -> 1: block 0   1 -> 2: block 1   2 -> 0: block 2
      012 0.2 012  012 012 01.  .12 012 012

    round 4   0 -> 1: block 2   1 -> 2: block 0   2 -> 0: block 1
      012 012 012  012 012 012  012 012 012
"""


def test_show_draws_a_ring(command):
    assert command("show", "allreduce", "ring", "--size", 3) == (0, textwrap.dedent(RING_OF_THREE).lstrip(), "")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_show_ends_with_what_the_collective_promises(command, collective):
    for algorithm in algorithms.registered(collective):
        for size in (4, 8, 13):
            status, short, _ = command("show", collective, algorithm.name, "--size", size)
            assert status == 0 and short.startswith(f"{collective} {algorithm.name}, {size} ranks")
            status, output, _ = command("show", collective, algorithm.name, "--size", size, "--all")
            assert status == 0 and max(map(len, output.splitlines())) <= 100
            assert max(map(len, short.splitlines())) <= 80 and short.count("\n") <= 25
        if COLLECTIVES[collective].reduces:
            terms = len(COLLECTIVES[collective].contributors(12, 0, 13, 1))
            assert f"{terms}/13" in output.split("round ")[-1]


PAIR_IN_CODES = """
    allreduce pairwise in int8, 2 ranks: 2 rounds, a rank sends at most m.
    int8 quantises contributions, and sums: each value twice at most. Messages in
    codes have 260 bytes for 256 float32 elements; relative error (RMS) of Gaussian
    data 0.0099.
    m: the vector, in 2 blocks. Below each rank: the ranks in the sum it has of each
    block.

    start
    coded     by 0: block 1   by 1: block 0
      rank 0  rank 1
      0. 0.   .1 .1

    round 1   0 -> 1: block 1 in codes   1 -> 0: block 0 in codes
    coded     by 0: block 0   by 1: block 1
    decoded   by 0: block 0   by 1: block 1
      01 0.   .1 01

    round 2   0 -> 1: block 0 in codes   1 -> 0: block 1 in codes
    decoded   by 0: block 1   by 1: block 0
      01 01   01 01
"""


def test_show_says_what_is_coded_where(command):
    said = command("show", "allreduce", "pairwise", "--size", 2, "--compression", "int8")
    assert said == (0, textwrap.dedent(PAIR_IN_CODES).lstrip(), "")
    _, output, _ = command("show", "allgather", "ring", "--size", 3, "--compression", "float16", "--all")
    said = " ".join(output.split())
    assert "float16 rounds the data: each value once" in said and "2 bytes for 1 float32 element;" in said
    _, output, _ = command("show", "allreduce", "hierarchical", "--size", 4, "--compression", "int8", "--all")
    assert "round 3   0 -> 2: block 0 in codes" in output  # between nodes; inside them elements as they are:
    assert "round 4   0 -> 1: blocks 0-1   1 -> 0: blocks 2-3" in output
    status, _, error = command("show", "allreduce", "ring", "--compression", "int8")
    assert status == 2 and "--compression int8: ring cannot be compressed; these can: parameter_server" in error


def test_list_names_what_takes_codes(command):
    output = command("list", "bcast")[1]
    assert "with codes, as compression= asks for: linear, binomial, scatter_allgather," in output
    assert "with codes" not in command("list", "alltoall")[1]


def test_show_of_a_rooted_collective(command):
    _, output, _ = command("show", "bcast", "binomial", "--root", 2)
    assert "from root 2" in output and "round 1   2 -> 0: block 0" in output
    assert [line.split() for line in output.splitlines()[-1:]] == [["2"] * 4]


def test_show_of_a_pipeline_with_as_many_segments_as_wanted(command):
    _, output, _ = command("show", "bcast", "pipeline", "--size", 3, "--blocks", 2)
    assert "3 rounds" in output and output.splitlines()[-1].split() == ["0"] * 6


@pytest.mark.parametrize("arguments, message", [
    (["allreduce", "rings"], "allreduce has no algorithm 'rings'; choose from: parameter_server"),
    (["allsum", "ring"], "unknown collective 'allsum'"),
    (["allreduce", NATIVE], "no schedule to show"),
    (["allreduce", "nccl"], "nccl is NVIDIA's NCCL: it has no schedule to show"),
    (["allreduce", "ring", "--size", "1"], "expected 2 or more ranks"),
    (["bcast", "linear", "--root", "4"], "root 4"),
])
def test_show_says_what_is_wrong(command, arguments, message):
    status, _, error = command("show", *arguments)
    assert status == 2 and message in error and error.count("\n") == 1


def test_verify_proves_every_algorithm(command, tmp_path):
    status, output, _ = command("verify", "--max-size", 9, "--json", tmp_path / "proof.json")
    every = sum(len(algorithms.registered(collective)) for collective in COLLECTIVES)
    assert status == 0 and len(output.splitlines()) == every + 1 and f"all {every} algorithms proved" in output
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert proof["schema"] == 1 and proof["max_size"] == 9 and proof["wrong"] is None
    assert sum(entry["cases"] for entry in proof["algorithms"]) == proof["cases"]
    ordered = {(entry["collective"], entry["algorithm"]): entry["ordered"] for entry in proof["algorithms"]}
    assert ordered["allreduce", "pairwise"] and not ordered["allreduce", "ring"]


def test_verify_stops_at_the_first_that_is_wrong(command, tmp_path):
    wrong = algorithms.find("allreduce", "ring")._replace(name="claims_order", ordered=True)
    algorithms.add(wrong)
    status, output, _ = command("verify", "--max-size", 6, "--json", tmp_path / "proof.json")
    message = "allreduce claims_order, 2 ranks, root 0, 2 blocks: operands do not stay in rank order"
    assert status == 1 and output.splitlines()[-1].startswith(f"WRONG: {message}")
    assert json.loads((tmp_path / "proof.json").read_text())["wrong"].startswith(message)


def test_verify_needs_a_size_and_a_place_for_its_result(command, tmp_path):
    assert command("verify", "--max-size", 0)[0] == 2
    status, _, error = command("verify", "--json", tmp_path)
    assert status == 2 and "cannot write" in error


def test_options_of_tune_and_bench_that_mean_nothing(command):
    status, _, error = command("tune", "--output", "none.json", "--ranks", 4)
    assert status == 2 and "--ranks and --ranks-per-node need --network" in error
    status, _, error = command("bench", "--min-time", -1)
    assert status == 2 and "--min-time: expected more than 0 seconds, got -1.0" in error


def test_verify_of_a_file_proves_what_it_registers(command, mine):
    status, output, _ = command("verify", "--file", mine(), "--max-size", 20)
    assert status == 0 and output.splitlines()[0].split()[:3] == ["allreduce", "chain", "1..20"]
    assert "\n1 algorithm proved: " in output


def test_verify_of_a_file_finds_what_goes_wrong_above_the_sizes_of_register(command, mine):
    status, output, _ = command("verify", "--file", mine("if rank:", "if rank and size < 19:"), "--max-size", 20)
    assert status == 1 and "WRONG: allreduce chain, 19 ranks" in output


def test_an_algorithm_that_register_refuses(command, mine):
    status, _, error = command("verify", "--file", mine("rank + 1, total", "rank + 2, total"))
    assert status == 1 and "mine.py: allreduce chain, 2 ranks, root 0, 1 blocks: " in error and error.count("\n") == 1


def test_a_file_that_registers_nothing_or_is_not_there(command, mine, tmp_path):
    status, _, error = command("verify", "--file", mine('mpicoll.register("allreduce", "chain", chain)', ""))
    assert status == 2 and "registers no algorithm; call mpicoll.register(collective, name, generator)" in error
    status, _, error = command("verify", "--file", tmp_path / "yours.py")
    assert status == 2 and "there is no file" in error
    (tmp_path / "notes.txt").write_text("")
    assert command("verify", "--file", tmp_path / "notes.txt")[0] == 2
    (tmp_path / "yours.py").write_text("import sys\nsys.exit()\n")
    status, _, error = command("verify", "--file", tmp_path / "yours.py")
    assert status == 2 and "yours.py, line 2, ends with SystemExit" in error


def test_show_knows_the_algorithms_of_a_file(command, mine):
    status, output, _ = command("show", "allreduce", "chain", "--size", 3, "--blocks", 1, "--file", mine())
    assert status == 0 and output.endswith("round 4   1 -> 0: block 0\n  012     012     012\n")


SHORT_RING = """
    rank          0    1    2    3    4    5    6    7
    start         0    0    0    0    0    0    0    0
    round 1     7>0  0>0  1>0  2>0  3>0  4>0  5>0  6>0
"""


@pytest.mark.slow
def test_show_prints_no_more_than_a_screenful(command):
    _, output, _ = command("show", "allreduce", "ring", "--size", 8)
    assert textwrap.dedent(SHORT_RING).strip() in output and len(output.splitlines()) == 18
    assert output.endswith("round 14    7>8  0>8  1>8  2>8  3>8  4>8  5>8  6>8\n")
    assert command("show", "allreduce", "ring", "--size", 8, "--all")[1].count("\n") == 182
    assert "… 112 rounds more\nround 123 " in command("show", "allreduce", "ring", "--size", 64)[1]


def test_show_draws_what_is_wrong_up_to_the_round_that_fails(command, mine):
    path = mine("Recv(rank + 1, Output(0, blocks))", "Recv(rank + 1, Output(0, 1))")
    status, output, error = command("show", "allreduce", "chain", "--size", 3, "--blocks", 2, "--file", path)
    assert status == 1 and error == "" and output.startswith("allreduce chain, 3 ranks: wrong, up to where it fails.\n")
    assert "round 2   1 -> 2: blocks 0-1\n" in output and "round 3" not in output.split("WRONG: ")[0]
    assert "WRONG: rank 1, round 3 (out of place): rank 2 sends blocks " in " ".join(output.split())


def test_an_error_says_where_data_start_and_must_end(command, mine):
    path = mine("yield Send(rank - 1, Output(0, blocks))", "yield Send(rank - 1, received)")
    said = command("show", "allreduce", "chain", "--blocks", 1, "--file", path)[1]
    assert "(starts: input, all blocks on every rank; must end: output, all blocks on every rank)" in " ".join(said.split())


@pytest.mark.parametrize(("line", "message"), [
    ("yield 5", "fails at {path}:5: TypeError"), ("yield 1 / 0", "fails at {path}:6: ZeroDivisionError"),
    ("raise SystemExit", "fails at {path}:6: SystemExit"),
    ("while True: yield ()", " at {path}:5 does not end: "), ("while True: pass", " at {path}:6 does not yield: 0.2 s of "),
    ("yield (Send(1, 0) for _ in iter(int, 1))", " at {path}:6 does not yield: 0.2 s of "),
])  # fmt: skip
def test_a_generator_that_fails_is_named_with_file_and_line(command, mine, monkeypatch, line, message):
    monkeypatch.setattr(prover, "_LONGEST", 0.2)
    path = mine('received, total = Scratch("received", 0, blocks), Output(0, blocks) if rank else Input(0, blocks)', line)
    status, _, error = command("verify", "--file", path)
    assert status == 1 and "the generator of rank 0 " in error and message.format(path=path) in error
    assert error.count("\n") == 1


def test_show_ends_too_where_a_generator_does_not_yield(command, mine, monkeypatch):
    monkeypatch.setattr(prover, "_LONGEST", 0.2)
    path = mine("if rank < size - 1:", "while size > 3: pass\n    if rank < size - 1:")
    status, output, _ = command("show", "allreduce", "chain", "--file", path)
    assert status == 1 and f"the generator of rank 0 at {path}:9 does not yield: ".replace(" ", "") in "".join(output.split())
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0) and signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


def test_verify_of_some(command):
    for words, count in ((["ring"], 3), (["allreduce"], 18), (["allreduce", "ring"], 1)):
        status, output, _ = command("verify", *words, "--max-size", 3)
        assert status == 0 and output.count(" ranks ") == count, output


def test_show_as_a_picture(command, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "ring.svg"
    assert command("show", "allreduce", "ring", "--size", 3, "--plot", path)[0] == 0
    drawn = path.read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("rank 2", "start", "round 4")) and "<!-- round 5 -->" not in drawn


def test_a_table_as_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    rules = Rule(0, 0, "native", None), Rule(65536, 0, "ring", 60000)
    entries = [TableEntry("MPICH", "tcp", size, size, "allreduce", rules) for size in (2, 13)]
    draw_table(tmp_path / "tuned.svg", entries, "MPICH over tcp")
    drawn = (tmp_path / "tuned.svg").read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("allreduce", "13 on 13", "64K", "60000", "native", "ring"))
