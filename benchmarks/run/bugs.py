"""Faulty programs, and what is said of them.

    python -m benchmarks.run.bugs --json FILE

Each program of `faulty` runs on 3 ranks of each MPI: on 4 and on 20,000 numbers, with calls that
are met for the first time and with calls that were met before. A job is named if what it printed,
or `mpicoll diagnose` of what it left, has the rank that made the mistake together with its line; it
is unnoticed if nothing says so. A million legal calls must raise nothing.
"""

import ast
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mpicoll.errors import ArgumentError
from mpicoll.reports import diagnose, read_reports

from .campaign import MARK, end, environment, launched, settings, write
from .campaign import parser as campaign_parser

PROGRAMS = Path(__file__).with_name("faulty.py")
#: seconds: of MPICOLL_TIMEOUT, and after which a job is ended
TIMEOUT = 2
LIMIT = 60
RANKS = 3
WRONG = 1
SIZES = (4, 20_000)
#: what is asked for: a limit of waiting, which everybody should set; and all checks
MODES = {
    "timeout": {"MPICOLL_TIMEOUT": str(TIMEOUT)},
    "all checks": {"MPICOLL_TIMEOUT": str(TIMEOUT), "MPICOLL_CHECK": "always,digest"},
}
#: where neither the number of elements nor what came before makes a difference to who notices
ONCE = {"invalid argument", "life of requests", "messages", "communicator"}


@dataclass(frozen=True)
class Job:
    """One program, run once."""

    kind: str
    name: str
    size: int
    met: bool
    mpi: str
    mode: str


@cache
def lines() -> dict[str, tuple[str, list[int]]]:
    """The class of each program, and the lines that are wrong."""
    text = PROGRAMS.read_text(encoding="utf-8")
    marked = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")]
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            (decorator,) = node.decorator_list
            assert isinstance(decorator, ast.Call) and node.end_lineno
            inside = [number for number in marked if node.lineno <= number <= node.end_lineno]
            found[node.name] = ast.literal_eval(decorator.args[0]), inside
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CALLS":
            assert isinstance(node.value, ast.Dict)
            for kind, calls in zip(node.value.keys, node.value.values):
                assert kind and isinstance(calls, ast.Dict)
                for name, call in zip(calls.keys, calls.values):
                    assert name and call.end_lineno
                    numbers = list(range(call.lineno, call.end_lineno + 1))
                    found[ast.literal_eval(name)] = ast.literal_eval(kind), numbers
    return found


def jobs(mpis: list[str], modes: list[str], only: list[str] | None) -> Iterator[Job]:
    """All of them."""
    for name, (kind, _) in lines().items():
        if only and name not in only and kind not in only:
            continue
        for size in SIZES:
            for met in (False, True):
                if kind not in ONCE or met == (size == SIZES[0]):
                    yield from (
                        Job(kind, name, size, met, mpi, mode) for mpi in mpis for mode in modes
                    )


