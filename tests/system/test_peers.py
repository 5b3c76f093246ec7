"""The peers of the benchmarks on ranks: MPI's forced algorithms and gloo do what they are called, and say what they cannot."""

import subprocess
import sys

import numpy as np
import pytest

from tests.support.launching import environment, installations, mpiexec
from tests.support.torch_backend import require_torch

pytestmark = pytest.mark.thorough
#: elements that the operation is given in each call, on each of 3 ranks, for a vector of 60: the algorithm's signature
LENGTH = 60
AT_ROOT, RING = [[60, 60], [], []], [[20, 20]] * 3
DOUBLING, HALVING = [[], [60, 60], [60]], [[], [60, 40], [20]]
SIGNATURES = {
    "allreduce": {
        "basic_linear": AT_ROOT, "nonoverlapping": AT_ROOT, "smp": AT_ROOT, "ring": RING, "segmented_ring": RING,
        "recursive_doubling": DOUBLING, "recexch": DOUBLING, "recursive_multiplying": [[60, 60], [60], []],
        "tree": [[60], [60], []], "rabenseifner": [[30, 30], [30], [30]],
        "k_reduce_scatter_allgather": [[], [60, 30], [30]],
    },
    "reduce_scatter_block": {
        "basic_linear": AT_ROOT, "pairwise": RING, "recursive_halving": HALVING, "butterfly": HALVING,
        "recursive_doubling": [[20, 20, 40], [40, 40], [20]],
    },
    "reduce": {
        "linear": AT_ROOT, "chain": AT_ROOT, "binomial": AT_ROOT, "nb": AT_ROOT, "smp": AT_ROOT, "pipeline": [[60], [60], []],
        "in-order_binary": [[], [], [60, 60]], "rabenseifner": [[30, 30], [30], [30]],
    },
    "reduce_scatter": {
        "non-overlapping": AT_ROOT, "ring": RING, "pairwise": RING, "recursive_halving": HALVING, "butterfly": HALVING,
        "recursive_doubling": [[20, 20, 40], [40, 40], [20]],
    },
}  # fmt: skip
#: what the libraries refuse: numbers of ranks, and too few elements or an operation that is not MPI's own
REFUSED = {("allgather", "two_proc"), ("allgather", "recursive_doubling"), ("allgatherv", "recursive_doubling"),
           ("allreduce", "reduce_scatter_allgather"), ("barrier", "two_proc")}  # fmt: skip
#: how many algorithms there are, where they are few; what cannot be forced while the job runs
LEAST, ABSENT = {"gather": 2, "scatter": 2, "scan": 2, "exscan": 2, "barrier": 2}, {"Open MPI": {"allgatherv"}}

#: Intel MPI takes one preset, when it starts
RESULTS = {"intelmpi": ["preset"]}


def pytest_generate_tests(metafunc):
    if "installation" in metafunc.fixturenames:  # not when this file runs on ranks, where no installation is looked for
        metafunc.parametrize("installation", installations(), ids=lambda found: found.name)


def test_forced_on_2_ranks(installation):
    on_ranks(installation, 2, *RESULTS.get(installation.name, ["results"]), I_MPI_ADJUST_ALLREDUCE="8")


def test_forced_on_3_ranks(installation):
    checks = RESULTS.get(installation.name, ["signatures", "results"])
    on_ranks(installation, 3, "mistakes", *checks, I_MPI_ADJUST_ALLREDUCE="8")


def test_gloo(installation):
    require_torch(installation)
    output = on_ranks(installation, 2, "gloo")
    assert not [word for word in ("arning", "rror", "[W", "[E") if word in output], output


def test_gloo_without_pytorch(installation):
    code = "import sys; sys.modules['torch'] = None; from benchmarks.peers.gloo import Gloo; Gloo(None)"  # None: not importable
    done = subprocess.run([installation.python, "-c", code], capture_output=True, text=True, env=environment())
    assert 'ArgumentError: gloo is part of PyTorch; install it with: pip install "mpicoll[torch]"' in done.stderr


def on_ranks(installation, size, *names, **environ):
    """Run the functions `check_NAME` of this file under mpiexec; their output."""
    output = mpiexec(installation, size, *names, module="tests.system.test_peers", **environ)
    assert f"checked {' '.join(names)}\n" in output, output
    return output


# on ranks


def check_results(comm):
    """Every algorithm gives the exact result, or says on all ranks that it cannot."""
    from mpi4py import MPI

    from benchmarks.peers.forced import COLLECTIVES, forced

    absent = ABSENT.get(MPI.get_vendor()[0], ())
    for collective in (one for one in COLLECTIVES if one not in absent):  # in the same order on all ranks
        for segment_bytes, counts in ((None, (4, 3001)), (4096, (100_000,))):
            with forced(comm, collective, segment_bytes) as candidates:
                assert len(candidates) >= LEAST.get(collective, 4), list(candidates)
                for count in counts:
                    check_candidates(comm, collective, count, candidates)


