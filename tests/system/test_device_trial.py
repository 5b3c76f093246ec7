"""Trials of device pointers in jobs of their own, which may crash and hang: with the stand-in for CuPy, under each MPI."""

import json
import re
import subprocess

import pytest

from tests.support.each import EACH, ONE
from tests.support.launching import PATIENCE, ROOT, environment, installations, mpiexec

COUNTERFEIT = f"{ROOT}:{ROOT / 'tests/support/fakes/counterfeit'}"
TRIAL = """
import json
from mpicoll.gpu import awareness, pointer_trial
from mpicoll.support import child_job
pointer_trial.LIMIT, launcher = {limit}, {launcher!r}
if launcher:
    child_job.own_launcher = lambda: launcher
print(json.dumps([awareness.make_trial(), awareness.last_trial()]))
"""


@pytest.fixture
def state(tmp_path):
    """A function that gives the environment of processes whose CuPy is in a state."""

    def settings(name, **more):
        return {"PYTHONPATH": COUNTERFEIT, "COUNTERFEIT_GPU": name, "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}

    return settings


def trial(installation, settings, limit=90, launcher=None):
    """What a trial says that no job is around, and what is kept of it."""
    code = TRIAL.format(limit=limit, launcher=launcher)
    done = subprocess.run([installation.python, "-c", code], env=environment(**settings), capture_output=True,
                          text=True, timeout=PATIENCE)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    made, kept = json.loads(done.stdout.splitlines()[-1])
    assert made == kept
    return made[:2]


@ONE
@pytest.mark.parametrize(("name", "passed", "words"), [
    ("aware", True, "8 bytes to 1 MiB of device memory arrived right"),
    ("unaware", False, "rank 0: ValueError: received: of a message of 8 bytes 2 numbers are wrong"),
    ("wild", False, "it crashed: Segmentation fault"),
])  # fmt: skip
def test_what_a_trial_finds(installation, state, name, passed, words):
    found, said = trial(installation, state(name))
    assert found is passed and words in said, said


@pytest.mark.thorough
@ONE
def test_a_trial_that_hangs_is_ended(installation, state):
    assert trial(installation, state("stuck"), limit=2) == [False, "not done after 2 s"]


@pytest.mark.thorough
@pytest.mark.skipif(len(installations()) < 2, reason="needs two MPI libraries")
def test_a_launcher_of_another_mpi(state):
    one, other = installations()[:2]
    for installation, launcher in ((one, other.mpiexec), (other, one.mpiexec)):
        found, said = trial(installation, state("aware"), launcher=launcher)
        assert found is False and re.search("expected 2 ranks, got 1: this mpiexec and|unsupported PMI version", said), said


@ONE
@pytest.mark.thorough
def test_in_a_job_info_tries_and_the_next_job_knows(installation, state, tmp_path):
    written = tmp_path / "info.json"
    output = mpiexec(installation, 3, "info", "--gpu", "--json", written, module="mpicoll", **state("aware"))
    facts = json.loads(written.read_text())
    assert facts["gpu_mode"] == "direct" and len(facts["gpus"]) == 1, output
    host = facts["gpus"][0]
    assert host["trial"]["passed"] and [device["ranks"] for device in host["devices"]] == [[0, 2], [1]]
    assert re.search(r"warning: \S+ has 3 ranks on 2 GPUs: they share", output)
    output = mpiexec(installation, 2, "info", module="mpicoll", **state("aware"))
    assert "device memory   direct: the trial of " in output
    output = mpiexec(installation, 2, "info", module="mpicoll", **state("aware", UCX_TLS="tcp,self"))
    assert "device memory   staged: " in output, "a proof over another transport"


@pytest.mark.thorough
@EACH
def test_ranks_that_may_not_share_memory_share_a_host(installation, state):
    """As with MPICH over a UCX that knows CUDA, where each rank is a node to MPI."""
    output = mpiexec(installation, 2, "info", module="mpicoll", **state("aware", MPIR_CVAR_NOLOCAL="1"))
    assert re.search(r"GPU-01\S+, for rank 0\n.*GPU-02\S+, for rank 1\n", output), output


@ONE
@pytest.mark.thorough
def test_direct_is_tried_and_refused_on_all_ranks(installation, state):
    output = mpiexec(installation, 2, "info", module="mpicoll", **state("aware", MPICOLL_GPU="direct"))
    assert "device memory   direct: MPICOLL_GPU=direct" in output
    crashing = state("wild", MPICOLL_GPU="direct", UCX_TLS="tcp,self")  # where the proof is none
    output = mpiexec(installation, 2, module="tests.support.two_refusals", **crashing)
    assert output.count("was told: MPICOLL_GPU=direct: MPI cannot be given device pointers on") == 2, output
    assert output.count("it crashed: Segmentation fault") == 2, output


@pytest.mark.thorough
@ONE
@pytest.mark.parametrize(("name", "words"), [
    ("missing", "needs CuPy"), ("empty", "no CUDA device on"), ("driverless", "no CUDA driver on"),
    ("old", "is for CUDA 12.2, too old for this CuPy"),
])  # fmt: skip
def test_info_ends_with_an_error_without_a_gpu_that_works(installation, state, name, words):
    output = mpiexec(installation, 2, "info", "--gpu", module="mpicoll", check=False, **state(name))
    assert re.search(f"mpicoll info: error: device cuda:? .*{words}", output), output
    assert "GPUs            none: " in output, output
