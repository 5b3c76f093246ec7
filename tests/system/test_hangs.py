"""Jobs that hang: they end by themselves, with an error that says who waits for whom. Real processes, stopped and killed."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from tests.support.each import ALL, EACH, ONE, OTHER
from tests.support.launching import PATIENCE, environment, installations, mpiexec

STUCK = "tests.support.stuck"
#: how rank 0 says that it waits; a rank that ends the job may be quicker than its own message
WAITS = r"no progress for \d+\.\d s in call 3, Allreduce of 800000 bytes"

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)


def stuck(installation, scenario, algorithm="ring", *, check=False, **environ):
    return mpiexec(installation, 3, scenario, algorithm, module=STUCK, check=check,
                   **{"MPICOLL_TIMEOUT": "1", **environ})  # fmt: skip


#: what is said before the calls by which ranks went apart: by the error of all of them, or by that of a limit
FIRST = (r"The first call that (they do not have in common|"
         r"ranks do not have in common is call \d+ of communicator \S+):\n")  # fmt: skip


@EACH
def test_a_rank_that_computes(installation):
    waits_for_a_rank_that_computes(stuck(installation, "compute"))


@pytest.mark.thorough
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


@pytest.mark.thorough
@ONE
def test_a_rank_that_is_stopped(installation):
    output = stuck(installation, "stopped")
    assert "Rank 1 did not answer: dead, stopped, or cut off" in output and "waits for rank 1." in output, output


@pytest.mark.thorough
@OTHER
def test_a_rank_in_another_call_that_was_met_before(installation):
    """It is not compared again: a message of the other call shows it, or on a busy machine the limit of waiting."""
    output = stuck(installation, "other")
    calls = (r"  ranks 0, 2: Allreduce of 800000 bytes, SUM, float64 at \S+stuck.py:\d+\n"
             r"  rank 1: Bcast of 800000 bytes, root 0 at \S+stuck.py:\d+\n")  # fmt: skip
    assert re.search(f"{FIRST}{calls}", output), output
    assert "done" not in output


@ONE
def test_the_first_call_that_was_left_out(installation, tmp_path):
    """The ranks went on after it, for it was one of MPI's; a message of the next schedule shows it, before the limit."""
    output = stuck(installation, "left_out", MPICOLL_REPORT=str(tmp_path))
    said = diagnosis(installation, tmp_path, "--calls", "3").stdout
    calls = (r"  ranks 0, 2: Bcast of 8 bytes, root 0 at \S+stuck.py:\d+\n"
             r"  rank 1: Allreduce of 800000 bytes, SUM, float64 at \S+stuck.py:\d+\n")  # fmt: skip
    assert re.search(f"{FIRST}{calls}", output), output
    head = r"The first call that ranks do not have in common is call 4 of communicator \S+:\n"
    assert re.search(head + calls, said), said
    assert "So rank 1 went apart from the others at call 4 of communicator" in said, said
    assert re.search(r"Rank 0, its last calls:\n.*\n.* Bcast of 8 bytes, root 0 by MPI at \S+\n"
                     r".* by Allreduce \(ring\) at \S+\n", said), said  # fmt: skip


@EACH
def test_a_call_of_mpis_own(installation):
    output = stuck(installation, "compute", "native")
    assert re.search(WAITS, output) and "MPI's own call cannot be interrupted: the job ends" in output, output
    assert "So the others wait for rank 1" in output


@pytest.mark.thorough
@ONE
@pytest.mark.parametrize("kind", ["begun", "plan"])
def test_requests_and_plans_that_mpi_serves_alone(installation, kind):
    """They hung in MPI, where nobody saw them. MPICOLL_TEST_ALL: under each MPI."""
    is_told(installation, kind)


@pytest.mark.thorough
@OTHER
def test_mpi4pys_own_collectives(installation):
    """They hung in MPI as well. MPICOLL_TEST_ALL: under each MPI."""
    is_told(installation, "objects")


@pytest.mark.thorough
@ONE
def test_a_request_of_mpis_own_whose_call_was_neither_compared_nor_met_before(installation):
    is_told(installation, "first", MPICOLL_CHECK="off")


