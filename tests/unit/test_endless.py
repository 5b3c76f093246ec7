"""Code that never comes back is interrupted, at a moment when that is heard."""

import signal
from threading import Thread
from time import process_time

import pytest

from mpicoll.verify.endless import Endless, ends_within


def burn(seconds):
    """Compute."""
    begin = process_time()
    while process_time() - begin < seconds:
        pass


class Slow:
    """What computes while Python forgets it."""

    def __del__(self):
        burn(0.1)


def test_errors_in_a_destructor_are_not_heard_so_it_is_interrupted_after_it():
    with pytest.raises(Endless), ends_within(0.05):
        Slow()
        burn(60)


def test_it_is_tried_again_where_it_is_swallowed_and_all_is_as_before():
    with pytest.raises(Endless), ends_within(0.05):
        try:
            burn(60)
        except BaseException:
            burn(60)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0) and signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


def test_other_threads_are_let_alone():
    done = []

    def run():
        with ends_within(0.01):
            burn(0.1)
        done.append(True)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert done
