"""The MPICOLL_* environment variables that decide how calls are served, and what ranks must have in common of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ..errors import ArgumentError

ALGORITHM, TUNING_FILE, PROBE, VERBOSE = "MPICOLL_ALGORITHM", "MPICOLL_TUNING_FILE", "MPICOLL_PROBE", "MPICOLL_VERBOSE"


def algorithm() -> str:
    """The text of MPICOLL_ALGORITHM."""
    return os.environ.get(ALGORITHM, "")


def tuning_file() -> Path | None:
    """The tuning table named by MPICOLL_TUNING_FILE, or None."""
    name = os.environ.get(TUNING_FILE)
    return Path(name) if name else None


def probe() -> bool:
    """Whether an unknown transport may be measured at first use."""
    return _switch(PROBE, default=True)


def verbose() -> bool:
    """Whether rank 0 says on standard error what served each new call, and why."""
    return _switch(VERBOSE, default=False)


def _switch(name: str, default: bool) -> bool:
    text = os.environ.get(name, "").lower()
    if text not in ("", "0", "1", "off", "on", "no", "yes", "false", "true"):
        raise ArgumentError(f"{name}={text}: expected 0 or 1")
    return default if not text else text in ("1", "on", "yes", "true")


def fingerprint() -> dict[str, str]:
    """What must be equal on all ranks, by name, as text that shows a person the difference."""
    given = {name: os.environ.get(name) or "(not set)" for name in (ALGORITHM, PROBE, VERBOSE)}
    return {**given, TUNING_FILE: _digest()}


def check() -> None:
    """Raise ArgumentError for a switch that is neither on nor off."""
    probe()
    verbose()


def _digest() -> str:
    path = tuning_file()
    if path is None:
        return "(not set)"
    try:
        return f"a table with SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        return f"not readable ({error.strerror})"