@pytest.mark.thorough
@OTHER
@pytest.mark.parametrize("method", ["Barrier", "Exscan", "Alltoallw", "Neighbor_alltoall"])
def test_mpis_own_barriers_scans_and_exchanges(installation, method):
    assert method in is_told(installation, method)


def is_told(installation, kind, **environ):
    output = stuck(installation, "compute", kind, **environ)
    assert re.search(r"no progress for \d+\.\d s in call \d, ", output) and "So the others wait for rank 1" in output, output
    assert "done" not in output
    return output


@pytest.mark.thorough
@ONE
def test_only_reported(installation):
    output = stuck(installation, "late", check=True, MPICOLL_ON_TIMEOUT="report")
    assert re.search(WAITS, output) and output.count("done") == 3, output


@pytest.mark.thorough
@OTHER
def test_reports_of_a_job_that_was_killed(installation, tmp_path):
    stuck(installation, "killed", MPICOLL_TIMEOUT="0", MPICOLL_REPORT=str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [f"rank-{rank:05d}.json" for rank in range(3)]
    said = diagnosis(installation, tmp_path)
    assert said.returncode == 0 and re.search(r"So (the others wait for )?rank 1\b", said.stdout.splitlines()[-1]), said


def diagnosis(installation, folder, *options):
    return subprocess.run([installation.python, "-m", "mpicoll", "diagnose", str(folder), *options], text=True,
                          env=environment(), capture_output=True)  # fmt: skip


@pytest.mark.thorough
def test_reports_of_a_job_that_ended_well(tmp_path):
    output = stuck(installations()[0], "late", check=True, MPICOLL_TIMEOUT="0", MPICOLL_REPORT=str(tmp_path))
    assert output.count("done") == 3 and not list(tmp_path.glob("*.died"))
    assert diagnosis(installations()[0], tmp_path).stdout.startswith("Ranks 0, 1, 2 came to the end of the program.")


@pytest.mark.thorough
@pytest.mark.parametrize("left", [None, "", "{", "[]", '{"schema": 2}', "[" * 100_000])
def test_reports_that_are_none(left, tmp_path):
    if left is not None:
        (tmp_path / "rank-00000.json").write_text(left)
    said = diagnosis(installations()[0], tmp_path)
    assert said.returncode == 2 and said.stderr.startswith("mpicoll diagnose: error: ") and said.stderr.count("\n") == 1


@pytest.mark.thorough
@ONE
def test_a_signal_prints_where_a_live_job_is(installation):
    command = [installation.mpiexec, "-n", "2", installation.python, "-m", STUCK, "compute", "native"]
    job = subprocess.Popen(command, env=environment(), text=True, stdin=subprocess.DEVNULL,
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
        while not re.search("Rank 0 in call 3 .*: Allreduce", output):  # which begins just now
            os.kill(int(pids["0"]), signal.SIGUSR2)
            while "<module>" not in (line := read()):  # the last one of what a signal prints
                output += line
            output += line
    finally:
        job.terminate()  # mpiexec ends its ranks, which a SIGKILL would not let it do
        output += job.communicate()[0]
    assert re.search(r"mpicoll: rank 0:\nRank 0 in call 3 of communicator \S+ Allreduce of 800000 bytes, SUM, \S+ at \S+stuck",
                     output)  # fmt: skip
    assert re.search(r'File "\S+stuck.py", line \d+ in <module>', output)


@ONE
@pytest.mark.parametrize("before", [
    "", "sys.modules['mpicoll._engine'] = None",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)); "
    "files = [open('/dev/null') for _ in range(1100)]",
], ids=["", "no extension", "many files"])  # fmt: skip
def test_many_signals_end_no_job(installation, before):
    """Each print is whole. A handler that walked the stack that it interrupts crashed where a property was being read."""
    code = f"import sys; {before}" + """
import os, signal, subprocess, sys, time
import mpicoll
from mpi4py import MPI
class Any: one = property(lambda self: 1)
comm = mpicoll.Communicator(MPI.COMM_WORLD)
signals = f"import os, time\\nfor _ in range(2000): os.kill({os.getpid()}, {signal.SIGUSR2:d}); time.sleep(.0005)"
other = subprocess.Popen([sys.executable, "-S", "-c", signals])
while other.poll() is None: [Any().one for _ in range(1000)]
"""
    done = subprocess.run([installation.python, "-c", code], text=True, capture_output=True, env=environment())
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    said = done.stderr.split("mpicoll: rank 0:\n")[1:-2]  # the program may end before it prints the last ones
    assert said and all(len(re.findall("line [89] in <module>\n", text)) == 1 for text in said), said


