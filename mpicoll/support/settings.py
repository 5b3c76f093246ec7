"""The MPICOLL_* environment variables that decide how calls are served, and what ranks must have in common of them."""

from __future__ import annotations

import hashlib
import os
from math import inf
from pathlib import Path
from typing import Literal

from ..errors import ArgumentError, did_you_mean

ALGORITHM, TUNING_FILE, PROBE, VERBOSE = "MPICOLL_ALGORITHM", "MPICOLL_TUNING_FILE", "MPICOLL_PROBE", "MPICOLL_VERBOSE"
CHECK, TIMEOUT, ON_TIMEOUT = "MPICOLL_CHECK", "MPICOLL_TIMEOUT", "MPICOLL_ON_TIMEOUT"
REPORT, GPU, SHARED_MEMORY = "MPICOLL_REPORT", "MPICOLL_GPU", "MPICOLL_SHARED_MEMORY"
DETERMINISTIC, REPRODUCIBLE = "MPICOLL_DETERMINISTIC", "MPICOLL_REPRODUCIBLE"
PROFILE, TORCH_AS = "MPICOLL_PROFILE", "MPICOLL_TORCH_AS"

_OF_TESTS = {"MPICOLL_EVENTS", "MPICOLL_TEST_ALL", "MPICOLL_TEST_CLUSTER", "MPICOLL_KILLS_JOB", "MPICOLL_TORCH_TMP"}
_PROBE_SECONDS = 0.5
#: when ranks compare their calls: never, the first time a call is met, each time; and whether they compare results
CheckMode = Literal["off", "first", "always", "digest", "off,digest", "first,digest", "always,digest"]
OFF, FIRST, ALWAYS, DIGEST = "off", "first", "always", "digest"
#: how device memory travels: as pointers where MPI is known to take them, through host memory, as pointers in any case
AUTO, STAGED, DIRECT = "auto", "staged", "direct"


def algorithm() -> str:
    """The text of MPICOLL_ALGORITHM."""
    return os.environ.get(ALGORITHM, "")


def tuning_file() -> Path | None:
    """The tuning table named by MPICOLL_TUNING_FILE, or None."""
    name = os.environ.get(TUNING_FILE)
    return Path(name) if name else None


def probe() -> float:
    """Seconds that measuring an unknown transport may take, for a collective and a decade of sizes; 0: none is measured."""
    text = os.environ.get(PROBE, "").lower()
    if not text or text.isalpha():
        return _PROBE_SECONDS * _switch(PROBE, default=True)
    return _seconds(text, f"{PROBE}={text}: expected seconds, or 0 for no probe")


def verbose() -> bool:
    """Whether rank 0 says on standard error what served each new call, and why."""
    return _switch(VERBOSE, default=False)


def profile() -> bool:
    """Whether rank 0 prints at the end what calls there were, and how long they took (MPICOLL_PROFILE)."""
    return _switch(PROFILE, default=False)


def torch_as() -> list[str]:
    """The backends of PyTorch in whose place ours serves (MPICOLL_TORCH_AS): "gloo", say."""
    return [name for name in os.environ.get(TORCH_AS, "").lower().split(",") if name]


def check_mode(given: str | None = None) -> str:
    """When calls are compared: what was given, else MPICOLL_CHECK, else the first time."""
    return _checks(given)[0]


def digest_every(given: str | None = None) -> int:
    """Of how many results that must be equal on all ranks one is compared, by a digest; 0: none. From the same words."""
    return _checks(given)[1]


def _checks(given: str | None) -> tuple[str, int]:
    """What check_mode and digest_every say: of "always,digest:10", say."""
    text = (given or os.environ.get(CHECK, "")).lower()
    mode, every = FIRST, 0
    for word in text.split(",") if text else ():
        name, _, number = word.partition(":")
        if word in (OFF, FIRST, ALWAYS):
            mode = word
        elif name == DIGEST and (number.isdecimal() and len(number) < 10 and int(number) or word == DIGEST):
            every = int(number or 1)
        else:
            raise ArgumentError(
                f"{'check' if given else CHECK}={text}: expected {OFF}, {FIRST} or {ALWAYS}; "
                f"or {DIGEST} or {DIGEST}:N, also behind one of these and a comma"
            )
    return mode, every


