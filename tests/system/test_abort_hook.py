"""`install_abort_hook` in programs: however one rank fails, the job ends by itself, and says so; a normal end stays one.

The hook is the same whatever the end is: the less common ones are tried with one MPI. MPICOLL_TEST_ALL=1: with each.
"""

import re

import pytest

from tests.support.each import EACH, ONE, OTHER
from tests.support.launching import ROOT, mpiexec


#: the failing rank's thread must be there while the main thread waits in a collective
PROGRAM = """
from sys import exit as leave
import argparse, signal, sys, threading, time
from mpi4py import MPI
import mpicoll

mpicoll.install_abort_hook()
mpicoll.install_abort_hook()

def fail():
    raise KeyError("lost my way")

def main():
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    if comm.Get_rank() == 1:
        {failure}
    {others}
    print(f"rank {{comm.Get_rank()}} has come to its end", flush=True)

main()
"""
#: what rank 1 does, the exit status, and words of the output
FAILURES = {
    "exception": ("fail()", 1, "mpicoll: rank 1 failed, the job ends:\nTraceback .*KeyError: 'lost my way'"),
    "message": ("sys.exit('no such file')", 1, "mpicoll: rank 1 ended, and so the job ends, with an error: no such file"),
    "status": ("sys.exit(3)", 3, "mpicoll: rank 1 ended, and so the job ends, with exit status 3"),
    "options": ("argparse.ArgumentParser().parse_args(['--wrong'])", 2, "arguments: --wrong.* with exit status 2"),
    "after another": ("\n        try: sys.exit(0)\n        except SystemExit: sys.exit(6)", 6, "with exit status 6"),
    "interrupt": ("signal.raise_signal(signal.SIGINT)", 130, "mpicoll: rank 1 failed, the job ends:\n.*KeyboardInterrupt"),
    "thread": ("threading.Thread(target=fail, name='reader').start()", 1,
               "mpicoll: rank 1 failed in its thread reader, the job ends:\nTraceback .*KeyError: 'lost my way'"),
}  # fmt: skip


def run(installation, tmp_path, failure, others, **options):
    (tmp_path / "program.py").write_text(PROGRAM.format(failure=failure, others=others))
    return mpiexec(installation, 2, module="program", PYTHONPATH=f"{tmp_path}:{ROOT}", **options)


@EACH
@pytest.mark.parametrize("failure", ["exception", "message"])
def test_a_failure_of_one_rank_ends_the_job(installation, tmp_path, failure):
    ends_the_job(installation, tmp_path, failure)


@pytest.mark.thorough
@OTHER
@pytest.mark.parametrize("failure", sorted(FAILURES.keys() - {"exception", "message"}))
def test_other_failures_end_it_too(installation, tmp_path, failure):
    ends_the_job(installation, tmp_path, failure)


def ends_the_job(installation, tmp_path, failure):
    code, status, words = FAILURES[failure]
    waiting = "comm.Barrier() if comm.Get_rank() == 0 else time.sleep(1000)"
    with pytest.raises(AssertionError, match=f"exit status {status}\n") as failed:
        run(installation, tmp_path, code, waiting)
    output = str(failed.value)
    assert re.search(words, output, re.DOTALL) and "has come to its end" not in output, output
    assert output.count("the job ends") == 1, output


@pytest.mark.thorough
@ONE
@pytest.mark.parametrize("end", [
    "sys.exit()", "sys.exit(0)", "raise SystemExit(None)", "leave(0)", "threading.Thread(target=sys.exit, args=[3]).start()",
    "\n        try: sys.exit(7)\n        except SystemExit as left: assert left.code == 7",
    "MPI.Finalize() or sys.exit()",
], ids=str.strip)  # fmt: skip
def test_a_normal_end_of_one_rank_stays_one(installation, tmp_path, end):
    output = run(installation, tmp_path, end, "time.sleep(1)")
    assert "rank 0 has come to its end" in output and "the job ends" not in output, output


@pytest.mark.thorough
@OTHER
def test_a_program_of_one_rank_ends_as_it_would_without(installation, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.format(failure="pass", others="sys.exit('nothing to do')"))
    with pytest.raises(AssertionError, match="exit status 1\n") as failed:
        mpiexec(installation, 1, module="program", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert "nothing to do" in str(failed.value) and "the job ends" not in str(failed.value)