@EACH
def test_what_a_program_leaves_over(installation):
    """Requests never waited for, plans and communicators never freed: listed at the end where all calls are checked."""
    output = mpiexec(installation, 2, module="tests.support.left_over", MPICOLL_CHECK="always")
    said = re.findall(r"mpicoll: rank (\d), at the end of the program: (.*)", output)
    assert output.count("done") == 2 and {rank for rank, _ in said} == {"1"} and len(said) == 3, output
    for text in (r"communicator \S+, made at \S+left_over.py:10 and never freed",
                 r"Iallreduce of 8000 bytes, begun at \S+left_over.py:11 and never waited for",
                 r"Allreduce_init of 8000 bytes, SUM, float64, made at \S+left_over.py:11 and never freed"):  # fmt: skip
        assert any(re.fullmatch(text, line) for _, line in said), output
    output = mpiexec(installation, 2, module="tests.support.left_over")
    assert "at the end of the program" not in output, output


@EACH
@pytest.mark.parametrize("strategy", ["allreduce", "zero1"])
def test_a_training_leaves_nothing_over(installation, strategy):
    """The communicators that it makes for itself are freed with it."""
    options = {"strategy": strategy, "compression": "int8", "error_feedback": True, "algorithm": "pairwise"}
    output = mpiexec(installation, 2, json.dumps(options), module="tests.support.left_by_training", MPICOLL_CHECK="always")
    assert output.count("done") == 2 and "at the end of the program" not in output, output


@ONE
def test_the_live_view(installation, tmp_path):
    """By the folder of its reports, and by the number of a process of the job."""
    command = [installation.mpiexec, "-n", "2", installation.python, "-m", STUCK, "compute", "ring"]
    env = environment(MPICOLL_TIMEOUT="0", MPICOLL_REPORT=str(tmp_path))
    job = subprocess.Popen(command, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           start_new_session=True)  # fmt: skip
    shown, until = "", time.monotonic() + PATIENCE
    waits = re.compile(r"(?m)^ +0 .* in Allreduce of 800000 bytes, \S+ \S+ at stuck.py:\d+, waits for rank 1$")
    try:
        # before that a rank may have told where it is and not have come to its call, or have told nothing
        while not (waits.search(shown) and "others wait for rank 1" in shown) and time.monotonic() < until:
            shown = top(installation, tmp_path)
        assert waits.search(shown), shown
        assert re.search(r"(?m)^ +1 .* at stuck.py:\d+$", shown) and "So the others wait for rank 1" in shown, shown
        assert "waits for rank 1" in top(installation, json.loads((tmp_path / "rank-00000.json").read_text())["pid"])
        assert "without MPICOLL_REPORT" in top(installation, os.getpid())
    finally:
        job.terminate()
        job.communicate()


def top(installation, job):
    done = subprocess.run([installation.python, "-m", "mpicoll", "top", str(job), "--once"], text=True,
                          env=environment(), capture_output=True)  # fmt: skip
    return done.stdout + done.stderr


@EACH
@pytest.mark.parametrize("sign", ["alarm", "interrupt"] if ALL else ["alarm"])
def test_a_handler_that_raises_in_a_collective(installation, sign):
    """On all ranks the call ends with an error; what MPI may still write to is left alone, and the program goes on."""
    output = mpiexec(installation, 3, sign, module="tests.support.interrupted")
    assert output.count("done") == 3 and output.count("refused: this communicator cannot be used any more") == 3, output
    assert re.search(f"rank 1 {'Interrupted' if sign == 'alarm' else 'KeyboardInterrupt'}", output), output
    assert output.count("refused: this communicator cannot be used any more: rank 1 gave this communicator up") == 2, output
