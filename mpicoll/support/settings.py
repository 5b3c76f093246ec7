"""The MPICOLL_* environment variables, and the values that must be equal on all ranks."""

from __future__ import annotations

import hashlib
import os
from math import inf
from pathlib import Path
from typing import Literal

from ..errors import ArgumentError, did_you_mean

ALGORITHM = "MPICOLL_ALGORITHM"
TUNING_FILE = "MPICOLL_TUNING_FILE"
PROBE = "MPICOLL_PROBE"
VERBOSE = "MPICOLL_VERBOSE"
CHECK = "MPICOLL_CHECK"
TIMEOUT = "MPICOLL_TIMEOUT"
ON_TIMEOUT = "MPICOLL_ON_TIMEOUT"
REPORT = "MPICOLL_REPORT"
GPU = "MPICOLL_GPU"
SHARED_MEMORY = "MPICOLL_SHARED_MEMORY"
ENGINE = "MPICOLL_ENGINE"
DETERMINISTIC = "MPICOLL_DETERMINISTIC"
REPRODUCIBLE = "MPICOLL_REPRODUCIBLE"
PROFILE = "MPICOLL_PROFILE"
TORCH_AS = "MPICOLL_TORCH_AS"

#: in the order of a fingerprint; a tuning file counts by its content
_COMPARED = (
    ALGORITHM,
    PROBE,
    VERBOSE,
    CHECK,
    TIMEOUT,
    ON_TIMEOUT,
    REPORT,
    GPU,
    SHARED_MEMORY,
    ENGINE,
    DETERMINISTIC,
    REPRODUCIBLE,
    PROFILE,
    TORCH_AS,
)
_VARIABLES = {*_COMPARED, TUNING_FILE}
_OF_TESTS = {
    "MPICOLL_EVENTS",
    "MPICOLL_TEST_ALL",
    "MPICOLL_TEST_CLUSTER",
    "MPICOLL_KILLS_JOB",
    "MPICOLL_TORCH_TMP",
}
_PROBE_SECONDS = 0.5

CheckMode = Literal[
    "off", "first", "always", "digest", "off,digest", "first,digest", "always,digest"
]
#: ranks never compare their calls
OFF = "off"
#: ranks compare a call the first time that it occurs
FIRST = "first"
#: ranks compare each call
ALWAYS = "always"
#: ranks compare results that must be equal
DIGEST = "digest"

#: MPI gets device pointers where it is known to accept them; programs run in C where they can
AUTO = "auto"
#: messages of device memory pass through host memory
STAGED = "staged"
#: MPI gets device pointers in any case
DIRECT = "direct"
#: programs run in C, or it is an error
C = "c"
#: programs run in Python
PYTHON = "python"


def algorithm() -> str:
    """The text of MPICOLL_ALGORITHM."""
    return os.environ.get(ALGORITHM, "")


def tuning_file() -> Path | None:
    """The tuning table named by MPICOLL_TUNING_FILE, or None."""
    name = os.environ.get(TUNING_FILE)
    return Path(name) if name else None


def probe() -> float:
    """Seconds to measure an unknown transport, for a collective and a decade of sizes; 0: never."""
    text = os.environ.get(PROBE, "").lower()
    if not text or text.isalpha():
        return _PROBE_SECONDS * _switch(PROBE, default=True)
    return _seconds(text, f"{PROBE}={text}: expected seconds, or 0 for no probe")


def verbose() -> bool:
    """Whether rank 0 prints to standard error what serves each new call, and why."""
    return _switch(VERBOSE, default=False)


def profile() -> bool:
    """Whether rank 0 prints at the end all calls with their times (MPICOLL_PROFILE)."""
    return _switch(PROFILE, default=False)


def torch_as() -> list[str]:
    """The backends of PyTorch that mpicoll replaces (MPICOLL_TORCH_AS), such as "gloo"."""
    return [name for name in os.environ.get(TORCH_AS, "").lower().split(",") if name]


def check_mode(argument: str | None = None) -> str:
    """When calls are compared: the argument, else MPICOLL_CHECK, else the first time."""
    return _checks(argument)[0]


