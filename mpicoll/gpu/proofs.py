"""Results of trials of device pointers, kept in files of the user's cache folder."""

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

#: variables that choose the transport of messages: a result holds for one transport only
_TRANSPORT = re.compile(
    r"UCX_.+|FI_.+|PSM\d?_.+|MPIR_CVAR_.+|MPICH_.+|I_MPI_(?!HYDRA).+|MV2_.+"
    r"|LD_PRELOAD|LD_LIBRARY_PATH"
    r"|OMPI_MCA_(pml|btl|mtl|coll|osc|opal|accelerator|smsc|rcache|mpool)(_.+)?"
)


class Result(NamedTuple):
    """The result of a trial."""

    passed: bool
    #: what it showed, or why it failed
    said: str
    #: its date and time
    when: str


def circumstances() -> dict[str, Any]:
    """What a result depends on. Raises LaunchError where there is no GPU."""
    cupy = gpus.working_cupy()
    variables = sorted(os.environ.items())
    return {
        "machine": platform.node(),
        "mpi": library_text(),
        "driver": [gpus.driver_version(), cupy.cuda.runtime.driverGetVersion()],
        "cupy": cupy.__version__,
        "transport": {
            name: _without_repetition(value)
            for name, value in variables
            if _TRANSPORT.fullmatch(name)
        },
    }


def _without_repetition(value: str) -> str:
    """A path without repetitions: launchers add a folder to LD_LIBRARY_PATH at each launch."""
    return ":".join(dict.fromkeys(value.split(":")))


def place(of: dict[str, Any]) -> Path:
    """The file for these circumstances."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if os.path.isabs(cache) else Path(os.path.expanduser("~/.cache"))
    text = json.dumps(of, sort_keys=True).encode(errors="surrogateescape")
    digest = hashlib.sha256(text).hexdigest()
    return folder / "mpicoll" / f"device-pointers-{digest[:16]}.json"


def read(of: dict[str, Any]) -> Result | None:
    """The last trial's result in these circumstances, or None where no file can be read."""
    try:
        record = parse_json(place(of).read_bytes())
    except (OSError, ArgumentError):
        return None
    if not isinstance(record, dict) or record.get("of") != of:
        return None
    if not isinstance(record.get("passed"), bool):
        return None
    return Result(record["passed"], str(record.get("said")), str(record.get("when")))


def keep(of: dict[str, Any], result: Result) -> str:
    """Write a result for later programs; returns what prevents it, or an empty string."""
    path = place(of)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"schema": 1, "of": of, **result._asdict()}, indent=1) + "\n")
    except OSError as error:
        return f"cannot make {named(path.parent)} ({error.strerror})"
    except ArgumentError as error:
        return str(error)
    return ""
