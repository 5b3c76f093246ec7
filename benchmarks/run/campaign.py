"""What campaigns of random jobs share: options, environments, launching, printing, results.

A campaign draws a plan from each seed, runs its job, judges it, and says how many jobs were not in
order. One kind runs jobs of its own (`carry_out`), the other is a job itself (`finish`).
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpicoll.cluster.installation import find
from mpicoll.measure.provenance import command

ROOT = Path(__file__).resolve().parents[2]
#: marks the environment of all processes of a job
MARK = "MPICOLL_KILLS_JOB"
#: what lets Open MPI run as root and with more ranks than cores
PERMISSIONS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
#: characters of the output of a bad job that are printed
_SHOWN = 10_000

Row = dict[str, Any]


# Options.


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the option that all have. doc: of the module; its first line is the help."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--json", type=Path, metavar="FILE", help="where results go")
    return made


def parser_on_ranks(doc: str | None, what: str) -> argparse.ArgumentParser:
    """The parser of a campaign that is a job itself. what: it draws, in the plural."""
    made = parser(doc)
    made.add_argument("--seed", type=int, default=0, help=f"of the first {what} (default 0)")
    made.add_argument(
        "--again", type=Path, metavar="FILE", help=f"run those {what} in this file, nothing else"
    )
    return made


def parser_of_jobs(doc: str | None, jobs: int = 1, at_once: int = 1) -> argparse.ArgumentParser:
    """The parser of a campaign that runs jobs."""
    made = parser(doc)
    add = made.add_argument
    add("--jobs", type=int, default=jobs, help=f"for each seed (default {jobs})")
    add("--seed", type=int, nargs="+", default=[1], help="of the first job (default 1)")
    add("--at-once", type=int, default=at_once, help=f"jobs at a time (default {at_once})")
    add("--verbose", action="store_true", help="show what each job printed")
    return made


def seeds(options: argparse.Namespace) -> list[int]:
    """The seeds of the jobs: consecutive ones from each that was given."""
    return [seed for first in options.seed for seed in range(first, first + options.jobs)]


# Jobs.


def settings(**more: str) -> dict[str, str]:
    """The environment of a job."""
    ours = {**PERMISSIONS, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours, **more}


def launched(
    mpi: str,
    ranks: int,
    words: Iterable[str],
    output: Path,
    environ: Mapping[str, str],
    limit: float | None = None,
    survive: bool = False,
) -> int | None:
    """Run `python WORDS` on ranks: the exit status of its launcher, None where it had to be ended.

    Standard output and error go to the file `output`. survive: ranks may outlive others. Processes
    that are left are for the caller to `end`.
    """
    python, mpiexec = find(mpi)
    start = [mpiexec, *(["--with-ft", "ulfm"] if survive else []), "-n", str(ranks), python]
    with open(output, "w") as file:
        process = subprocess.Popen(
            [*start, *words],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            process.terminate()  # launchers then end their ranks
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return None


def processes(mark: bytes, module: bytes = b"benchmarks.run.killed") -> dict[int, str]:
    """The processes of a job: {pid: "rank" if it runs the module, else "launcher"}."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process that has ended
            if mark in (path / "environ").read_bytes().split(b"\0"):
                words = (path / "cmdline").read_bytes().split(b"\0")
                runs = b"python" in words[0] and module in words
                found[int(path.name)] = "rank" if runs else "launcher"
    return found


def end(mark: bytes) -> None:
    """Kill the processes of a job that are left."""
    for pid in processes(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def environment(mpis: Iterable[str]) -> dict[str, Any]:
    """What the jobs ran on, for each MPI."""
    return {mpi: _info(mpi) for mpi in mpis} | {"command": command()}


def _info(mpi: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "info.json")
        words = ["-m", "mpicoll", "info", "--json", str(path)]
        status = launched(mpi, 2, words, Path(name, "output"), settings())
        assert status == 0, Path(name, "output").read_text()
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["environment"]
    return {name: facts[name] for name in ("mpi", "mpi4py", "numpy", "python", "machine", "date")}


# Results.


def write(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write a campaign's document, if it is asked for."""
    if path:
        path.write_text(json.dumps({"schema": 1, **document}, indent=1) + "\n", encoding="utf-8")


def carry_out(
    plans: Sequence[Any],
    run: Callable[[Any], Row],
    text_of: Callable[[Row], str],
    summary: Callable[[list[Row]], Any],
    options: argparse.Namespace,
    facts: Mapping[str, Any],
) -> int:
    """Run all jobs, print a line of each and write results after each; the exit status.

    run: makes a job and returns its row, with `good` and `output`, which is not written.
    """
    rows: list[Row] = []
    bad = 0
    with ThreadPoolExecutor(options.at_once) as pool:
        for row in pool.map(run, plans):
            output = row.pop("output")
            rows.append(row)
            bad += not row["good"]
            print("good" if row["good"] else "BAD ", text_of(row), flush=True)
            if not row["good"] or options.verbose:
                print(output[-_SHOWN:], flush=True)
            document = {"environment": facts, "summary": summary(rows), "results": rows}
            write(options.json, document)
    result = summary(rows)
    text = result if isinstance(result, str) else json.dumps(result)
    print(f"{len(rows)} jobs, {bad} not in order: {text}")
    return int(bad > 0)


def finish(comm: Any, failures: Iterable[str]) -> None:
    """The end of a campaign on ranks: print what failed; exit status 1 if anything did."""
    text = "\n\n".join(filter(None, failures))
    if text and comm.Get_rank() == 0:
        print(text, flush=True)
        comm.Abort(1)
