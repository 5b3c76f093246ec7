"""The thread that tells what this process is doing while the others of its threads cannot.

It starts with the first Communicator and sleeps until there is something to do:

* SIGUSR2: the stack of each thread and the state of each communicator go to standard error. The signal is taken by
  `faulthandler`, since a Python handler would run only once MPI returns.
* Where a limit of waiting is set: it answers the questions of other ranks ten times a second, and ends the job when a
  call of MPI's own, which nobody can interrupt, has taken longer.
* Where another rank gives a communicator up, which rings (`shared_memory/bell.py`): it ends the job
  when a call of MPI's own waits there for that rank.
* With MPICOLL_REPORT: it writes this rank's report once a second, and a `Witness` leaves the time of its death.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..errors import ArgumentError, RankFailure
from ..execute import Context
from ..launch import LAST_WORDS, abort, words_of
from ..reports import State, death_file, diagnose, read_reports, write_report
from ..shared_memory import BELL
from ..support import settings
from ..support.garbage import frames_of_threads
from .answers import answer_questions, ask_others
from .rates import Rates
from .stuck import StuckCalls
from .state import calls_under_way, history_of_process, state_of_process

if TYPE_CHECKING:
    from .witness import Witness

#: seconds: between two looks around, between two reports, between two that have the last calls, and that an answer may take
TICK, REPORT, HISTORY, ANSWER = 0.1, 1.0, 5.0, 2.0
_ENDS = "MPI's own call cannot be interrupted: the job ends"
#: seconds after which a call of others counts as one that waits, where one has waited for too long
_PATIENCE = 0.2
#: by how many limits a call of MPI's own may be late: the schedules' error, which says more, comes first
_GRACE = 1.5
#: seconds for which a call of MPI's own may go on after its communicator was given up: what it
#: needs may be on its way
_LAST = 1.0
#: seconds for which notices that ranks give communicators up are looked for after the bell
_ALERT = 5.0


class Watcher:
    """One per process. folder: where reports go, or None."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._witness: Witness | None = None
        self._signals = self._bell = -1
        self._alert = 0.0
        self._stuck = StuckCalls()
        self._writing = threading.Lock()
        self._reported = self._told = 0.0
        self._may_call_mpi = False
        self._rates = Rates()
        self._more: dict[str, Any] = {"ended": False, "failed": "", "last_words": False, "heard": [], "unheard": []}

    def start(self) -> None:
        """Be there from now on; called again, it looks whether there is something to do by now."""
        if self._thread is not None:
            BELL.wake()
            return
        self.rank, self.size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        self.folder, self._may_call_mpi = settings.report_folder(), MPI.Query_thread() == MPI.THREAD_MULTIPLE
        try:
            self._bell = BELL.descriptor()
            self._signals = _readable_signals()
        except OSError as error:  # an error of one rank alone would leave the others waiting
            warnings.warn(f"mpicoll: rank {self.rank} has no watcher, which tells what it does: {error}", stacklevel=3)
            return
        if self.folder is not None:
            self._report()
            self._witness = self._accompanied(self.folder)
            atexit.register(self._at_exit)
            LAST_WORDS.append(self._last_words)
        self._thread = threading.Thread(target=self._run, name="mpicoll watcher", daemon=True)
        self._thread.start()

    def state(self) -> State:
        """What this process is doing."""
        return state_of_process(self.rank, self.size, **self._more)

    def whole_state(self) -> State:
        """The same with its last calls."""
        return self.state() | {"history": history_of_process()}

    def explain_wait(self, context: Context, seconds: float) -> str:
        """Who waits for whom, when this rank has waited for so long: the text of CollectiveTimeout."""
        assert context.timeout is not None
        widest = self._widest(context)
        states, ranks = self._others(widest)
        under_way = context.recorder.under_way
        calls = "; ".join(f"call {one.number}, {one.text}{_after(one.where())}" for one in under_way)
        head = f"rank {self.rank}: no progress for {seconds:.1f} s in {calls or 'a call'} (a timeout after {context.timeout} s)"
        if not settings.only_report():
            calls_now = calls_under_way(context, frames_of_threads())
            context.given_up = [{**call, "given_up": True} for call in calls_now]
        if self.folder is not None:
            self._report()
        if len(ranks) < len(widest.channel.ranks):
            head += f"\nWhat {len(ranks)} of {len(widest.channel.ranks)} ranks are doing:"
        patience = min(_PATIENCE, context.timeout / 2)
        return f"{head}\n{diagnose([self.whole_state(), *states], ranks, patience)}"

    def _widest(self, context: Context) -> Context:
        """The largest communicator with all ranks of this one: who waits here may be waited for elsewhere."""
        ranks = set(context.channel.world_ranks)
        wider = [one for one in Context.living() if one.timeout and ranks <= set(one.channel.world_ranks)]
        return max([context, *wider], key=lambda one: len(one.channel.ranks))

    def _others(self, context: Context) -> tuple[list[State], list[int]]:
        """What other ranks are doing, by their own answers or by their reports; and which ranks these are, and this one."""
        if self._may_call_mpi:
            states, asked, silent = ask_others(context, self.state(), ANSWER, self._answer)
            self._more |= {"heard": sorted(set(asked).difference(silent)), "unheard": silent}
            return states, sorted([*asked, self.rank])
        ranks = context.channel.world_ranks
        states = self._next_reports(self.folder, set(ranks) - {self.rank}) if self.folder is not None else []
        return states, ranks

    def _next_reports(self, folder: Path, ranks: set[int]) -> list[State]:
        """What they wrote after this moment, where they do within ANSWER; a report tells of the second before it."""
        before = {state["rank"]: state["time"] for state in read_reports(folder)}
        until = time.monotonic() + ANSWER
        while True:
            states = [state for state in read_reports(folder) if state["rank"] in ranks]
            fresh = [state for state in states if state["time"] != before.get(state["rank"])]
            if len(fresh) == len(ranks) or time.monotonic() > until:
                return states
            time.sleep(TICK)

    def _answer(self) -> None:
        """Answer all who ask."""
        for context in Context.living():
            if self._may_call_mpi and not MPI.Is_finalized() and context.timeout and not context.broken:
                answer_questions(context, self.whole_state)

    # The last reports.

    def _at_exit(self) -> None:
        """The program ends, with an exception that nobody saw to, perhaps."""
        error = getattr(sys, "last_value", None)
        self._more |= {"failed": words_of(error), "ended": error is None}
        self._report()
        if self._witness is not None:
            self._witness.dismiss()

    def _last_words(self, failed: str) -> None:
        """This rank is about to end the job."""
        self._more |= {"failed": failed, "ended": False, "last_words": True}
        self._report()

    def _accompanied(self, folder: Path) -> Witness | None:
        from .witness import Witness  # another process, for those who want reports

        try:
            return Witness(folder / death_file(self.rank))
        except OSError as error:  # no room for another process: who dies first will not be known
            print(f"mpicoll: rank {self.rank} has no witness: {error}", file=sys.stderr)
            return None

    # The thread.

    def _run(self) -> None:
        while True:
            alert = time.perf_counter() < self._alert
            watched = any(context.timeout or context.broken for context in Context.living())
            busy = self.folder is not None or watched or alert
            # without anything to do it sleeps: a thread that wakes up disturbs those that compute
            ready, _, _ = select.select([self._signals, self._bell], [], [], TICK if busy else None)
            if self._bell in ready and BELL.was_rung():
                self._alert = time.perf_counter() + _ALERT
            if self._signals in ready:
                self._print_state(os.read(self._signals, 1 << 16).decode(errors="replace"))
            if busy:
                self._look_around()

    def _look_around(self) -> None:
        self._answer()
        for context in Context.living():
            if context.timeout or time.perf_counter() < self._alert:
                self._look_for_notices(context)
            self._end_if_stuck(context)
        if self.folder is not None and time.perf_counter() - self._reported > REPORT:
            self._report(whole=time.perf_counter() - self._told > HISTORY)

    def _look_for_notices(self, context: Context) -> None:
        """Have the communicator given up where another rank has done that."""
        if self._may_call_mpi and not MPI.Is_finalized():
            with context.channel.lock:  # it may be about to be freed
                if context.channel.open:
                    context.look_around()

    def _end_if_stuck(self, context: Context) -> None:
        """End the job when MPI's own call does not come back: nobody can raise an error there."""
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
        """Leave what this rank is doing; whole: with its last calls."""
        assert self.folder is not None
        self._reported = time.perf_counter()
        self._more["rates"] = self._rates.since_before()
        if whole:
            self._told = self._reported
        try:
            with self._writing:  # the later state is the later report
                write_report(self.folder, self.whole_state() if whole else self.state())
        except (OSError, ArgumentError) as error:
            print(f"mpicoll: rank {self.rank} cannot leave its report: {error}", file=sys.stderr)

    def _print_state(self, stacks: str) -> None:
        text = diagnose([self.state()], [self.rank])
        print(f"mpicoll: rank {self.rank}:\n{text}\n{stacks}", file=sys.stderr, flush=True)


def _all_know(context: Context) -> bool:
    """Whether no rank will use a communicator that was given up: all are told.

    MPI itself tells all of a death.
    """
    if isinstance(context.queue.error, RankFailure):
        return False
    links = context.links
    on_one_node = links is not None and len(links.ranks) + 1 == len(context.channel.ranks)
    return on_one_node or context.timeout is not None


def _after(where: str) -> str:
    return f": {where}" if where else ""


def _readable_signals() -> int:
    """A pipe from which the stacks of all threads can be read after each SIGUSR2, unless the user handles it."""
    reading, writing = os.pipe()
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        faulthandler.register(signal.SIGUSR2, file=writing, all_threads=True)
    return reading


#: one per process
WATCHER = Watcher()
Context.explain_wait = WATCHER.explain_wait
