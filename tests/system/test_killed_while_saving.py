"""Checkpoints of jobs that are killed at any moment of a save.

The moments are spread over the MPIs found here. MPICOLL_TEST_ALL=1: twice as many on each.
"""

import random

import pytest

from tests.support.each import ALL, ONE
from tests.support.launching import mpiexec

pytestmark = pytest.mark.thorough
JOB = "tests.support.killed_while_saving"
#: jobs killed at a file operation, and after a time
KILLS = (6, 4) if ALL else (3, 2)


@ONE
def test_a_job_killed_at_any_moment_leaves_its_last_checkpoint_whole(installation, tmp_path):
    draw = random.Random(installation.name)
    operations = [(draw.randrange(2), str(draw.randrange(80))) for _ in range(KILLS[0])]
    times = [(draw.randrange(2), f"{draw.uniform(0, 0.2):.3f}") for _ in range(KILLS[1])]
    for victim, moment in operations + times:
        size = draw.choice((2, 3))
        output = mpiexec(installation, size, tmp_path, victim, moment, module=JOB, check=False)
        assert "skipped" not in output and output.count("and verified it") == size, (victim, moment, output)
    output = mpiexec(installation, 1, tmp_path, module=JOB)
    assert int((tmp_path / "returned").read_text()) > 0 and "skipped" not in output
