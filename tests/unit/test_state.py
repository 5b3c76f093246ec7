"""What a rank says of itself to others: which lines its threads are at; and the thread that says so, which may be missing."""

import threading
import warnings

import pytest

from mpicoll.shared_memory.bell import ASKED, Bell
from mpicoll.watch import watcher
from mpicoll.watch.state import state_of_process
from mpicoll.watch.watcher import Watcher


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


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError("none left"), OSError("no files")])
def test_a_rank_that_can_have_no_watcher_goes_on_without_one(monkeypatch, capfd, error):
    """An error on one rank would leave the others waiting; so would a warning that the program has made an error."""

    def refuse(_):
        raise error

    monkeypatch.setattr(threading.Thread, "start", refuse)
    text = f"mpicoll: rank 0 has no watcher, which tells what it does: {error}"
    with pytest.warns(UserWarning) as caught:
        Watcher().start()
    assert [str(warning.message) for warning in caught] == [text]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Watcher().start()
    assert capfd.readouterr().err == f"{text}\n"


def test_the_watcher_prints_an_error_once_and_goes_on(monkeypatch, capfd):
    bell, words = Bell(), iter([ASKED] * 3)
    monkeypatch.setattr(watcher, "BELL", bell)
    monkeypatch.setattr(bell, "words", lambda: next(words, b""))
    watching = Watcher()
    watching._bell = bell.descriptor()
    monkeypatch.setattr(watching, "_print_state", lambda: 1 / 0)
    bell.ask()
    watching._run()
    said = capfd.readouterr().err
    assert said.count("mpicoll: the watcher of rank 0 goes on after an error") == said.count("ZeroDivisionError: ") == 1
