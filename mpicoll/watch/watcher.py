"""The thread that reports the state of this process while its other threads are blocked.

It starts with the first Communicator and sleeps until there is something to do:

* SIGUSR2: it prints the stack of each thread and the state of each communicator to standard error.
  A Python handler would run only after MPI returns, so the handler is one of the extension, which
  only wakes this thread. It must walk no stack, as `faulthandler` does: a stack that changes
  meanwhile ends in a crash now and then.
* With a timeout: it answers the questions of other ranks ten times a second, and ends the job when
  a call of MPI's own, which cannot be interrupted, has taken longer.
* Where another rank gives a communicator up and rings (`shared_memory/bell.py`): it ends the job
  when a call of MPI's own waits there for that rank.
* With MPICOLL_REPORT: it writes this rank's report once a second, and as soon as a communicator is
  given up, which may end the job. A `Witness` writes the time of its death.
"""

from __future__ import annotations

import atexit
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..errors import ArgumentError, RankFailure
from ..execute import Context
from ..launch import LAST_WORDS, abort, words_of
from ..reports import State, death_file, diagnose, read_reports, write_report
from ..shared_memory import ASKED, BELL, GIVEN_UP
from ..support import settings
from ..support.extension import load
from ..support.garbage import frames_of_threads
from ..support.stderr import print_now, warn_here
from .answers import answer_questions, ask_others
from .rates import Rates
from .stuck import StuckCalls
from .state import calls_under_way, history_of_process, stacks_of_threads, state_of_process

if TYPE_CHECKING:
    from .witness import Witness

#: seconds between two looks around
TICK = 0.1
#: seconds between two reports
REPORT = 1.0
#: seconds between two reports with the last calls
HISTORY = 5.0
#: seconds that an answer may take
ANSWER = 2.0
_ENDS = "MPI's own call cannot be interrupted: the job ends"
#: after a timeout: seconds from which on a call of another rank counts as waiting
_PATIENCE = 0.2
#: timeouts that a call of MPI's own may take: the error of a schedule says more, so it comes first
_GRACE = 1.5
#: seconds that a call of MPI's own may take after its communicator was given up: the messages that
#: it needs may be on their way
_LAST = 1.0
#: seconds after the bell in which the watcher looks for notices of communicators given up
_ALERT = 5.0


