"""Locks that a child process finds free."""

import os
from threading import RLock
from typing import Any


def lock_for_forks() -> Any:
    """An RLock that no other thread holds when the process forks.

    The thread that holds a lock does not exist in a child, which would wait for it for ever, and
    find what it guards half changed. Such locks are taken in the reverse order of their creation.
    """
    lock = RLock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock
