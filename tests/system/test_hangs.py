"""Jobs that hang: they end by themselves, with an error that says who waits for whom. Real processes, stopped and killed."""

import os
import re
import signal
import subprocess

import pytest

from tests.support.each import ALL, EACH, ONE, OTHER
from tests.support.launching import ROOT, environment, installations, mpiexec

STUCK = "tests.support.stuck"
#: how rank 0 says that it waits; a rank that ends the job may be quicker than its own message
WAITS = r"no progress for \d+\.\d s in call 3, Allreduce of 800000 bytes"

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)


def stuck(installation, scenario, algorithm="ring", *, check=False, **environ):
    return mpiexec(installation, 3, scenario, algorithm, module=STUCK, check=check,
                   **{"MPICOLL_TIMEOUT": "1", **environ})  # fmt: skip


@EACH
def test_a_rank_that_computes(installation):
    waits_for_a_rank_that_computes(stuck(installation, "compute"))


@OTHER
def test_ranks_without_threads_know_of_each_other_by_their_reports(installation, tmp_path):
    """Also where the limit is shorter than the second between two of them."""
    output = stuck(installation, "funneled", MPICOLL_REPORT=str(tmp_path), MPICOLL_TIMEOUT="0.3")
    waits_for_a_rank_that_computes(output)


def waits_for_a_rank_that_computes(output):
    assert "CollectiveTimeout" in output and re.search(WAITS, output), output
    assert re.search(r"Allreduce \(ring\): round \d of 4, waiting to (send|receive) \d+ bytes (to|from) rank \d", output)
    assert re.search(r"Rank 1 is in no collective but at \S+stuck.py:\d+; its last was call 2 of .*Bcast", output), output
    assert "So the others wait for rank 1, which made no such call." in output
    assert "done" not in output


@ONE
def test_a_rank_that_is_stopped(installation):
    output = stuck(installation, "stopped")
    assert "Rank 1 did not answer: dead, stopped, or cut off" in output and "waits for rank 1." in output, output


@OTHER
def test_a_rank_in_another_call_that_was_met_before(installation):
    """It is not compared again: the messages of both calls do not meet, and the limit of waiting ends them."""
    output = stuck(installation, "other")
    assert "CollectiveTimeout" in output and "So ranks are in different calls" in output, output
    assert re.search(r"Rank 1 in call 3 of \S+ \S+ Bcast of 800000 bytes at \S+stuck.py:\d+", output), output
    assert "done" not in output


@EACH
def test_a_call_of_mpis_own(installation):
    output = stuck(installation, "compute", "native")
    assert re.search(WAITS, output) and "MPI's own call cannot be interrupted: the job ends" in output, output
    assert "So the others wait for rank 1" in output


@ONE
@pytest.mark.parametrize("kind", ["begun", "plan"])
def test_requests_and_plans_that_mpi_serves_alone(installation, kind):
    """They hung in MPI, where nobody saw them. MPICOLL_TEST_ALL: under each MPI."""
    is_told(installation, kind)


@OTHER
def test_mpi4pys_own_collectives(installation):
    """They hung in MPI as well. MPICOLL_TEST_ALL: under each MPI."""
    is_told(installation, "objects")


def is_told(installation, kind):
    output = stuck(installation, "compute", kind)
    assert re.search(r"no progress for \d+\.\d s in call \d, ", output) and "So the others wait for rank 1" in output, output
    assert "done" not in output


@ONE
def test_only_reported(installation):
    output = stuck(installation, "late", check=True, MPICOLL_ON_TIMEOUT="report")
    assert re.search(WAITS, output) and output.count("done") == 3, output


@OTHER
def test_reports_of_a_job_that_was_killed(installation, tmp_path):
    stuck(installation, "killed", MPICOLL_TIMEOUT="0", MPICOLL_REPORT=str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [f"rank-{rank:05d}.json" for rank in range(3)]
    said = diagnosis(installation, tmp_path)
    assert said.returncode == 0 and re.search(r"So (the others wait for )?rank 1\b", said.stdout.splitlines()[-1]), said


def diagnosis(installation, folder):
    return subprocess.run([installation.python, "-m", "mpicoll", "diagnose", str(folder)], cwd=ROOT, text=True,
                          env=environment(), capture_output=True)  # fmt: skip


def test_reports_of_a_job_that_ended_well(tmp_path):
    output = stuck(installations()[0], "late", check=True, MPICOLL_TIMEOUT="0", MPICOLL_REPORT=str(tmp_path))
    assert output.count("done") == 3 and not list(tmp_path.glob("*.died"))
    assert diagnosis(installations()[0], tmp_path).stdout.startswith("Ranks 0, 1, 2 came to the end of the program.")


@pytest.mark.parametrize("left", [None, "", "{", "[]", '{"schema": 2}', "[" * 100_000])
def test_reports_that_are_none(left, tmp_path):
    if left is not None:
        (tmp_path / "rank-00000.json").write_text(left)
    said = diagnosis(installations()[0], tmp_path)
    assert said.returncode == 2 and said.stderr.startswith("mpicoll diagnose: error: ") and said.stderr.count("\n") == 1


@ONE
def test_a_signal_prints_where_a_live_job_is(installation):
    command = [installation.mpiexec, "-n", "2", installation.python, "-m", STUCK, "compute", "native"]
    job = subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    output, pids = "", {}

    def read():
        line = job.stdout.readline()
        assert line, f"the job ended early\n{output}"
        return line

    try:
        while len(pids) < 2:
            output += (line := read())
            pids.update(re.findall(r"pid of rank (\d) (\d+)", line))
        while "Rank 0 in call 3" not in output:  # which begins just now
            os.kill(int(pids["0"]), signal.SIGUSR2)
            while "<module>" not in (line := read()):  # the last one of what a signal prints
                output += line
            output += line
    finally:
        job.terminate()  # mpiexec ends its ranks, which a SIGKILL would not let it do
        output += job.communicate()[0]
    assert re.search(r"mpicoll: rank 0:\nRank 0 in call 3 of communicator \S+ Allreduce of 800000 bytes at \S+stuck", output)
    assert re.search(r'File "\S+stuck.py", line \d+ in <module>', output)


@EACH
@pytest.mark.parametrize("sign", ["alarm", "interrupt"] if ALL else ["alarm"])
def test_a_handler_that_raises_in_a_collective(installation, sign):
    """On all ranks the call ends with an error; what MPI may still write to is left alone, and the program goes on."""
    output = mpiexec(installation, 3, sign, module="tests.support.interrupted")
    assert output.count("done") == 3 and output.count("refused: this communicator cannot be used any more") == 3, output
    assert re.search(f"rank 1 {'Interrupted' if sign == 'alarm' else 'KeyboardInterrupt'}", output), output
    assert output.count("CollectiveTimeout") == 2, output
