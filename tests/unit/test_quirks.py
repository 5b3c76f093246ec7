"""Special cases of MPI libraries: each is a row, followed somewhere, and guarded by a test."""

import ast
import ctypes
import os
import re
from types import SimpleNamespace

import pytest

from mpicoll import launch
from mpicoll.cluster import job
from mpicoll.gpu import awareness
from mpicoll.support import quirks
from mpicoll.support.quirks import QUIRKS
from tests.support.launching import ROOT

PACKAGE = sorted((ROOT / "mpicoll").rglob("*.py"))
SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in PACKAGE}
#: what the templates of jobs share, and ship with the package
SHELL = (ROOT / "jobs/launch.sh").read_text()
OWN = "mpicoll/support/quirks.py"
#: who asks MPI for the name of its library; the other does so in the words of another interpreter
ASKING = {OWN, "mpicoll/cluster/installation.py"}
NAMES = [quirk.name for quirk in QUIRKS]


def test_names_are_words_that_occur_once():
    assert len(set(NAMES)) == len(NAMES)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in NAMES)


@pytest.mark.parametrize("quirk", QUIRKS, ids=NAMES)
def test_a_row_is_complete(quirk):
    assert quirk.library
    for sentence in (quirk.symptom, quirk.instead):
        assert sentence.endswith(".") and "\n" not in sentence and "|" not in sentence
        assert "  " not in sentence


@pytest.mark.parametrize("quirk", QUIRKS, ids=NAMES)
def test_a_row_has_a_test(quirk):
    path, _, function = quirk.test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_package_follows_these_rows_and_no_others():
    """No comment names a row that is not there, and no row is left over."""
    texts = [SHELL, *(text for path, text in SOURCES.items() if path != OWN)]
    followed = re.findall(r"""quirk:\s+([\w-]+)|\bapplies\("([\w-]+)\"""", "\n".join(texts))
    assert {comment or asked for comment, asked in followed} == set(NAMES)
    assert quirks._AFFECTED.keys() <= set(NAMES)


def test_one_file_asks_which_library_it_is():
    asks = re.compile(r"Get_library_version|get_vendor")
    asking = {path for path, text in SOURCES.items() if asks.search(text)}
    assert asking == ASKING


def test_one_file_has_the_names_that_libraries_are_compared_with():
    names = {quirks.OPEN_MPI, quirks.MPICH, quirks.INTEL_MPI}
    having = {path for path, text in SOURCES.items() if names & set(strings_of(text))}
    assert having == {OWN}


def strings_of(text):
    """The strings in a program."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


# ---- rows that need no MPI job to be tried


class World:
    """Ranks of which some died, seen by one of them; notes what is done."""

    def __init__(self, rank, done):
        self.rank = rank
        self.done = done

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return 4

    def Abort(self, status):
        self.done.append(f"abort {status}")


#: the rank, those that live, and what it does before it ends itself
ENDS = {
    "nobody died": (2, [0, 1, 2, 3], ["wait 0.5", "abort 3"]),
    "the lowest that lives": (1, [1, 2], ["wait 0.5", "abort 3"]),
    "another that lives": (2, [1, 2], ["wait 0.5", "wait 1", "abort 3"]),
    "the last": (3, [3], ["wait 0.5"]),
}


@pytest.mark.parametrize(("rank", "living", "expected"), ENDS.values(), ids=ENDS)
def test_how_a_rank_ends_the_job(monkeypatch, rank, living, expected):
    """It lets its words be read, aborts after the lowest where some died, and ends itself."""
    done = []
    fake = SimpleNamespace(COMM_WORLD=World(rank, done), Is_finalized=lambda: False)
    monkeypatch.setattr(launch, "MPI", fake)
    monkeypatch.setattr(launch, "LAST_WORDS", [])
    monkeypatch.setattr(launch, "_living", lambda: living)
    monkeypatch.setattr(launch.time, "sleep", lambda seconds: done.append(f"wait {seconds}"))
    monkeypatch.setattr(launch.os, "_exit", lambda status: done.append(f"exit {status}"))
    launch.abort("told", 3)
    assert done == [*expected, "exit 3"]


@pytest.fixture
def made(monkeypatch):
    """A job of the virtual cluster, of an MPI that need not be installed."""
    monkeypatch.setattr(job, "find", lambda mpi, python: ("python", "mpiexec"))
    return job.Job


def test_heartbeats_do_not_come_through_shared_memory(made):
    words = made("openmpi", ranks_per_host=2, survive=True).command(["true"], ["a", "b"], "agent")
    assert words[words.index("btl") + 1] == "tcp,self"
    words = made("openmpi", ranks_per_host=2).command(["true"], ["a", "b"], "agent")
    assert words[words.index("btl") + 1] == "tcp,self,sm"


def test_ranks_of_the_virtual_cluster_share_cores(made):
    words = made("openmpi").command(["true"], ["a", "b"], "agent")
    assert words[words.index("--bind-to") + 1] == "none"
    assert words[words.index("mpi_yield_when_idle") + 1] == "1"
    environment = made("intelmpi").environment({}, 2)
    assert (environment["I_MPI_PIN"], environment["I_MPI_WAIT_MODE"]) == ("0", "1")


def test_hydra_leaves_no_topology(made):
    mpich = made("mpich")
    words = mpich.command(["true"], ["a", "b"], "agent")
    assert mpich.environment({}, 2)["HWLOC_XMLFILE"] == os.devnull
    assert words[-4:] == ["env", "-u", "HWLOC_XMLFILE", "true"]
    assert "HWLOC_XMLFILE" not in made("intelmpi").environment({}, 2)


def test_the_query_that_is_safe_comes_first(monkeypatch):
    def ends_the_process():
        raise AssertionError("it was called")

    safe = lambda kind, answer: 0
    library = SimpleNamespace(MPIX_Query_cuda_support=ends_the_process, MPIX_GPU_query_support=safe)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert awareness.cuda_awareness.__wrapped__() == (False, "MPIX_GPU_query_support")
