"""Something happens to a rank at a random moment: the job ends by itself, its reports name the rank, checkpoints are whole."""

import subprocess
import sys

import pytest

from mpicoll.cluster.namespaces import unavailable
from tests.support.launching import PATIENCE, environment, installations

pytestmark = pytest.mark.thorough
#: stopped, killed, cut off; calls and training. `python -m benchmarks.run.kills` runs as many as one likes
SEEDS = (10, 31)
CUT_OFF = (40,)


def kills(*seeds):
    found = [one.name for one in installations() if one.name in ("openmpi", "mpich")]  # what it knows to start
    words = [sys.executable, "-m", "benchmarks.run.kills", "--mpi", *found, "--seed", *map(str, seeds)]
    done = subprocess.run(words, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE)  # fmt: skip
    assert done.returncode == 0 and f"{len(seeds)} jobs, 0 not in order" in done.stdout, done.stdout[-20000:] + done.stderr


@pytest.mark.skipif(not installations(), reason="no mpiexec beside this Python or on PATH")
def test_ranks():
    kills(*SEEDS)


@pytest.mark.skipif(bool(unavailable()) or not installations(), reason=str(unavailable() or "no mpiexec"))
def test_hosts_that_are_cut_off():
    kills(*CUT_OFF)
