"""Jobs that go on after a warning, a crash and a cut link, and know when to give up."""

import json
import re
import shutil
from itertools import cycle

import pytest

from tests.support.slurm_lab import CASES, ENDLESS, JOBS, LONG, TRAIN, once_more

pytestmark = pytest.mark.thorough


@once_more
def test_jobs_go_on_after_a_warning_a_crash_and_a_cut_link(lab, cluster):
    """With the same losses, to the bit, as without a break; and a job that was warned loses no step.

    They train without end, however slow one is to start beside the others, until all has happened to them.
    """
    for name in ("launch.sh", "env.sh"):
        shutil.copy(JOBS / name, lab.directory)
    endless = {**ENDLESS, "JOBS": lab.directory}
    options = [["--nodes=2", f"--nodelist=host[{hosts}]"] for hosts in ("0-1", "2-3", "2-3", "0-1")]
    jobs = {lab.submit(TRAIN, *case, own, **endless): own[1] for case, own in zip(CASES, cycle(options))}

    def again(restarts):
        """Wait until all have been started so often, and are in the midst of new steps."""
        lab.until(lambda: all(lab.output(job).count("resumed from") == restarts for job in jobs), *jobs)

    def steps(job):
        """The last step of which it has a checkpoint."""
        return max(int(path.name.removeprefix("step-")) for path in lab.results(job).glob("checkpoint/step-*"))

    def losses(job):
        return json.loads((lab.completed(job) / "result.json").read_text())["losses"]

    lab.until(lambda: all(lab.trains(job) for job in jobs), *jobs)
    for job in jobs:  # as SLURM does when the time limit is near (--signal=B:USR1)
        lab.call("scancel", "--batch", "--signal=USR1", job)
    again(1)
    for job in jobs:
        (step,) = re.findall(r"stopped by SIGUSR1 after step (\d+)", lab.output(job))
        assert f"step-{int(step):010d}, step {step}\n" in lab.output(job)
    cluster.crash("host1")
    cluster.cut("host3")
    # each lacks a host, and makes no more steps; each start reads env.sh: with new steps to make, and then an end
    ends = {job: steps(job) + 100 for job in jobs}
    choices = " ".join(f"{job}) LENGTH='--steps {end}' ;;" for job, end in ends.items())
    with (lab.directory / "env.sh").open("a") as settings:
        settings.write(f"case $SLURM_JOB_ID in {choices} esac\n")
    # meanwhile, on hosts to which nothing will happen
    length = {"LENGTH": f"--steps {max(ends.values())}"}
    whole = lab.submit(TRAIN, *CASES[0], ["--nodes=2", "--nodelist=host[0,2]"], **{**LONG, **length})
    lab.until(lambda: all(lab.states()[job]["JobState"] != "RUNNING" for job in jobs), *jobs)
    for host in ("host1", "host3"):  # an operator would start them anew, before he gives them work
        cluster.crash(host)
        cluster.boot(host)
    again(2)
    unbroken = losses(whole)
    for job, end in ends.items():
        assert losses(job) == unbroken[:end] and len(unbroken) >= end and lab.states()[job]["Restarts"] == "2"
        assert "restart 2 of at most 20" in lab.output(job)


@once_more
def test_restarts_have_a_limit(lab):
    job = lab.submit(TRAIN, "mpich", "srun", MAX_RESTARTS=0, **ENDLESS)
    lab.until(lambda: lab.trains(job), job)
    lab.call("scancel", "--batch", "--signal=USR1", job)
    assert "after 0 restarts" in lab.failed(job)
