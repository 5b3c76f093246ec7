"""Jobs on a virtual cluster with SLURM: settings that make them short, what became of them."""

import functools
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.each import ALL
from tests.support.launching import PATIENCE, ROOT, environment, installations

JOBS = ROOT / "jobs"
TRAIN, GPU, BENCH, TUNE, CHECK, DOCTOR, TORCH = (
    JOBS / f"{name}.sbatch" for name in ("train_cpu", "train_gpu", "bench", "tune", "gpu_check", "doctor", "train_torch")
)  # fmt: skip
#: the launchers of each MPI; without a daemon of its own (srun), and with one
MODES = {"mpich": ("srun", "mpiexec"), "intelmpi": ("srun", "mpirun"), "openmpi": ("srun", "mpirun")}
FOUND = {installation.name: installation for installation in installations()}
CASES = [(name, launcher) for name in MODES if name in FOUND for launcher in MODES[name]]
#: everything under every launcher, in minutes more; otherwise one of each kind
EACH = pytest.mark.parametrize(("name", "launcher"), CASES if ALL else dict.fromkeys((CASES[0], CASES[-1])))
#: what env.sh says on this cluster: ranks of all hosts share a few cores, so none may keep one for itself; and the
#: addresses of MPICH's other netmod, UCX, are too long for SLURM's pmi2
SITE = {"PRTE_MCA_hwloc_default_binding_policy": "none", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self",
        "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}  # fmt: skip
#: settings under which a template is done in seconds
SHORT = {
    TRAIN: {"LENGTH": "--epochs 4", "STRATEGY": "zero1"},
    GPU: {"LENGTH": "--epochs 4", "STRATEGY": "parameter_server", "DEVICE": "cpu"},
    BENCH: {"ALGORITHMS": "ring,circulant", "SIZES": "4K:16K", "OPTIONS": "--repeats 2"},
    CHECK: {"DEVICE": "cpu", "SOURCE": ROOT, "TESTS": "tests/mpi/test_strides.py", "SIZES": "4K"},
    TUNE: {"COUNTS": "2 3", "OPTIONS": "--collectives allreduce --sizes 4K --segments 4K --min-time 0.05"},
}
#: a training that lasts until something happens to it, and has by then written checkpoints
LONG = {"LENGTH": "--steps 2000", "OPTIONS": "--checkpoint-every 50 --hidden 32", "STRATEGY": "zero2",
        "DATA": "synthetic:500,64,10"}  # fmt: skip
ENDLESS = {**LONG, "LENGTH": "--steps 100000000"}


class Lab:
    """A cluster, and jobs on it that run in `directory`."""

    def __init__(self, cluster, directory):
        self.cluster, self.directory = cluster, directory

    def call(self, *command, host="login", check=True, **settings):
        """What a command prints."""
        env = environment(**SITE, **{name: str(value) for name, value in settings.items()})
        del env["PRTE_MCA_rmaps_default_mapping_policy"]  # it would put all ranks on the first host
        done = self.cluster.call(command, host, cwd=self.directory, env=env, text=True, timeout=PATIENCE,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    def everywhere(self, script, *options, **settings):
        """The same job under each MPI and launcher, all at once: {job: (name, launcher)}."""
        return {self.submit(script, *case, options, **settings): case for case in CASES}

    def submit(self, script, name=None, launcher="auto", options=(), **settings):
        """Start a job under this MPI and launcher; returns its number."""
        venv = {"VENV": Path(FOUND[name].python).parents[1]} if name else {}
        return self.call("sbatch", "--parsable", *options, script, LAUNCHER=launcher, **{**venv, **settings}).strip()

    def states(self):
        """{job: {field: value}} of what SLURM knows."""
        said = self.call("scontrol", "--oneliner", "show", "job")
        fields = (dict(re.findall(r"(JobId|JobState|ExitCode|Restarts)=(\S+)", line)) for line in said.splitlines())
        return {found.pop("JobId"): found for found in fields if found}

    def until(self, condition, *jobs, limit=PATIENCE):
        """Wait for what must come."""
        end = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < end, "\n".join(f"{job}: {self.states().get(job)}\n{self.output(job)}" for job in jobs)
            time.sleep(0.3)

    def ended(self, *jobs):
        """The states of jobs, when they are over."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
        self.until(lambda: {self.states()[job]["JobState"] for job in jobs} <= over, *jobs)
        return [self.states()[job] for job in jobs]

    def output(self, job):
        return "".join(path.read_text() for path in self.directory.glob(f"*-{job}.out"))

    def results(self, job):
        """The directory of what it made."""
        return next(path for path in self.directory.glob(f"*-{job}") if path.is_dir())

    def completed(self, job):
        """Its results, which it must have."""
        (state,) = self.ended(job)
        assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), self.output(job)
        return self.results(job)

    def failed(self, job):
        """What it said; it must have failed, at once and for good."""
        (state,) = self.ended(job)
        assert (state["JobState"], state["Restarts"]) == ("FAILED", "0"), f"{state}\n{self.output(job)}"
        return self.output(job)

    def clear(self):
        """End all jobs, and keep nothing of them."""
        self.call("scancel", "--user=root")
        self.until(lambda: not self.call("squeue", "--noheader"))
        shutil.rmtree(self.directory)
        self.directory.mkdir()

    def trains(self, job):
        """Whether it is in the midst of its steps: two checkpoints are there."""
        return len(list(self.directory.glob(f"*-{job}/checkpoint/step-*"))) > 1


def once_more(test):
    """Repeat a test that met a fault of Open MPI 5.0.11, rare and not ours.

    It may crash in MPI_Init (open-mpi/ompi#12495), prterun may hang after it has said that it ended an aborted job, and its
    daemons may not start on a host that has just come back.
    """
    faults = re.compile("mca_pml_ob1_recv_frag_callback_match|RUNNING.*prterun has exited due to process"
                        "|srun returned non-zero exit status .* from launching", re.DOTALL)  # fmt: skip

    @functools.wraps(test)
    def repeated(lab, **arguments):
        try:
            test(lab, **arguments)
        except AssertionError as error:
            if not faults.search(str(error)):
                raise
            lab.clear()
            test(lab, **arguments)

    return repeated


def instead(directory, template, program, setup=""):
    """A template that runs another program, written to a directory with what it reads."""
    text = re.sub(r"\nrun .*", "", template.read_text(), flags=re.DOTALL)
    (directory / "program.py").write_text(program)
    for name in ("launch.sh", "env.sh"):
        shutil.copy(JOBS / name, directory)
    script = directory / template.name
    script.write_text(f"{text}\n{setup}\nrun python program.py\n")
    return script