class Watcher:
    """The watcher of this process; there is a single one."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        #: of reports, if there are any
        self.folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._witness: Witness | None = None
        #: the descriptor that wakes the thread
        self._bell = -1
        #: until when it looks for notices
        self._alert = 0.0
        self._stuck = StuckCalls()
        self._writing = threading.RLock()
        #: the time of the last report, and of the last report with the last calls
        self._reported = 0.0
        self._history_reported = 0.0
        #: communicators given up, as of the last look
        self._given_up = 0
        self._may_call_mpi = False
        #: the last error of the thread, which is printed once
        self._told = ""
        self._rates = Rates()
        #: further entries of the state
        self._more: dict[str, Any] = {
            "ended": False,
            "failed": "",
            "last_words": False,
            "heard": [],
            "unheard": [],
        }

    def start(self) -> None:
        """Start the thread; if it has started, wake it to look for new work."""
        if self._thread is not None:
            BELL.wake()
            return
        try:
            self._begin()
        except (OSError, RuntimeError, MemoryError) as error:  # no descriptor, no thread
            text = f"mpicoll: rank {self.rank} has no watcher, which tells what it does: {error}"
            warn_here(text)

    def _begin(self) -> None:
        self.rank = MPI.COMM_WORLD.Get_rank()
        self.size = MPI.COMM_WORLD.Get_size()
        self.folder = settings.report_folder()
        self._may_call_mpi = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._bell = BELL.descriptor()
        thread = threading.Thread(target=self._run, name="mpicoll watcher", daemon=True)
        thread.start()
        self._thread = thread
        _ask_at_signal()
        if self.folder is not None:
            self._report()
            self._witness = self._start_witness(self.folder)
            atexit.register(self._at_exit)
            LAST_WORDS.append(self._last_words)

    def state(self) -> State:
        """The state of this process."""
        return state_of_process(self.rank, self.size, **self._more)

    def whole_state(self) -> State:
        """The state of this process, with its last calls."""
        return self.state() | {"history": history_of_process()}

    def explain_wait(self, context: Context, seconds: float) -> str:
        """The text of CollectiveTimeout: which ranks wait for which, after so many seconds."""
        assert context.timeout is not None
        widest = self._widest(context)
        states, ranks = self._others(widest)
        under_way = context.recorder.under_way
        calls = "; ".join(
            f"call {call.number}, {call.text}{_after_colon(call.where())}" for call in under_way
        )
        head = (
            f"rank {self.rank}: no progress for {seconds:.1f} s in {calls or 'a call'} "
            f"(a timeout after {context.timeout} s)"
        )
        if not settings.only_report():
            calls_now = calls_under_way(context, frames_of_threads())
            context.given_up = [{**call, "given_up": True} for call in calls_now]
        if self.folder is not None:
            self._report()
        total = len(widest.channel.ranks)
        if len(ranks) < total:
            head += f"\nWhat {len(ranks)} of {total} ranks are doing:"
        patience = min(_PATIENCE, context.timeout / 2)
        return f"{head}\n{diagnose([self.whole_state(), *states], ranks, patience)}"

    def _widest(self, context: Context) -> Context:
        """The largest communicator with all ranks of this one.

        Other ranks may wait in it for a rank that waits in this one.
        """
        ranks = set(context.channel.world_ranks)
        wider = [
            other
            for other in Context.living()
            if other.timeout and ranks <= set(other.channel.world_ranks)
        ]
        return max([context, *wider], key=lambda other: len(other.channel.ranks))

    def _others(self, context: Context) -> tuple[list[State], list[int]]:
        """(states of other ranks, these ranks and this one), by their answers or reports."""
        if self._may_call_mpi:
            states, asked, silent = ask_others(context, self.state(), ANSWER, self._answer)
            self._more |= {"heard": sorted(set(asked).difference(silent)), "unheard": silent}
            return states, sorted([*asked, self.rank])
        ranks = context.channel.world_ranks
        if self.folder is None:
            return [], ranks
        return self._next_reports(self.folder, set(ranks) - {self.rank}), ranks

    def _next_reports(self, folder: Path, ranks: set[int]) -> list[State]:
        """The reports of these ranks: new reports, if they write them within ANSWER.

        A report tells of the second before it.
        """
        before = {state["rank"]: state["time"] for state in read_reports(folder)}
        until = time.monotonic() + ANSWER
        while True:
            states = [state for state in read_reports(folder) if state["rank"] in ranks]
            fresh = [state for state in states if state["time"] != before.get(state["rank"])]
            if len(fresh) == len(ranks) or time.monotonic() > until:
                return states
            time.sleep(TICK)

    def _answer(self) -> None:
        """Answer all questions."""
        for context in Context.living():
            may_answer = self._may_call_mpi and not MPI.Is_finalized()
            if may_answer and context.timeout and not context.broken:
                try:
                    answer_questions(context, self.whole_state)
                except MPI.Exception as error:  # this thread may be the first to meet a death
                    context.explained(error)

    # The last reports.

    def _at_exit(self) -> None:
        """The program ends, perhaps by an exception."""
        error = getattr(sys, "last_value", None)
        self._more |= {"failed": words_of(error), "ended": error is None}
        self._report()
        if self._witness is not None:
            self._witness.dismiss()

    def _last_words(self, failed: str) -> None:
        """This rank is about to end the job."""
        self._more |= {"failed": failed, "ended": False, "last_words": True}
        self._report()

    def _start_witness(self, folder: Path) -> Witness | None:
        from .witness import Witness  # only reports need it

        try:
            return Witness(folder / death_file(self.rank))
        except OSError as error:  # no other process can start: the time of a death stays unknown
            print(f"mpicoll: rank {self.rank} has no witness: {error}", file=sys.stderr)
            return None

    # The thread.

    def _run(self) -> None:
        bell = select.poll()  # `select` knows no descriptor above 1,023
        bell.register(self._bell, select.POLLIN)
        while True:
            alert = time.perf_counter() < self._alert
            watched = any(context.timeout or context.broken for context in Context.living())
            busy = self.folder is not None or watched or alert
            # without work it sleeps: a thread that wakes up disturbs threads that compute
            told = bell.poll(1000 * TICK if busy else None)
            words = BELL.words() if told else b""
            if told and not words:  # the program has closed all descriptors
                return
            if GIVEN_UP in words:
                self._alert = time.perf_counter() + _ALERT
            try:
                if ASKED in words:
                    self._print_state()
                if busy:
                    self._look_around()
            except Exception as error:  # of one communicator: the watcher is of use to the others
                self._tell_once(error)

    def _tell_once(self, error: Exception) -> None:
        """Print an error of this thread, unless it is the one before."""
        if repr(error) != self._told:
            self._told = repr(error)
            text = "".join(traceback.format_exception(error))
            print_now(f"mpicoll: the watcher of rank {self.rank} goes on after an error: {text}")

    def _look_around(self) -> None:
        self._answer()
        for context in Context.living():
            if context.timeout or time.perf_counter() < self._alert:
                self._look_for_notices(context)
            self._end_if_stuck(context)
        given_up = sum(bool(context.broken) for context in Context.living())
        is_news = given_up > self._given_up
        self._given_up = given_up
        now = time.perf_counter()
        if self.folder is not None and (is_news or now - self._reported > REPORT):
            self._report(whole=is_news or now - self._history_reported > HISTORY)

    def _look_for_notices(self, context: Context) -> None:
        """Give the communicator up where another rank has done so."""
        if self._may_call_mpi and not MPI.Is_finalized():
            context.channel.looking.take(context.look_around)  # it may be about to be freed

    def _end_if_stuck(self, context: Context) -> None:
        """End the job when a call of MPI's own does not return: no error can be raised in it."""
        call, waited = self._stuck.look(context)
        if not call:
            return
        if context.broken:
            if waited > _LAST and _all_know(context):
                abort(f"mpicoll: rank {self.rank} in {call}: {context.broken}\n{_ENDS}")
        elif context.timeout is None or waited < _GRACE * context.timeout + ANSWER:
            return
        elif settings.only_report():
            context.report_wait(waited)
        else:
            abort(f"mpicoll: {self.explain_wait(context, waited)}\n{_ENDS}")

    def _report(self, whole: bool = True) -> None:
        """Write the state of this rank. whole: with its last calls."""
        assert self.folder is not None
        self._reported = time.perf_counter()
        self._more["rates"] = self._rates.since_before()
        if whole:
            self._history_reported = self._reported
        try:
            with self._writing:  # reports are written in the order of their states
                write_report(self.folder, self.whole_state() if whole else self.state())
        except (OSError, ArgumentError) as error:
            print_now(f"mpicoll: rank {self.rank} cannot leave its report: {error}")

    def _print_state(self) -> None:
        text = diagnose([self.state()], [self.rank])
        print_now(f"mpicoll: rank {self.rank}:\n{text}\n{stacks_of_threads()}\n")


def _all_know(context: Context) -> bool:
    """Whether all ranks know that a communicator was given up, so that none will use it.

    Of a death MPI itself informs all ranks.
    """
    if isinstance(context.queue.error, RankFailure):
        return False
    links = context.links
    on_one_node = links is not None and len(links.ranks) + 1 == len(context.channel.ranks)
    return on_one_node or context.timeout is not None


def _after_colon(text: str) -> str:
    return f": {text}" if text else ""


def _ask_at_signal() -> None:
    """Have SIGUSR2 ask what this process is doing, unless the user handles it."""
    if signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    try:
        load().write_at_signal(signal.SIGUSR2, BELL.place()[0], ASKED)
    except ImportError:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, lambda *_: BELL.ask())
            signal.siginterrupt(signal.SIGUSR2, False)


#: the watcher of this process
WATCHER = Watcher()
Context.explain_wait = WATCHER.explain_wait
