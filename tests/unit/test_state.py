"""What a rank says of itself to others: which lines of the user's program its threads are at."""

import threading

import pytest

from mpicoll.watch.state import state_of_process


@pytest.fixture
def over():
    """Ends the threads of a test."""
    event = threading.Event()
    yield event
    event.set()


def test_other_threads_of_the_program_are_named_and_those_of_libraries_are_not(over):
    reached = threading.Barrier(2, timeout=50)

    def users():
        reached.wait()
        over.wait()

    threading.Thread(target=users, daemon=True).start()
    threading.Thread(target=over.wait, daemon=True).start()
    reached.wait()
    state = state_of_process(0, 1)
    line = users.__code__.co_firstlineno
    assert state["threads"] in ([f"{__file__}:{line + 1}"], [f"{__file__}:{line + 2}"])
