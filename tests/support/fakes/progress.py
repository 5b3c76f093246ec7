"""`Progress` that only the test advances, by `poll` and `wait`."""

from mpicoll.progress.engine import Progress


class ManualProgress(Progress):
    """Stricter than the original: no thread of its own advances a task that the test forgot."""

    def _attend(self):
        """Start no thread."""