def run(job: Job) -> tuple[str, str]:
    """(what is said of it: "named", "rank", "noticed" or "unnoticed"; all that was said)."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        reports = Path(name, "reports")
        output = start(
            job.mpi, [job.name, str(job.size), *["met"] * job.met], reports, MODES[job.mode]
        )
        try:
            output += f"--- diagnose\n{diagnose(read_reports(reports), range(RANKS))}\n"
        except ArgumentError as error:
            output += f"--- diagnose\n{error}\n"
    return judged(job.name, output), output


def start(
    mpi: str, words: list[str], reports: Path, more: dict[str, str], limit: float = LIMIT
) -> str:
    """What a job of `faulty` prints."""
    output = reports.with_name("output")
    mark = str(reports.parent)
    environ = settings(MPICOLL_REPORT=str(reports), **{MARK: mark}, **more)
    program = ["-m", "benchmarks.run.faulty", *words]
    status = launched(mpi, RANKS, program, output, environ, limit)
    end(f"{MARK}={mark}".encode())
    said = output.read_text(errors="replace")
    return said if status is not None else f"{said}\n--- ended after {limit} s\n"


def judged(name: str, output: str) -> str:
    """What is said of the mistake."""
    if name == "ended" and f"Rank {WRONG} came to the end of the program" in output:
        return "named"  # it is in no line any more
    numbers = "|".join(map(str, lines()[name][1]))
    rank = rf"\b[Rr]anks? (\d+, )*{WRONG}\b"
    site = rf"faulty\.py(:|\", line )({numbers})\b"
    together = any(re.search(rank, line) and re.search(site, line) for line in output.splitlines())
    failed = re.search(rf"rank {WRONG} (failed|ended)", output) and re.search(site, output)
    if together or failed:
        return "named"
    if output.count("came to its end") == RANKS:
        return "unnoticed"
    return "rank" if re.search(rank, output) else "noticed"


def main() -> int:
    parser = campaign_parser(__doc__)
    add = parser.add_argument
    mpis = ("mpich", "openmpi")
    add("--mpi", nargs="+", choices=mpis, default=list(mpis), help="default: both")
    add("--mode", nargs="+", choices=tuple(MODES), default=list(MODES), help="default: all")
    add("--only", nargs="+", metavar="NAME", help="programs or classes (default: all)")
    add("--legal", type=int, default=1_000_000, help="legal calls of each MPI and mode (1,000,000)")
    add("--at-once", type=int, default=1, help="jobs at a time (default 1)")
    add("--verbose", action="store_true", help="show what each job printed")
    options = parser.parse_args()
    document: dict[str, Any] = {
        "schema": 1,
        "environment": environment(options.mpi),
        "results": [],
        "legal": [],
    }
    if options.json and options.json.exists():
        document = json.loads(options.json.read_text(encoding="utf-8"))
    results = document["results"]
    allowed = document["legal"]

    def keep() -> None:
        write(options.json, document)

    done = {Job(**{name: row[name] for name in Job.__annotations__}) for row in results}
    every = [job for job in jobs(options.mpi, options.mode, options.only) if job not in done]
    with ThreadPoolExecutor(options.at_once) as pool:
        for job, (said, output) in zip(every, pool.map(run, every)):
            results.append({**asdict(job), "said": said})
            print(
                "{said:10}{kind:18}{name:26}{size:6} {seen:6}{mpi:8} {mode}".format(
                    **results[-1], seen="met" if job.met else "first"
                ),
                flush=True,
            )
            if options.verbose:
                print(output)
            keep()
    for mpi in options.mpi if options.legal else ():
        for mode in options.mode:
            allowed.append(legal(mpi, mode, options.legal))
            keep()
    print(summary(results, allowed))
    return 0


def legal(mpi: str, mode: str, calls: int) -> dict[str, Any]:
    """So many legal calls: what they raised, and what was said of them."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        output = start(mpi, ["legal", str(calls)], Path(name, "reports"), MODES[mode], limit=3600)
    alarms = output.count(f"legal calls: {calls}") != RANKS or "mpicoll: rank" in output
    if alarms:
        print(output[-4000:])
    return {"mpi": mpi, "mode": mode, "calls": calls * RANKS, "false_alarms": int(alarms)}


def summary(results: list[dict[str, Any]], allowed: list[dict[str, Any]]) -> str:
    """In a few lines."""
    text = []
    for mode in dict.fromkeys(one["mode"] for one in results):
        rows = [one for one in results if one["mode"] == mode]
        named = sum(one["said"] == "named" for one in rows)
        text.append(
            f"{mode}: {named} of {len(rows)} named with rank and line ({named / len(rows):.1%})"
        )
    calls, alarms = (sum(one[name] for one in allowed) for name in ("calls", "false_alarms"))
    return "\n".join([*text, f"{calls:,} legal calls, {alarms} false alarms"])


if __name__ == "__main__":
    sys.exit(main())
