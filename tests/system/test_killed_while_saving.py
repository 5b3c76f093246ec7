"""Checkpoints of jobs that are killed at any moment of a save."""

import random

import pytest

from tests.support.launching import installations, mpiexec

JOB = "tests.support.killed_while_saving"


@pytest.mark.parametrize("installation", installations(), ids=lambda found: found.name)
def test_a_job_killed_at_any_moment_leaves_its_last_checkpoint_whole(installation, tmp_path):
    draw = random.Random(installation.name)
    operations = [(draw.randrange(2), str(draw.randrange(80))) for _ in range(5)]
    times = [(draw.randrange(2), f"{draw.uniform(0, 0.2):.3f}") for _ in range(3)]
    for victim, moment in operations + times:
        size = draw.choice((2, 3))
        output = mpiexec(installation, size, tmp_path, victim, moment, module=JOB, check=False)
        assert "skipped" not in output and output.count("and verified it") == size, (victim, moment, output)
    output = mpiexec(installation, 1, tmp_path, module=JOB)
    assert int((tmp_path / "returned").read_text()) > 0 and "skipped" not in output
