"""mpi4py's own tests pass with its communicators replaced by mpicoll's: a drop-in, by the judgement of its author."""

import os
import re
import subprocess
import sys
import tarfile

import pytest

from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import LaunchError
from mpicoll.support.gpus import working_cupy
from tests.support.launching import installations, mpiexec

pytestmark = pytest.mark.thorough
#: every collective on a schedule, so that mpi4py's tests run over them all
WORDS = {"allreduce": "circulant", "reduce_scatter": "ring", "allgather": "bruck", "alltoall": "pairwise", "barrier": "tree"}
FORCED = ",".join(f"{name}:{WORDS.get(name, 'binomial')}" for name in COLLECTIVES)
FORCED += ",neighbor_allgather:packed,neighbor_alltoall:combined"
#: what a run of a few minutes on two cores covers; MPICOLL_TEST_ALL=1 covers all up to 5 ranks
CASES = [(found, "forced", 2) for found in installations()[:1]]
if os.environ.get("MPICOLL_TEST_ALL"):
    CASES = [(found, rules, size) for found in installations() for rules in ("default", "forced") for size in range(1, 6)]


@pytest.fixture(scope="session")
def suite(request):
    """The test directory of the source distribution of the installed mpi4py; downloaded once, never committed."""
    import mpi4py

    sources = request.config.cache.mkdir("sources")
    name = f"mpi4py-{mpi4py.__version__}"
    if not (sources / name).exists():
        archive = sources / f"{name}.tar.gz"
        if not archive.exists():
            command = ["pip", "download", "--no-deps", "--no-binary", "mpi4py", f"mpi4py=={mpi4py.__version__}", "-d", sources]
            fetched = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
            if fetched.returncode and not os.environ.get("CI"):
                pytest.skip("the source distribution of mpi4py cannot be downloaded (no network?)")
            assert fetched.returncode == 0, fetched.stderr
        with tarfile.open(archive) as packed:
            packed.extractall(sources, filter="data")
    return sources / name / "test"


@pytest.mark.parametrize(("installation", "rules", "size"), CASES, ids=lambda value: getattr(value, "name", value))
def test_own_tests_of_mpi4py(suite, installation, size, rules):
    modules = ["test_cco_buf", "test_cco_vec"]
    if os.environ.get("MPICOLL_TEST_ALL"):
        modules = sorted([*(path.stem for path in suite.glob("test_cco_*.py")), "test_msgspec"])
    modules += ["test_comm", "test_subclass"]
    passes(suite, installation, size, modules, MPICOLL_ALGORITHM=FORCED if rules == "forced" else "")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 4])
def test_own_tests_of_mpi4py_on_device_arrays(suite, size):
    """They take CuPy's arrays by themselves wherever there is a device."""
    try:
        working_cupy()
    except LaunchError as error:
        pytest.skip(f"needs CuPy and a CUDA device: {error}")
    modules = [f"test_cco_{kind}{form}" for kind in ("", "nb_", "pr_") for form in ("buf", "vec")] + ["test_msgspec"]
    passes(suite, installations()[0], size, modules, MPICOLL_ALGORITHM=FORCED, MPICOLL_GPU="staged")


def passes(suite, installation, size, modules, **environ):
    output = mpiexec(installation, size, suite, *modules, module="tests.support.replaced_world", **environ)
    assert len(re.findall(r"^OK", output, re.MULTILINE)) == size, output[-4000:]
