"""The counts of a communicator's calls, which the extension changes, too, where there is one."""

from __future__ import annotations

try:
    from .._engine import Ledger
except ImportError:

    class Ledger:  # type: ignore[no-redef]
        """The counts of a communicator's calls."""

        count: int = 0
        places: int = 0
        sequence: int = 0
        is_hashed: bool = False
        is_closed: bool = False
        messages: int = 0
        nbytes: int = 0


__all__ = ["Ledger"]
