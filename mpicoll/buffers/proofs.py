"""What trials of device pointers have shown, in the user's cache folder: a file for each machine, MPI, driver and CuPy."""

import hashlib
import json
import os
import platform
import re
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..support import gpus
from ..support.files import named, parse_json, write_whole
from ..support.quirks import library_text

#: what decides which libraries carry messages, and how: over another transport a proof is none
_TRANSPORT = re.compile(
    r"UCX_.+|FI_.+|PSM\d?_.+|MPIR_CVAR_.+|MPICH_.+|I_MPI_(?!HYDRA).+|MV2_.+|LD_PRELOAD|LD_LIBRARY_PATH"
    r"|OMPI_MCA_(pml|btl|mtl|coll|osc|opal|accelerator|smsc|rcache|mpool)(_.+)?"
)


class Result(NamedTuple):
    """Of a trial. said: what it showed, or why it failed; when: its date and time."""

    passed: bool
    said: str
    when: str


def circumstances() -> dict[str, Any]:
    """What a result holds for. Raises LaunchError where there is no GPU."""
    cupy = gpus.working_cupy()
    return {
        "machine": platform.node(),
        "mpi": library_text(),
        "driver": [gpus.driver_version(), cupy.cuda.runtime.driverGetVersion()],
        "cupy": cupy.__version__,
        "transport": {name: _without_repetition(value) for name, value in sorted(os.environ.items())
                      if _TRANSPORT.fullmatch(name)},
    }  # fmt: skip


def _without_repetition(value: str) -> str:
    """Launchers add their folder to LD_LIBRARY_PATH each time."""
    return ":".join(dict.fromkeys(value.split(":")))


def place(of: dict[str, Any]) -> Path:
    """The file for these circumstances."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~/.cache"))
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode(errors="surrogateescape")).hexdigest()
    return folder / "mpicoll" / f"device-pointers-{digest[:16]}.json"


def read(of: dict[str, Any]) -> Result | None:
    """The last trial's result in these circumstances; None where there is none that can be read."""
    try:
        found = parse_json(place(of).read_bytes())
    except (OSError, ArgumentError):
        return None
    if not isinstance(found, dict) or found.get("of") != of or not isinstance(found.get("passed"), bool):
        return None
    return Result(found["passed"], str(found.get("said")), str(found.get("when")))


def keep(of: dict[str, Any], result: Result) -> str:
    """Write it for later programs; returns why it could not be written, or nothing."""
    path = place(of)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"schema": 1, "of": of, **result._asdict()}, indent=1) + "\n")
    except OSError as error:
        return f"cannot make {named(path.parent)} ({error.strerror})"
    except ArgumentError as error:
        return str(error)
    return ""
