"""Locks that a signal handler leaves free, wherever it raises: a profile function raises at each point where one may run."""

import gc
import sys
import threading

import pytest

from mpicoll.progress import turn
from mpicoll.support import garbage


class Raised(Exception):
    """What the handler raises."""


def raising_at(point, module, function, *arguments):
    """Call a function, and raise at that point in a module; whether the function came to it."""

    def profile(frame, event, argument):
        nonlocal point
        if frame.f_code.co_filename == module.__file__ and event in ("call", "return", "c_return"):
            point -= 1
            if not point:
                sys.setprofile(None)
                raise Raised

    sys.setprofile(profile)
    try:
        function(*arguments)
        return False
    except Raised:
        return True
    finally:
        sys.setprofile(None)


def is_free(take):
    """Whether another thread can do it at once."""
    done = []
    thread = threading.Thread(target=lambda: done.append(take()), daemon=True)
    thread.start()
    thread.join(5)
    return bool(done and done[0])


@pytest.mark.parametrize("patience", [0.0, turn.FOR_EVER])
def test_a_turn_is_over(patience):
    mine = turn.Turn()
    point = 1
    while raising_at(point, turn, lambda: mine.take(len, [1], patience=patience)):
        assert not mine.is_mine
        assert is_free(lambda: mine.take(len, [1])), point
        point += 1
    assert point > 4


def test_what_waited_for_the_end_of_a_turn_is_seen_to():
    mine, seen = turn.Turn(), []
    mine.take(mine.afterwards.append, lambda: seen.append(mine.is_mine))
    assert seen == [False]


def test_garbage_is_collected_again():
    point = 1
    while raising_at(point, garbage, garbage.without_collection, len, [1]):
        assert gc.isenabled(), point
        assert is_free(lambda: garbage.without_collection(len, [1])), point
        point += 1
    assert point > 4
