"""What runs in the middle of calls: a signal handler, finalizers of garbage, or another thread.

Each works with NumPy, makes and forgets shared arrays, tests requests left to it, makes calls of a communicator of one
rank, or looks at the state of this process as reports do.
"""

import gc
import signal
import threading
import traceback
from contextlib import contextmanager, nullcontext
from time import perf_counter

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.reports import diagnose
from mpicoll.watch.state import stacks_of_threads
from mpicoll.watch.watcher import WATCHER

BY = ("nobody", "signals", "finalizers", "thread")
DOING = ("numbers", "arrays", "tests", "calls", "looks")
#: seconds between signals
_PERIOD = 5e-3
#: objects after which garbage is collected
_THRESHOLD = 40
_LENGTHS = (10, 3000, 40_000)
_KEPT = 3


class Disturbance:
    """Work that interrupts calls. failures: what was wrong with its arrays.

    comm: whose shared arrays it makes. lanes: whose requests it tests.
    """

    def __init__(self, doing: str, comm, lanes):
        self.failures = []
        work = {"numbers": self._numbers, "arrays": self._arrays, "tests": self._tests, "calls": self._calls,
                "looks": self._looks}  # fmt: skip
        self._work = work[doing]
        self._comm, self._lanes = comm, lanes
        self._busy = threading.Lock()
        self._is_over = threading.Event()
        self._arrays_kept, self._made, self._alone = [], 0, None
        self._rests_until = 0.0

    @contextmanager
    def going_on(self, by: str):
        """Work is done by `by` within."""
        began = {"nobody": nullcontext, "signals": self._by_signals, "finalizers": self._by_finalizers,
                 "thread": self._by_thread}[by]  # fmt: skip
        with began():
            yield
        with self._busy:
            self._is_over.set()
            if self._alone is not None:
                self._alone.Free()

    def interrupt(self) -> bool:
        """Work a little, unless that itself is interrupted; whether there is more to come.

        Then it rests as long: a plan of thousands of steps would not be bound within the limit of others' waits.
        """
        if not self._busy.acquire(blocking=False):
            return True
        began = perf_counter()
        try:
            if not self._is_over.is_set() and began > self._rests_until:
                self._work()
                now = perf_counter()
                self._rests_until = now + (now - began)
        except Exception:
            self.failures.append(traceback.format_exc())
        finally:
            self._busy.release()
        return not self._is_over.is_set()

    # By whom.

    @contextmanager
    def _by_signals(self):
        before = signal.signal(signal.SIGALRM, lambda number, frame: self.interrupt())
        signal.setitimer(signal.ITIMER_REAL, _PERIOD, _PERIOD)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @contextmanager
    def _by_finalizers(self):
        before = gc.get_threshold()
        gc.set_threshold(_THRESHOLD, 5, 5)
        Garbage(self.interrupt)
        try:
            yield
        finally:
            self._is_over.set()
            gc.set_threshold(*before)

    @contextmanager
    def _by_thread(self):
        over = threading.Event()

        def work():
            while not over.wait(_PERIOD / 4):
                self.interrupt()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # What is done.

    def _numbers(self):
        np.ones(50).cumsum()
        [[] for _ in range(20)]

    def _arrays(self):
        """One more shared array, and one less."""
        self._made += 1
        array = self._comm.empty(_LENGTHS[self._made % len(_LENGTHS)])
        array[:] = self._made
        self._arrays_kept.append((self._made, array))
        if len(self._arrays_kept) > _KEPT:
            value, array = self._arrays_kept.pop(0)
            if not (array == value).all():
                self.failures.append(f"array {value} of a disturbance changed")

    def _calls(self):
        """Each form of a call of this rank alone, on a communicator that is made anew now and then."""
        if self._made % _KEPT == 0:
            if self._alone is not None:
                self._alone.Free()
            self._alone = mpicoll.Communicator(MPI.COMM_SELF.Dup())
        self._made += 1
        given = np.full(_LENGTHS[self._made % len(_LENGTHS)], self._made, float)
        results = [np.empty_like(given) for _ in range(3)]
        self._alone.Allreduce(given, results[0])
        self._alone.Iallreduce(given, results[1]).Wait()
        plan = self._alone.Allreduce_init(given, results[2])
        plan.Start()
        plan.Wait()
        plan.Free()
        if not (np.array(results) == given).all():
            self.failures.append(f"call {self._made} of a disturbance had a wrong result")

    def _looks(self):
        state = WATCHER.whole_state()
        diagnose([state], [state["rank"]])
        stacks_of_threads()

    def _tests(self):
        for lane in self._lanes:
            for _, _, handle, _ in list(lane.background):
                handle.Test()


class Garbage:
    """A cycle that calls when it is collected, and leaves another one behind while the call returns true."""

    def __init__(self, call):
        self.call, self.itself = call, self

    def __del__(self):
        if self.call():
            Garbage(self.call)
