"""ELASTIC: jobs that go on when a rank is killed or a node is lost, without a way back through the queue."""

import json

import pytest

from tests.support.slurm_lab import ENDLESS, FOUND, JOBS, LONG, TRAIN, instead, once_more

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif("openmpi" not in FOUND, reason="lost ranks are survived with Open MPI only, and none is here"),
]
DEATHS = [[0, "mpicoll.train.parallel.optimizer_step:Update._apply", 20]]
#: on four ranks it waits for one of its nodes to be lost, on fewer it is done, and may stay nevertheless
WAIT = """
import os, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.allreduce(1) == 4:
    open(os.environ["OUT"] + "/waits", "w").close()
    time.sleep(1000)
if comm.rank == 0:
    with open(os.environ["DONE"], "w") as file:
        print(*range(comm.size), file=file)
time.sleep(float(os.environ.get("STAYS", 0)))
"""
SHAPE = ["--nodes=2", "--ntasks-per-node=2", "--no-kill"]


def waiting(lab, hosts, elastic=1, **settings):
    """A job that waits for the loss of a node."""
    script = instead(lab.directory, TRAIN, WAIT, setup="export OUT")
    return lab.submit(script, "openmpi", "mpirun", [*SHAPE, f"--nodelist={hosts}"], ELASTIC=elastic, **settings)


def lose(lab, host, *jobs):
    """When all these wait, let SLURM take a node from its jobs."""
    lab.until(lambda: all(list(lab.directory.glob(f"*-{job}/waits")) for job in jobs), *jobs)
    lab.call("scontrol", "update", f"nodename={host}", "state=down", "reason=test")


@once_more
def test_a_killed_rank_a_lost_node_and_what_cannot_go_on(lab):
    dying = lab.directory / "dying.sbatch"
    command = f"python -m benchmarks.run.dying '{json.dumps(DEATHS)}' mpicoll train"
    dying.write_text(TRAIN.read_text().replace("python -m mpicoll train", command))
    settings = {**LONG, "LENGTH": "--steps 40", "ELASTIC": 1, "JOBS": JOBS}
    killed = lab.submit(dying, "openmpi", "auto", [*SHAPE, "--nodelist=host[0-1]"], **settings)
    lost = waiting(lab, "host[2-3]")
    refused = lab.submit(TRAIN, "openmpi", "srun", SHAPE, **settings)
    lose(lab, "host3", lost)
    result = json.loads((lab.completed(killed) / "result.json").read_text())
    assert len(result["losses"]) == 40 and [one["ranks"] for one in result["report"]["recoveries"]] == [3]
    assert (lab.completed(lost) / "done").read_text() == "0 1\n"
    assert "nodes were lost: begins again on 1, from the last checkpoint" in lab.output(lost)
    assert {lab.states()[job]["Restarts"] for job in (killed, lost)} == {"0"}
    assert "which ends all ranks when one dies. Use Open MPI and LAUNCHER=mpirun" in lab.failed(refused)


@once_more
def test_too_few_nodes_or_a_warning_means_a_requeue(lab):
    lost = waiting(lab, "host[2-3]", elastic=2)
    warned = lab.submit(TRAIN, "openmpi", "mpirun", [*SHAPE, "--nodelist=host[0-1]"], ELASTIC=1, **ENDLESS)
    lose(lab, "host3", lost)
    lab.until(lambda: lab.trains(warned), warned)
    lab.call("scancel", "--batch", "--signal=USR1", warned)
    lab.until(lambda: lab.output(warned).count("resumed from") == 1, warned)
    lab.until(lambda: "ranks           4 on 2 nodes" in lab.output(lost).partition("restart 1 of")[2], lost)
    assert "nodes were lost, 1 left: requeued" in lab.output(lost)
    assert "time is nearly up, a checkpoint is written: requeued" in lab.output(warned)


@once_more
def test_a_node_that_is_cut_off_and_one_that_has_the_script(lab, cluster):
    jobs = [waiting(lab, hosts, STAYS=1000) for hosts in ("host[0-1]", "host[2-3]")]
    lab.until(lambda: all(list(lab.directory.glob(f"*-{job}/waits")) for job in jobs), *jobs)
    cluster.cut("host1")
    cluster.crash("host2")
    assert (lab.completed(jobs[0]) / "done").read_text() == "0 1\n"
    lab.until(lambda: lab.states()[jobs[1]]["JobState"] == "PENDING", *jobs)
    for host in ("host1", "host2"):
        cluster.crash(host)
        cluster.boot(host)
    lab.until(lambda: "restart 1 of" in lab.output(jobs[1]), *jobs)
