"""Jobs in unusual surroundings: preloaded tools, other process numbers, little memory, the dead."""

import os
import subprocess
from pathlib import Path

import mpi4py
import pytest

from tests.support.each import EACH, ONE
from tests.support.launching import ROOT, completed, environment, installations, mpiexec

JOB = "tests.support.surroundings"
THROUGH_MPI = {"MPICOLL_SHARED_MEMORY": "off"}
#: without reading the memory of other processes by their numbers, which name others here
BY_NAME = {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
SURVIVED = [found for found in installations() if found.name == "openmpi"]
MEMORY_GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)


def both_come_to_the_end(installation, *words, under=(), **environ):
    """Two ranks, each of which is started by the words of `under`."""
    command = [installation.mpiexec, "-n", 2, *under, installation.python, "-m", JOB, *words]
    output = completed(*command, env=environment(**environ))
    assert output.count("done") == 2, output
    return output


TOOL = """
#include <mpi.h>

static int messages, calls;

int MPI_Isend(const void *sent, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    messages++;
    return PMPI_Isend(sent, count, type, rank, tag, comm, request);
}

int MPI_Allreduce(const void *sent, void *received, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm)
{
    calls++;
    return PMPI_Allreduce(sent, received, count, type, op, comm);
}

int tool_messages(void) { return messages; }
int tool_calls(void) { return calls; }
"""


@EACH
def test_a_preloaded_tool_sees_all_messages_and_calls(installation, tmp_path):
    """A tool of MPI's profiling interface sees what the extension calls by address, too."""
    compiler = Path(installation.python).with_name("mpicc")
    if not compiler.exists():
        pytest.skip(f"no mpicc beside {installation.python}")
    source = tmp_path / "tool.c"
    source.write_text(TOOL)
    tool = tmp_path / "tool.so"
    completed(compiler, "-shared", "-fPIC", source, "-o", tool)
    both_come_to_the_end(installation, "tool", under=("env", f"LD_PRELOAD={tool}"), **THROUGH_MPI)


UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


@EACH
@pytest.mark.skipif(subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0,
                    reason="no namespace of process numbers may be made here")  # fmt: skip
def test_ranks_with_process_numbers_of_their_own(installation):
    """Two containers on one node: each rank is process 1, and finds its own files for the other."""
    both_come_to_the_end(installation, "namespaces", under=UNSHARE, **BY_NAME)


@pytest.fixture
def memory_group():
    """A control group of 256 MiB within one of the same limit; it may hold processes."""
    for root, name in zip(MEMORY_GROUPS, ("memory.limit_in_bytes", "memory.max")):
        outer = root / f"mpicoll-{os.getpid()}"
        try:
            outer.mkdir()
            (outer / name).write_text(str(256 << 20))
            (outer / "inner").mkdir()
        except OSError:
            if outer.exists():
                outer.rmdir()
            continue
        yield outer / "inner"
        (outer / "inner").rmdir()
        outer.rmdir()
        return
    pytest.skip("no control group with a limit of memory may be made here")


@ONE
def test_an_array_beyond_the_memory_of_the_control_group(installation, memory_group):
    """It is refused: the kernel would kill the rank that writes to it."""
    enter = f"echo $$ > {memory_group}/cgroup.procs && exec \"$@\""
    output = both_come_to_the_end(installation, "limit", 300 << 20, under=("sh", "-c", enter, "sh"))
    assert output.count(f"this node has {256 << 20} bytes of memory for this process") == 2, output


@pytest.mark.skipif(not SURVIVED, reason="lost ranks are survived with Open MPI only")
@pytest.mark.parametrize("scenario", ["door", "task", "plan"])
@pytest.mark.parametrize("environ", [{}, THROUGH_MPI], ids=["shared memory", "MPI"])
def test_a_rank_is_killed_while_others_wait_for_it_in_c(scenario, environ):
    [installation] = SURVIVED
    command = [installation.mpiexec, "--with-ft", "ulfm", "-n", 3, installation.python, "-m", JOB]
    output = completed(*command, scenario, env=environment(**environ))
    assert output.count("done") == 2, output


@EACH
def test_without_survival_a_killed_rank_ends_the_job(installation):
    assert "done" not in mpiexec(installation, 3, "door", module=JOB, check=False)


@EACH
@pytest.mark.parametrize("environ", [{}, THROUGH_MPI], ids=["shared memory", "MPI"])
def test_mpi_is_finalized_while_calls_are_under_way(installation, environ):
    """A rank begins what the other never does, and ends."""
    both_come_to_the_end(installation, "finalize", **environ)


@EACH
def test_a_rank_is_stopped_and_goes_on_again_and_again(installation):
    """Results are exact, and only the number of calls says when it ends."""
    output = mpiexec(installation, 3, "stopped", module=JOB)
    assert output.count("done") == 3, output


@pytest.mark.thorough
@ONE
@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling"])
def test_shared_memory_grows_with_the_ranks_that_messages_go_to(installation, algorithm):
    output = mpiexec(installation, 16, "edges", algorithm, module=JOB)
    assert output.count("done") == 16, output


@pytest.mark.thorough
@ONE
def test_thousands_of_communicators(installation):
    both_come_to_the_end(installation, "many")


@pytest.mark.thorough
@EACH
def test_an_mpi4py_built_from_source_against_the_mpi_abi(installation, tmp_path):
    """Its handles have other values than those of the library's own interface."""
    compiler = Path(installation.python).with_name("mpicc_abi")
    if not compiler.exists():
        pytest.skip(f"no mpicc_abi beside {installation.python}")
    words = ("-q", "--no-cache-dir", "--no-binary", "mpi4py", "--no-deps", "--target", tmp_path)
    built_by = environment(MPICC=str(compiler), CFLAGS="-O0 -w")
    what = f"mpi4py=={mpi4py.__version__}"
    completed(installation.python, "-m", "pip", "install", *words, what, env=built_by)
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    where = "import mpi4py.MPI; print(mpi4py.MPI.__file__)"
    found = completed(installation.python, "-c", where, env=environment(**path))
    assert found.startswith(str(tmp_path)), found
    names = ("doors", "native_doors", "attending")
    tests = [ROOT / "tests/mpi" / f"test_{name}.py" for name in names]
    words = ("--with-mpi", "-q", "-p", "no:cacheprovider", *tests)
    assert " passed" in mpiexec(installation, 2, *words, MPICOLL_ENGINE="c", **path)
