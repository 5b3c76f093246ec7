"""Jobs that go on after a warning, a crash and a cut link, and know when to give up."""

import json
import re
from itertools import cycle

from tests.support.slurm_lab import CASES, ENDLESS, LONG, TRAIN, once_more


@once_more
def test_jobs_go_on_after_a_warning_a_crash_and_a_cut_link(lab, cluster):
    """With the same losses, to the bit, as without a break; and a job that was warned loses no step."""
    options = [["--nodes=2", f"--nodelist=host[{hosts}]"] for hosts in ("0-1", "2-3", "2-3", "0-1")]
    jobs = {lab.submit(TRAIN, *case, own, **LONG): own[1] for case, own in zip(CASES, cycle(options))}

    def again(restarts):
        """Wait until all have been started so often, and are in the midst of new steps."""
        lab.until(lambda: all(lab.output(job).count("resumed from") == restarts for job in jobs), *jobs)

    def gone(host, pair):
        """Wait until the jobs there have ended, and start the host anew: an operator would, before he gives it work."""
        ended = [job for job, own in jobs.items() if own.endswith(pair)]
        lab.until(lambda: all(lab.states()[job]["JobState"] != "RUNNING" for job in ended), *jobs)
        cluster.crash(host)
        cluster.boot(host)

    lab.until(lambda: all(lab.trains(job) for job in jobs), *jobs)
    for job in jobs:  # as SLURM does when the time limit is near (--signal=B:USR1)
        lab.call("scancel", "--batch", "--signal=USR1", job)
    # while they wait for their old credentials to expire, and on hosts to which nothing will happen
    whole = lab.submit(TRAIN, *CASES[0], ["--nodes=2", "--nodelist=host[0,2]"], **LONG)
    again(1)
    for job in jobs:
        (step,) = re.findall(r"stopped by SIGUSR1 after step (\d+)", lab.output(job))
        assert f"step-{int(step):010d}, step {step}\n" in lab.output(job)
    cluster.crash("host1")
    cluster.cut("host3")
    gone("host1", "[0-1]")
    gone("host3", "[2-3]")
    again(2)
    for job in jobs:
        losses = [json.loads((lab.completed(one) / "result.json").read_text())["losses"] for one in (job, whole)]
        assert losses[0] == losses[1] and lab.states()[job]["Restarts"] == "2"
        assert "restart 2 of at most 20" in lab.output(job)


@once_more
def test_restarts_have_a_limit(lab):
    job = lab.submit(TRAIN, "mpich", "srun", MAX_RESTARTS=0, **ENDLESS)
    lab.until(lambda: lab.trains(job), job)
    lab.call("scancel", "--batch", "--signal=USR1", job)
    assert "after 0 restarts" in lab.failed(job)
