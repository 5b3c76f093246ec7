"""Who advances the collectives in flight: whoever waits for one, and between calls one thread, where MPI admits threads.

A flight is a generator that yields wherever it would wait. Whoever has the turn advances all flights; the others wait for
the turn without using a core. The thread gives way to those who wait, and pauses when nothing moves: a thread that spins
takes the core from the computation behind which it is to hide the communication.
"""

import os
import threading
from contextlib import contextmanager, nullcontext
from time import perf_counter, sleep

from mpi4py import MPI

#: seconds: look without pause while something moved in the last SPIN; otherwise after each PAUSE. A call that waits lets
#: others have its core after SPIN, and looks after each NAP only when nothing moved for PATIENCE
SPIN, PAUSE, NAP, PATIENCE = 50e-6, 200e-6, 50e-6, 250e-6
#: seconds for which the thread keeps looking after the last flight: to wake it takes longer than a small collective
LINGER = 0.1
#: flights of one lane under way at a time: the next ones would take their share of the link from those needed first
WINDOW = 2


class Flight:
    """A collective on its way. begun, ended: seconds of `perf_counter`, 0 before; error: what it raised, or None.

    around: the context in which it is advanced, whatever thread does it. landed: called at its end.
    """

    def __init__(self, steps, lane, landed=None, around=None):
        self.steps, self.lane, self.landed, self.around = steps, lane, landed, around or nullcontext()
        self.at = self.error = None
        self.begun = self.ended = 0.0

    def settle(self):
        """Raise what ended it, if anything did."""
        if self.error is not None:
            raise self.error


class Lane:
    """Flights that take their turns in the order of their start, which is the same on all ranks."""

    def __init__(self):
        self.under_way, self.queue = [], []

    @property
    def flights(self):
        """All that have not ended, in their order."""
        return [*self.under_way, *self.queue]


class Progress:
    """All flights of this process, and the thread that advances them."""

    def __init__(self):
        self._flights = []
        self._turn, self._books, self._awake = threading.RLock(), threading.Lock(), threading.Event()
        self._waiting = 0
        self._thread, self._stopping = None, False

    @property
    def threaded(self):
        """Whether flights move between calls too: where MPI grants THREAD_MULTIPLE, until it is finalized."""
        return not self._stopping and MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def launch(self, steps, lane, landed=None, around=None):
        """Begin a `Flight`; local."""
        flight = Flight(steps, lane, landed, around)
        with self._books:
            if len(lane.under_way) < WINDOW:
                lane.under_way.append(flight)
                self._flights.append(flight)
            else:
                lane.queue.append(flight)
        self._attend()
        self.look()
        return flight

    def wait(self, flight):
        """Advance all flights until this one has ended; raises its error."""
        if not flight.ended:
            with self._having_turn():
                moved = perf_counter()
                while not flight.ended:
                    if self._advance_all():
                        moved = perf_counter()
                    elif (still := perf_counter() - moved) > PATIENCE:
                        sleep(NAP)
                    elif still > SPIN:  # ranks that wait must not keep those that compute from a core
                        os.sched_yield()
        flight.settle()

    def test(self, flight):
        """Advance all flights once; whether this one has ended. Raises its error."""
        if not flight.ended:
            self.look()
        flight.settle()
        return bool(flight.ended)

    def look(self):
        """Advance all flights once, unless somebody else is at it."""
        if self._turn.acquire(blocking=False):
            try:
                self._advance_all()
            finally:
                self._turn.release()

    @contextmanager
    def _having_turn(self):
        with self._books:
            self._waiting += 1
        try:
            with self._turn:
                yield
        finally:
            with self._books:
                self._waiting -= 1

    def _advance_all(self):
        """Whether any flight moved. The caller has the turn."""
        return any([self._advance(flight) for flight in list(self._flights)])

    def _advance(self, flight):
        flight.begun = flight.begun or perf_counter()
        before = flight.at
        try:
            with flight.around:
                flight.at = next(flight.steps)
            return flight.at is not before
        except StopIteration:
            pass
        except Exception as error:  # whoever waits for this flight gets it, not whoever happened to advance it
            flight.error = error
        except BaseException as error:  # Ctrl-C
            flight.error = error
            self._land(flight)
            raise
        self._land(flight)
        return True

    def _land(self, flight):
        lane = flight.lane
        with self._books:
            self._flights.remove(flight)
            lane.under_way.remove(flight)
            if lane.queue:
                lane.under_way.append(lane.queue.pop(0))
                self._flights.append(lane.under_way[-1])
        flight.steps, flight.ended = None, perf_counter()
        if flight.landed:
            flight.landed()

    # The thread.

    def _attend(self):
        if self._thread is None and self.threaded:
            self._thread = threading.Thread(target=self._run, name="mpicoll progress", daemon=True)
            self._thread.start()
        if not self._awake.is_set():
            self._awake.set()

    def stop(self):
        """End the thread, before MPI is finalized; what is in flight stays there."""
        self._stopping = True
        self._awake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self):
        moved = busy = 0.0
        while not self._stopping:
            if self._flights:
                busy = perf_counter()
            elif perf_counter() - busy > LINGER:
                self._awake.clear()
                if not self._flights and not self._stopping:  # one launched since is seen, or has set it again
                    self._awake.wait()
                busy = perf_counter()  # also where what woke it has ended by now
            if not self._waiting and self._turn.acquire(blocking=False):
                try:
                    if self._advance_all():
                        moved = perf_counter()
                finally:
                    self._turn.release()
            if self._waiting or perf_counter() - moved > SPIN:
                sleep(PAUSE)


#: one per process: whoever waits for one collective must advance those of all communicators
PROGRESS = Progress()