def check_candidates(comm, collective, count, candidates):
    case, arguments = workload(comm, collective, count)
    for label, candidate in candidates.items():
        case.prepare(poison=True)
        served = attempt(comm, candidate, arguments)
        assert served or (collective, label) in REFUSED, (collective, label, count)
        assert not served or case.wrong() == 0, (collective, label, count, case.wrong())
    case.prepare(poison=True)
    getattr(comm, collective.capitalize())(*arguments)  # the library's own choice still works
    assert case.wrong() == 0, (collective, count)


def workload(comm, collective, count):
    """A `Workload` for one of MPI's words, and the arguments of mpi4py's method; words with counts get blocks of one size."""
    from mpicoll.bench.workload import Workload

    case = Workload(comm, collective.removesuffix("_block").removesuffix("v"), count, np.dtype(np.float32))
    arguments = list(case.arguments)
    if collective == "reduce_scatter":
        arguments.insert(2, [case.result.size] * comm.size)
    return case, arguments


def attempt(comm, candidate, arguments):
    """Whether the candidate served the call, which all ranks see alike."""
    from mpicoll.errors import ArgumentError

    try:
        candidate(*arguments)
        served = True
    except ArgumentError as error:
        assert candidate.label in str(error) and "leave it out" in str(error), error
        served = False
    assert comm.allgather(served) == [served] * comm.size, candidate.label
    return served


def check_signatures(comm):
    """An operation that notes what it is given tells the algorithms apart; the library's own choice is left as it was."""
    from mpi4py import MPI

    from benchmarks.peers.forced import forced

    given = []

    def add(left, right, datatype):
        result = np.frombuffer(right, np.float32)
        result += np.frombuffer(left, np.float32)
        given.append(result.size)

    operation = MPI.Op.Create(add, commute=True)
    for collective, expected in SIGNATURES.items():
        given_to_mpi = workload(comm, collective, LENGTH)[1]
        arguments = [operation if isinstance(argument, MPI.Op) else argument for argument in given_to_mpi]

        def signature(function):
            given.clear()
            function(*arguments)
            return comm.allgather([size for size in given if size])

        native = getattr(comm, collective.capitalize())
        usual = signature(native)
        with forced(comm, collective) as candidates:
            known = expected.keys() & candidates.keys()
            assert len(known) >= 3, (collective, list(candidates))
            for label in sorted(known):
                seen = signature(candidates[label])
                assert seen == expected[label], (collective, label, seen)
                assert signature(native) == usual, (collective, label, "changed the library's own choice")
                with candidates[label].selected():
                    assert signature(candidates[label].function) == expected[label], (collective, label, "selected")
    operation.Free()


def check_preset(comm):
    """Intel MPI takes that of the environment, and no other."""
    from benchmarks.peers.forced import forced

    with forced(comm, "allreduce") as candidates, forced(comm, "bcast") as others:
        assert list(candidates) == ["preset 8"] and not others
        check_candidates(comm, "allreduce", 3001, candidates)


def check_mistakes(comm):
    from benchmarks.peers.forced import Tools, find_library, forced
    from benchmarks.peers.gloo import address
    from mpicoll.errors import ArgumentError

    with pytest.raises(ArgumentError, match="expected one of allreduce, .* got 'alltoall'"), forced(comm, "alltoall"):
        pass
    with pytest.raises(ArgumentError, match="Open MPI, MPICH, Intel MPI, this is MVAPICH"):
        find_library("MVAPICH")
    with Tools() as tools, pytest.raises(ArgumentError, match="no control variable no_such_variable"):
        tools.variable("no_such_variable")
    with pytest.raises(ArgumentError, match="'nothing0' has no IPv4 address .* there are: .*lo"):
        address("nothing0")


def check_gloo(comm):
    """Exact results in the caller's own memory, twice: a group that was closed leaves nothing in the way of the next."""
    from benchmarks.peers.gloo import Gloo
    from mpicoll.errors import ArgumentError

    rank, size = comm.rank, comm.size
    for count in (1, 100_000):
        with Gloo(comm) as gloo:
            vector = np.arange(count * size, dtype=np.float32) % 1021 + rank
            part, whole = np.full(count, rank, np.int64), np.empty(count * size, np.int64)
            total = size * (np.arange(count * size) % 1021) + size * (size - 1) // 2
            gloo.reduce_scatter(vector, mine := np.empty(count, np.float32))
            assert (mine == total[rank * count:][:count]).all(), "reduce_scatter"
            gloo.allreduce(vector)
            assert (vector == total).all(), "allreduce"
            gloo.allgather(part, whole)
            assert (whole == np.repeat(np.arange(size), count)).all(), "allgather"
            gloo.bcast(part, root=size - 1)
            assert (part == size - 1).all(), "bcast"
            with pytest.raises(ArgumentError, match="close it first"):
                Gloo(comm)
    with pytest.raises(ArgumentError, match="nothing0"):
        Gloo(comm, interface="nothing0")


def main(*names):
    from mpi4py import MPI

    import mpicoll

    mpicoll.install_abort_hook()
    for name in names:
        globals()[f"check_{name}"](MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        print("checked", *names, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