def digest_every(argument: str | None = None) -> int:
    """N, where ranks compare every N-th result that must be equal; 0: none. From the same words."""
    return _checks(argument)[1]


def _checks(argument: str | None) -> tuple[str, int]:
    """The results of check_mode and digest_every, from words such as "always,digest:10"."""
    text = (argument or os.environ.get(CHECK, "")).lower()
    mode = FIRST
    every = 0
    for word in text.split(",") if text else ():
        name, _, number = word.partition(":")
        is_count = number.isdecimal() and len(number) < 10 and int(number) > 0
        if word in (OFF, FIRST, ALWAYS):
            mode = word
        elif name == DIGEST and (is_count or word == DIGEST):
            every = int(number or 1)
        else:
            raise ArgumentError(
                f"{'check' if argument else CHECK}={text}: expected {OFF}, {FIRST} or {ALWAYS}; "
                f"or {DIGEST} or {DIGEST}:N, also behind one of these and a comma"
            )
    return mode, every


def timeout(argument: float | None = None) -> float | None:
    """Seconds without progress after which a collective fails; None: never.

    The argument, else MPICOLL_TIMEOUT.
    """
    text = argument if argument is not None else os.environ.get(TIMEOUT) or None
    if text is None:
        return None
    name = "timeout" if argument is not None else TIMEOUT
    return _seconds(text, f"{name}={text}: expected seconds, or 0 for no limit") or None


def deterministic(argument: bool | None = None) -> bool:
    """Whether floats are always added in the canonical order.

    The argument, else MPICOLL_DETERMINISTIC.
    """
    return _switch(DETERMINISTIC, default=False) if argument is None else bool(argument)


def reproducible(argument: bool | None = None) -> bool:
    """Whether floats are added in fixed point: the argument, else MPICOLL_REPRODUCIBLE."""
    return _switch(REPRODUCIBLE, default=False) if argument is None else bool(argument)


def _seconds(text: str | float, problem: str) -> float:
    """The value of a text. Raises ArgumentError with the `problem`."""
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
    """The folder in which each rank writes its reports (MPICOLL_REPORT), or None."""
    name = os.environ.get(REPORT)
    return Path(name) if name else None


def gpu() -> str:
    """How messages of device memory travel (MPICOLL_GPU)."""
    word = os.environ.get(GPU) or AUTO
    if word not in (AUTO, STAGED, DIRECT):
        raise ArgumentError(f"{GPU}={word}: expected {AUTO}, {DIRECT} or {STAGED}")
    return word


def engine() -> str:
    """Which interpreter executes programs (MPICOLL_ENGINE)."""
    word = os.environ.get(ENGINE, "").lower() or AUTO
    if word not in (AUTO, C, PYTHON):
        raise ArgumentError(f"{ENGINE}={word}: expected {AUTO}, {C} or {PYTHON}")
    return word


def shared_memory() -> bool:
    """Whether ranks of a node may read each other's memory (MPICOLL_SHARED_MEMORY)."""
    return _switch(SHARED_MEMORY, default=True)


def _switch(name: str, default: bool) -> bool:
    text = os.environ.get(name, "").lower()
    if text not in ("", "0", "1", "off", "on", "no", "yes", "false", "true"):
        raise ArgumentError(f"{name}={text}: expected 0 or 1")
    return default if not text else text in ("1", "on", "yes", "true")


def fingerprint() -> dict[str, str]:
    """The settings, which must be equal on all ranks, as texts that an error can show."""
    values = {name: os.environ.get(name) or "(not set)" for name in _COMPARED}
    return {**values, TUNING_FILE: _digest()}


def unknown() -> str:
    """The problem of variables that start with MPICOLL_ but do not exist; "" without any."""
    names = {name for name in os.environ if name.startswith("MPICOLL_")}
    return "; ".join(
        f"{name} is no variable of mpicoll{did_you_mean(name, _VARIABLES)}"
        for name in sorted(names - _VARIABLES - _OF_TESTS)
    )


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
    engine()
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
