"""The signals that ask a training for a checkpoint."""

import os
import signal
import threading

import pytest

from mpicoll.train.checkpoint.signals import stop_signals


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
