"""The counts of a communicator's calls, which the extension changes, too, where there is one."""

from __future__ import annotations

from .extension import require_lock

try:
    require_lock()
    from .._engine import Ledger
except ImportError:

    class Ledger:  # type: ignore[no-redef]
        """The counts of a communicator's calls."""

        count = 0
        places = 0
        sequence = 0
        is_hashed = False
        is_closed = False
        is_passing = False
        every = 0
        compared_at = 0
        messages = 0
        nbytes = 0
        thread = 0
        lists_all = False


__all__ = ["Ledger"]
