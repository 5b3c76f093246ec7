"""How often to poll, so that polling does not take the cores from the computation."""

import os
from collections.abc import Callable
from time import perf_counter, sleep
from typing import NamedTuple

#: seconds since the last move for which a thread polls without pause; then a waiting call yields
#: its core
SPIN = 50e-6
#: seconds without a move after which a waiting call pauses
PATIENCE = 250e-6
#: seconds of the shortest pause of a call that waits
NAP = 50e-6


class Pace(NamedTuple):
    """How long to pause. parts: looks between two moves. most: seconds."""

    parts: int
    most: float


#: the next message comes only after the awaited one was seen
IN_TURN = Pace(8, 2e-3)
#: three messages or more are under way each way: if one is seen late, the link is busy meanwhile
FLOWING = Pace(1, 4e-3)
#: nothing is under way
RESTING = Pace(2, 2e-3)


def pace_of(flowing: bool) -> Pace:
    """The pace for messages under way. flowing: others are on their way while one is awaited."""
    return FLOWING if flowing else IN_TURN


class Rhythm:
    """When to pause between two looks, and for how long: by the time between the last moves.

    A look costs a core some 20 us, and messages move without it. If twice in a row nothing moved
    for more than PATIENCE, the next pause begins at once. It is a part of `gap`, the mean time from
    move to move, the shorter of the last two. least: seconds of the shortest pause.

    >>> rhythm = Rhythm(least=200e-6)
    >>> for _ in range(2):
    ...     print(rhythm.pause(IN_TURN), rhythm.patience)
    ...     rhythm.moved -= 1
    ...     _ = rhythm.still(moves=1)
    0.0002 0.00025
    0.0002 0.00025
    >>> rhythm.pause(IN_TURN), rhythm.patience
    (0.002, 0.0)
    """

    def __init__(self, least: float) -> None:
        self._least = least
        #: how long nothing moved, and how much moved after that
        self._idle = 0.0
        self._moves = 1
        #: the same for the time before: seconds without a move, and `gap`
        self._idle_before = 0.0
        self._gap_before = 0.0
        self.patience = PATIENCE
        self.restart()

    @property
    def gap(self) -> float:
        """Seconds from move to move."""
        return min(self._idle / self._moves, self._gap_before)

    def restart(self) -> None:
        """Count from now on."""
        self.moved = perf_counter()

    def pause(self, pace: Pace) -> float:
        """Seconds to pause: each look takes the core from others."""
        return self.rest(self.gap, pace)

    def rest(self, idle: float, pace: Pace) -> float:
        """The same, where nothing moved for `idle` seconds."""
        return min(max(self._least, idle / pace.parts), pace.most)

    def leave_core(self, moves: int, flowing: Callable[[], bool]) -> None:
        """Yield the core or pause, when it is time for that.

        moves: how much just moved. flowing: see `pace_of`.
        """
        still = self.still(moves)
        if still > self.patience:
            sleep(self.pause(pace_of(flowing())))
        elif still > SPIN:
            os.sched_yield()

    def still(self, moves: int) -> float:
        """Seconds since something moved. moves: how much just moved."""
        still = perf_counter() - self.moved
        if not moves:
            return still
        if still > SPIN:  # else it came together with what moved before
            self._gap_before = self._idle / self._moves
            self._idle_before = self._idle
            self._idle = still
            self._moves = 0
            self.patience = 0.0 if min(still, self._idle_before) > PATIENCE else PATIENCE
        self._moves += moves
        self.restart()
        return 0.0
