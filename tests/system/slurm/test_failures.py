"""Jobs in which something is wrong: they end at once, for good, and say why."""

import re
from pathlib import Path

import numpy
import pytest

from tests.support.slurm_lab import ALL, CASES, EACH, ENDLESS, FOUND, LONG, TRAIN, instead, once_more

pytestmark = pytest.mark.thorough
WRONG = [
    ("openmpi", "srun", {"PMI": "none"}, "each is alone in a world of one rank"),
    ("openmpi", "srun", {"PMI": "pmi2"}, "each is alone in a world of one rank"),
    ("mpich", "srun", {"PMI": "none"}, "srun --mpi=pmi2` for MPICH"),
    ("mpich", "srun", {"PMI": "pmix"}, "the ranks did not meet under LAUNCHER=srun. See above"),
    ("mpich", "srun", {"PMI": "nothing"}, "Invalid MPI type 'nothing'"),
    ("mpich", "jsrun", {}, "LAUNCHER=jsrun: no such launcher. Expected auto, srun, mpirun or mpiexec"),
    ("mpich", "srun", {"VENV": "/nowhere"}, "VENV=/nowhere: there is no bin/python, on host0. Make one"),
    ("mpich", "srun", {"DATA": "/nowhere.npz"}, "/nowhere.npz"),
    ("mpich", "srun", {"CHECKPOINT": "/proc/checkpoint"}, "cannot make /proc/checkpoint"),
    ("mpich", "srun", {"OUT": "/proc/results"}, "OUT=/proc/results: cannot be made"),
    ("mpich", "srun", {"STRATEGY": "zero3"}, "expected one of parameter_server, allreduce, zero1, zero2, diloco, got 'zero3'"),
]  # fmt: skip


TRIED = [case for case in (WRONG if ALL else WRONG[::2]) if case[0] in FOUND]


@pytest.mark.parametrize(("name", "launcher", "settings", "message"), TRIED)
@once_more
def test_a_wrong_setting_ends_the_job_before_training(lab, name, launcher, settings, message):
    said = lab.failed(lab.submit(TRAIN, name, launcher, ["--ntasks-per-node=1"], **{**LONG, **settings}))
    assert message in said and said.count("mpicoll: job") <= 2, said  # the greeting, and one error
    assert "test accuracy" not in said


@once_more
def test_data_that_only_one_host_has(lab):
    numpy.savez(lab.directory / "own.npz", features=numpy.ones((40, 3), "f4"), labels=numpy.arange(40) % 2)
    lab.call("cp", "own.npz", "/tmp", host="host0")
    said = lab.failed(lab.submit(TRAIN, next(iter(FOUND)), "srun", ["--ntasks-per-node=1"], DATA="/tmp/own.npz"))
    assert re.search(r"mpicoll train: error: rank (\d) on host\1: /tmp/own.npz: ", said), said


@once_more
def test_a_shape_that_no_node_has_is_refused(lab):
    for options, message in (["--partition=none"], "invalid partition"), (["--ntasks-per-node=9"], "More processors requested"):
        said = lab.call("sbatch", *options, TRAIN, check=False)
        assert message in said and not said.startswith("Submitted")


ALONE = """
import mpicoll
from mpi4py import MPI
mpicoll.Communicator(MPI.COMM_WORLD)
"""


@EACH
@once_more
def test_one_rank_in_an_allocation_of_several_is_fine(lab, name, launcher):
    (lab.directory / "alone.py").write_text(ALONE)
    start = {"srun": "", "mpirun": "mpirun -n 1", "mpiexec": "mpiexec -n 1"}[launcher]
    python = FOUND[name].python
    script = lab.directory / "alone.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --output=alone-%j.out\n"
                      f"PATH={Path(python).parent}:$PATH\n{start} python alone.py\n")  # fmt: skip
    job = lab.submit(script)
    (state,) = lab.ended(job)
    assert state["JobState"] == "COMPLETED", lab.output(job)


RAISES = """
import mpicoll
from mpi4py import MPI
mpicoll.install_abort_hook()
if MPI.COMM_WORLD.rank == 3:
    raise RuntimeError("rank 3 had enough")
MPI.COMM_WORLD.Barrier()
"""


@once_more
def test_an_exception_on_one_rank_ends_the_job(lab):
    for job in lab.everywhere(instead(lab.directory, TRAIN, RAISES), "--ntasks-per-node=1"):
        said = lab.failed(job)
        assert "rank 3 had enough" in said and "All nodes answer, so it is not started again" in said, said


@once_more
def test_a_killed_rank_ends_the_job(lab):
    cases = CASES if ALL else (CASES[0], CASES[-1])
    jobs = [lab.submit(TRAIN, *case, ["--ntasks-per-node=1"], **ENDLESS) for case in cases]
    lab.until(lambda: all(lab.trains(job) for job in jobs), *jobs)
    for job in jobs:
        kill = f"pkill -KILL --oldest --full 'python -m mpicoll train .*-{job}/' || {{ ps ax; exit 1; }}"
        lab.call("sh", "-c", kill, host="host2")
    for job in jobs:
        assert "All nodes answer, so it is not started again" in lab.failed(job)


@once_more
def test_a_cancelled_job_stays_cancelled(lab):
    jobs = [lab.submit(TRAIN, *case, ["--ntasks-per-node=1"], **ENDLESS) for case in (CASES[0], CASES[-1])]
    lab.until(lambda: all(lab.trains(job) for job in jobs), *jobs)
    lab.call("scancel", *jobs)
    lab.until(lambda: not lab.call("squeue", "--noheader"), *jobs)
    for job in jobs:
        state = lab.states()[job]
        assert (state["JobState"], state["Restarts"]) == ("CANCELLED", "0"), lab.output(job)
