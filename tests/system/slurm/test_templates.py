"""The job templates under each launcher, and what the README says of them.

Each template with each MPI library, under one launcher of it. MPICOLL_TEST_ALL=1: under all launchers.
"""

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.launching import ROOT
from tests.support.recipes import NO_REFRAME, REFRAME, install_program, reframe
from tests.support.slurm_lab import (
    ALL,
    BENCH,
    CASES,
    CHECK,
    DOCTOR,
    EACH,
    FOUND,
    GPU,
    JOBS,
    LONG,
    SHORT,
    TORCH,
    TRAIN,
    TUNE,
    instead,
    once_more,
)
from tests.support.torch_backend import require_torch

pytestmark = pytest.mark.thorough
SHOW = """
import os
from mpi4py import MPI
seen = MPI.COMM_WORLD.gather((MPI.Get_processor_name(), os.environ.get("CUDA_VISIBLE_DEVICES")))
if seen:
    with open(os.environ["DONE"], "w") as file:
        print(*(f"{host}:{devices}" for host, devices in seen), f"launcher:{os.environ['LAUNCHER']}", file=file)
"""


@EACH
@once_more
def test_train(lab, name, launcher):
    for job in [lab.submit(template, name, launcher, **SHORT[template]) for template in (TRAIN, GPU)]:
        results = lab.completed(job)
        document = json.loads((results / "result.json").read_text())
        assert document["test_accuracy"] > 0.95 and document["environment"]["ranks_per_node"] == [2, 2, 2, 2]
        assert (results / "done").read_text() and list((results / "checkpoint").glob("step-*"))
        assert "restart 0 of at most 20, on host[0-3]" in lab.output(job)


@EACH
@once_more
def test_bench(lab, name, launcher):
    results = lab.completed(lab.submit(BENCH, name, launcher, **SHORT[BENCH]))
    rows = json.loads((results / "bench.json").read_text())["results"]
    assert {row["algorithm"] for row in rows} == {"native", "ring", "circulant"} and not any(row["wrong"] for row in rows)
    assert "circulant" in (results / "bench.txt").read_text() and (results / "bench.svg").stat().st_size


@EACH
@once_more
def test_tune(lab, name, launcher):
    results = lab.completed(lab.submit(TUNE, name, launcher, **SHORT[TUNE]))
    entries = json.loads((results / "tuned.json").read_text())["entries"]
    assert sorted((entry["ranks"], entry["nodes"]) for entry in entries) == [(4, 2), (6, 3)]


@EACH
@once_more
def test_doctor(lab, name, launcher):
    """Hosts that share a few cores may be found slow: then the job fails, and has its results all the same."""
    job = lab.submit(DOCTOR, name, launcher)
    (state,) = lab.ended(job)
    results = lab.results(job)
    page = (results / "doctor.txt").read_text()
    assert re.search("^examined +8 ranks on 4 nodes, ", page, re.MULTILINE), lab.output(job)
    faults = re.search("^(slow|wrong) ", page, re.MULTILINE)
    assert state["JobState"] == ("FAILED" if faults else "COMPLETED"), lab.output(job)
    assert json.loads((results / "doctor.json").read_text())["environment"]["ranks_per_node"] == [2, 2, 2, 2]
    assert (results / "doctor.svg").stat().st_size
    model = results / "model.json"
    words = ("simulate", "allreduce", "--size", 16, "--bytes", "1M", "--network", model)
    assert "circulant" in lab.call(FOUND[name].python, "-m", "mpicoll", *words)


@pytest.mark.skipif(REFRAME is None, reason=NO_REFRAME)
@once_more
def test_reframe_runs_the_checks_as_jobs(lab):
    programs = install_program(lab.directory / "prefix")
    path = f"{programs}:{os.environ['PATH']}"
    reframe("slurm.py", lab.directory / "checks", "-J", "nodes=2", "-S", "ranks=4", call=lab.call, PATH=path)


@EACH
@once_more
def test_train_torch(lab, name, launcher):
    """PyTorch's own data parallelism on the backend, where PyTorch is installed beside that MPI."""
    require_torch(FOUND[name])
    script = lab.directory / "mine.py"
    script.write_text(f"from tests.support.torch_backend.trainings import main; main({['ddp']!r})\n")
    results = lab.completed(lab.submit(TORCH, name, launcher, SCRIPT=script, OMP_NUM_THREADS=1))
    assert (results / "done").read_text() == "ddp on 8 ranks\n"


