"""How long calls have made no progress, so far as this process ran and could see it."""

from time import perf_counter

#: seconds between two looks
LOOK = 5e-3


class Stall:
    """A clock that counts from the last move, and stands between distant looks.

    The time since the last look counts for at most so many seconds as the look says: what passed
    beyond that, this process was stopped (SIGSTOP, a debugger), had no core, or was busy with the
    call itself, which is no wait.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._seen = 0.0
        self.restart()

    def restart(self) -> None:
        """Something moved."""
        self._since = self._seen = perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next look."""
        return perf_counter() - self._seen >= LOOK

    def look(self, most: float) -> float:
        """Nothing has moved: seconds since something did. most: that count since the last look."""
        now = perf_counter()
        # threads that look at once move the beginning twice: the limit then comes later
        self._since += max(0.0, now - self._seen - most)
        self._seen = now
        return now - self._since
