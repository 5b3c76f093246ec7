"""How often to look whether something moved, so that looking does not take the cores from those who compute."""

from time import perf_counter

#: seconds: look without pause while something moved in the last SPIN. A call that waits lets others have its core after
#: that, and pauses only when nothing moved for PATIENCE
SPIN, PATIENCE = 50e-6, 250e-6


class Rhythm:
    """When to pause between two looks, and for how long: by how far apart things lately moved.

    A look costs a core some 20 us, and what is on its way moves without it. Where twice in a row nothing moved for more
    than PATIENCE, it is not waited for in vain again: the next pause begins at once, and is a part of `gap`, the shorter of
    the two times. least, most: seconds of a pause.

    >>> rhythm = Rhythm(least=200e-6, most=2e-3)
    >>> for _ in range(2):
    ...     print(rhythm.pause(parts=2), rhythm.patience)
    ...     rhythm.moved -= 1
    ...     _ = rhythm.still(moved=True)
    0.0002 0.00025
    0.0002 0.00025
    >>> rhythm.pause(parts=2), rhythm.patience
    (0.002, 0.0)
    """

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self.gap, self.patience, self._before = 0.0, PATIENCE, 0.0
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self.moved = perf_counter()

    def pause(self, parts: int) -> float:
        """Seconds to pause: each look takes the core from others."""
        return self.rest(self.gap, parts)

    def rest(self, idle: float, parts: int) -> float:
        """The same, where nothing was to be seen for so many seconds."""
        return min(max(self._least, idle / parts), self._most)

    def still(self, moved: bool) -> float:
        """Seconds since something moved. moved: whether something did just now."""
        still = perf_counter() - self.moved
        if not moved:
            return still
        if still > SPIN:  # else it came together with what moved before
            self.gap, self._before = min(still, self._before), still
            self.patience = 0.0 if self.gap > PATIENCE else PATIENCE
        self.restart()
        return 0.0
