"""How often to look whether something moved, so that looking does not take the cores from those who compute."""

import os
from collections.abc import Callable
from time import perf_counter, sleep
from typing import NamedTuple

#: seconds: look without pause while something moved in the last SPIN. A call that waits lets others have its core after
#: that, and pauses only when nothing moved for PATIENCE
SPIN, PATIENCE = 50e-6, 250e-6
#: seconds of the shortest pause of a call that waits
NAP = 50e-6


class Pace(NamedTuple):
    """How long to pause. parts: looks between two moves. most: seconds."""

    parts: int
    most: float


#: what is awaited can only be followed by more once it was seen
IN_TURN = Pace(8, 2e-3)
#: three messages or more are on their way each way: when one is seen late, the link is busy with the next
FLOWING = Pace(1, 4e-3)
#: nothing is under way
RESTING = Pace(2, 2e-3)


def pace_of(flowing: bool) -> Pace:
    """That of what is under way. flowing: whether other messages are on their way while one is awaited."""
    return FLOWING if flowing else IN_TURN


class Rhythm:
    """When to pause between two looks, and for how long: by how far apart things lately moved.

    A look costs a core some 20 us, and what is on its way moves without it. Where twice in a row nothing moved for more
    than PATIENCE, it is not waited for in vain again: the next pause begins at once, and is a part of `gap`, the mean time
    from move to move, the shorter of the last two. least: seconds of a pause.

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
        self._idle, self._moves = 0.0, 1  # how long nothing moved, then how much did
        self._idle_before, self._gap_before = 0.0, 0.0
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
        """The same, where nothing was to be seen for so many seconds."""
        return min(max(self._least, idle / pace.parts), pace.most)

    def leave_core(self, moves: int, flowing: Callable[[], bool]) -> None:
        """Leave the core to those who compute, when it is time for that. moves: how much just did; flowing: see `pace_of`."""
        still = self.still(moves)
        if still > self.patience:
            sleep(self.pause(pace_of(flowing())))
        elif still > SPIN:
            os.sched_yield()

    def still(self, moves: int) -> float:
        """Seconds since something moved. moves: how much did just now."""
        still = perf_counter() - self.moved
        if not moves:
            return still
        if still > SPIN:  # else it came together with what moved before
            self._gap_before, self._idle_before = self._idle / self._moves, self._idle
            self._idle, self._moves = still, 0
            self.patience = 0.0 if min(still, self._idle_before) > PATIENCE else PATIENCE
        self._moves += moves
        self.restart()
        return 0.0
