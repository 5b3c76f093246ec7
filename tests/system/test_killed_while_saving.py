"""Checkpoints of jobs that are killed at any moment of a save, and the signals that ask for one."""

import os
import random
import signal
import threading

import pytest

from mpicoll.train.checkpoint.signals import stop_signals
from tests.support.launching import installations, mpiexec

JOB = "tests.support.killed_while_saving"


@pytest.mark.parametrize("installation", installations(), ids=lambda found: found.name)
def test_a_job_killed_at_any_moment_leaves_its_last_checkpoint_whole(installation, tmp_path):
    draw = random.Random(installation.name)
    operations = [(draw.randrange(2), str(draw.randrange(80))) for _ in range(5)]
    times = [(draw.randrange(2), f"{draw.uniform(0, 0.2):.3f}") for _ in range(3)]
    for victim, moment in operations + times:
        size = draw.choice((2, 3))
        output = mpiexec(installation, size, tmp_path, victim, moment, module=JOB, check=False, timeout=60)
        assert "skipped" not in output and output.count("and verified it") == size, (victim, moment, output)
    output = mpiexec(installation, 1, tmp_path, module=JOB, timeout=60)
    assert int((tmp_path / "returned").read_text()) > 0 and "skipped" not in output


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_is_noted_and_the_former_handlers_come_back(name):
    number, former = getattr(signal, name), {each: signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGTERM)}
    with pytest.raises(KeyError), stop_signals() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.received == name
        raise KeyError
    assert {each: signal.getsignal(each) for each in former} == former


def test_outside_the_main_thread_nothing_is_changed():
    former, seen = signal.getsignal(signal.SIGTERM), []

    def body():
        with stop_signals() as stop:
            seen.append((stop.received, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [(None, former)]