def timeout(given: float | None = None) -> float | None:
    """Seconds without progress after which a collective fails: what was given, else MPICOLL_TIMEOUT; None: never."""
    text = given if given is not None else os.environ.get(TIMEOUT) or None
    if text is None:
        return None
    name = "timeout" if given is not None else TIMEOUT
    return _seconds(text, f"{name}={text}: expected seconds, or 0 for no limit") or None


def deterministic(given: bool | None = None) -> bool:
    """Whether floats are added in the canonical order alone: what was given, else MPICOLL_DETERMINISTIC."""
    return _switch(DETERMINISTIC, default=False) if given is None else bool(given)


def reproducible(given: bool | None = None) -> bool:
    """Whether floats are added in fixed point: what was given, else MPICOLL_REPRODUCIBLE."""
    return _switch(REPRODUCIBLE, default=False) if given is None else bool(given)


def _seconds(text: str | float, problem: str) -> float:
    """The number that a text means. Raises ArgumentError with the `problem`."""
    try:
        seconds = float(text)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise ArgumentError(problem)
    return seconds


def only_report() -> bool:
    """Whether a call that takes too long is only reported (MPICOLL_ON_TIMEOUT=report)."""
    action = os.environ.get(ON_TIMEOUT, "").lower() or "raise"
    if action not in ("raise", "report"):
        raise ArgumentError(f"{ON_TIMEOUT}={action}: expected raise or report")
    return action == "report"


def report_folder() -> Path | None:
    """Where each rank leaves what it is doing (MPICOLL_REPORT), or None."""
    name = os.environ.get(REPORT)
    return Path(name) if name else None


def gpu() -> str:
    """What was asked for device memory (MPICOLL_GPU)."""
    asked = os.environ.get(GPU) or AUTO
    if asked not in (AUTO, STAGED, DIRECT):
        raise ArgumentError(f"{GPU}={asked}: expected {AUTO}, {DIRECT} or {STAGED}")
    return asked


def shared_memory() -> bool:
    """Whether ranks of a node may read each other's memory (MPICOLL_SHARED_MEMORY)."""
    return _switch(SHARED_MEMORY, default=True)


def _switch(name: str, default: bool) -> bool:
    text = os.environ.get(name, "").lower()
    if text not in ("", "0", "1", "off", "on", "no", "yes", "false", "true"):
        raise ArgumentError(f"{name}={text}: expected 0 or 1")
    return default if not text else text in ("1", "on", "yes", "true")


def fingerprint() -> dict[str, str]:
    """What must be equal on all ranks, by name, as text that shows a person the difference."""
    names = (ALGORITHM, PROBE, VERBOSE, CHECK, TIMEOUT, ON_TIMEOUT, REPORT, GPU, SHARED_MEMORY, DETERMINISTIC,
             REPRODUCIBLE, PROFILE, TORCH_AS)  # fmt: skip
    given = {name: os.environ.get(name) or "(not set)" for name in names}
    return {**given, TUNING_FILE: _digest()}


def unknown() -> str:
    """What is wrong with variables that are spelt like ours and are none; empty where there are none."""
    known = {value for value in globals().values() if isinstance(value, str) and value.startswith("MPICOLL_")}
    found = sorted(name for name in os.environ if name.startswith("MPICOLL_") and name not in known | _OF_TESTS)
    return "; ".join(f"{name} is no variable of mpicoll{did_you_mean(name, known)}" for name in found)


def check() -> None:
    """Raise ArgumentError for a setting that cannot be used."""
    probe()
    verbose()
    profile()
    check_mode()
    timeout()
    only_report()
    gpu()
    shared_memory()
    deterministic()
    reproducible()


def _digest() -> str:
    path = tuning_file()
    if path is None:
        return "(not set)"
    try:
        return f"a table with SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        return f"not readable ({error.strerror})"