@once_more
def test_gpu_check(lab):
    """Every part on 2 and 4 ranks of a node, and all logs; a part that fails is told, and keeps no other from running."""
    jobs = [lab.submit(CHECK, *case, **SHORT[CHECK]) for case in (CASES if ALL else (CASES[0], CASES[-1]))]
    bad = lab.submit(CHECK, *CASES[0], **{**SHORT[CHECK], "RANKS": 2, "TESTS": "tests/mpi/nothing.py"})
    for results in map(lab.completed, jobs):
        for ranks in (2, 4):
            where = json.loads((results / f"info-{ranks}.json").read_text())["environment"]
            assert where["ranks_per_node"] == [ranks]
            assert "passed" in (results / f"tests-{ranks}.txt").read_text()
            rows = json.loads((results / f"gpu-{ranks}.json").read_text())["results"]
            assert {row["name"] for row in rows} == {"staged", "by hand", "host"} and not any(row["wrong"] for row in rows)
    said = lab.failed(bad)
    assert "failed: tests-2" in said and (lab.results(bad) / "gpu-2.json").exists()


@once_more
def test_the_launcher_is_found_out(lab):
    script = instead(lab.directory, TRAIN, SHOW, setup="export LAUNCHER")
    found = {lab.submit(script, min(FOUND), "auto"): "srun", lab.submit(script, max(FOUND), "auto", PMI="nothing"): "mpirun"}
    for job, launcher in found.items():
        assert f"launcher:{launcher}" in (lab.completed(job) / "done").read_text()


@once_more
def test_scaling(lab):
    name = next(reversed(FOUND))
    lab.call(JOBS / "scaling.sh", "--ntasks-per-node=1", VENV=Path(FOUND[name].python).parents[1],
             DATA="synthetic:500,64,10", LENGTH="--steps 5", BATCH_SIZE=64)  # fmt: skip
    table = lab.directory / "scaling" / "table.txt"
    lab.until(lambda: table.exists() and not lab.call("squeue", "--noheader"))
    rows = [line.split() for line in table.read_text().splitlines()]
    strong, weak = ([(kind, str(nodes), str(64 * nodes if kind == "weak" else 64)) for nodes in (1, 2, 3, 4)]
                    for kind in ("strong", "weak"))  # fmt: skip
    assert [(row[0], row[1], row[3]) for row in rows[1:]] == strong + weak, table.read_text()
    assert (lab.directory / "scaling" / "scaling.svg").stat().st_size


@once_more
def test_gpus_reach_the_ranks(lab):
    """Under srun each rank sees one of its own; else those of the node, of which it takes that with its local number."""
    script = instead(lab.directory, GPU, SHOW, setup="export LAUNCHER")
    for job, (_, launcher) in lab.everywhere(script).items():
        seen = (lab.completed(job) / "done").read_text().split()
        each = ("0", "1") if launcher == "srun" else ("0,1", "0,1")
        assert seen == [*(f"host{host}:{devices}" for host in range(4) for devices in each), f"launcher:{launcher}"]


@once_more
def test_the_commands_of_the_readme(lab):
    """All but the first, which needs a network, and the last, which never ends."""
    block = re.search(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    commands = block[1].splitlines()
    assert len(commands) == 5 and "pip install" in commands[0]
    (lab.directory / ".venv").symlink_to(Path(FOUND["mpich"].python).parents[1])
    said = [lab.call("bash", "-c", command, DATA=LONG["DATA"]) for command in commands[1:4]]
    results = lab.completed(re.search(r"Submitted batch job (\d+)", said[2])[1])
    result = json.loads((results / "result.json").read_text())
    assert result["environment"]["ranks_per_node"] == [2, 2, 2, 2] and len(result["epochs"]) == 15


@once_more
def test_sbatch_accepts_and_check_finds_nothing(lab):
    for script in sorted(JOBS.glob("*.sbatch")):
        lab.call("sbatch", "--test-only", script)
        lab.call(FOUND["mpich"].python, "-m", "mpicoll", "slurm", "check", script)
    lab.call(FOUND["mpich"].python, "-m", "mpicoll", "slurm", "new", "bench", "--nodes", 300)
    script = lab.directory / "bench.sbatch"
    said = lab.call(FOUND["mpich"].python, "-m", "mpicoll", "slurm", "check", script, check=False)
    assert "sbatch refuses it" in said and "1 mistake found" in said
