"""Jobs in which something happens to a rank: `python -m benchmarks.run.kills --jobs 100 --seed 1
--json FILE`.

A rank is killed, stopped, raises, ends, or gets stuck; a host is cut off: at a random moment of
random calls or of training with checkpoints (`killed`), on ranks of this machine or, where root
permits, of the virtual cluster. A job is in order if all its processes end by themselves within the
limit of waiting and a grace, if what they printed and left (MPICOLL_REPORT) leads to that rank, and
if each checkpoint is whole. A job depends on its seed and the MPI alone.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from mpicoll.cluster import Cluster
from mpicoll.cluster.installation import find
from mpicoll.cluster.namespaces import unavailable
from mpicoll.errors import ArgumentError
from mpicoll.measure.provenance import command
from mpicoll.reports import diagnose, read_reports

ROOT = Path(__file__).resolve().parents[2]
#: seconds: of MPICOLL_TIMEOUT, beyond it until the last process has ended, and for a start and all
#: that comes before
TIMEOUT = 2
GRACE = 10
START = 40
MARK = "MPICOLL_KILLS_JOB"
#: what lets Open MPI run as root and with more ranks than cores
PERMISSIONS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
WHAT = ("killed", "stopped", "raised", "exited", "busy", "asleep", "holding", "cut")
TRAINING = ["--data", "synthetic:600,32,4", "--hidden", "64,64", "--batch-size", "48"]


@dataclass(frozen=True)
class Plan:
    """One job. hosts: of the virtual cluster; 0: this machine. victim: the rank, or any rank of the
    host.
    """

    seed: int
    mpi: str
    hosts: int
    ranks: int
    work: Any
    what: str
    victim: int
    after: float

    @property
    def victims(self) -> list[int]:
        """The ranks that it happens to."""
        each = self.ranks // (self.hosts or self.ranks)
        first = self.victim // each * each
        return list(range(first, first + each)) if self.what == "cut" else [self.victim]


def planned(seed: int, mpi: str, cluster: bool) -> Plan:
    """The job of a seed. cluster: whether there can be one."""
    random = Random(seed)
    what = random.choice(WHAT)
    hosts = random.choice((2, 3, 4)) if what == "cut" or random.random() < 0.25 else 0
    ranks = hosts * (2 if hosts == 2 else 1) or random.choice((3, 4))
    training = [
        *TRAINING,
        "--strategy",
        random.choice(("allreduce", "zero1", "zero2", "parameter_server")),
        "--overlap",
        random.choice(("none", "gradients", "all")),
        "--seed",
        str(seed),
    ]
    work = random.choice(("calls", "calls", training))
    victim = random.randrange(ranks)
    after = round(random.uniform(0.3, 2.5), 2)
    if not cluster and hosts:
        what = "stopped" if what == "cut" else what
        hosts = 0
    return Plan(seed, mpi, hosts, ranks, work, what, victim, after)


@dataclass
class Outcome:
    """How a job ended. seconds: from the event to the end of the last rank, and of the launcher;
    None: it did not.
    """

    ranks_s: float | None
    launcher_s: float | None
    status: int | None
    happened: bool
    checkpoint: str
    by: list[str]
    output: str
    diagnosis: str

    @property
    def good(self) -> bool:
        """Whether all is in order."""
        ended = self.ranks_s is not None and self.ranks_s <= TIMEOUT + GRACE
        return (
            self.happened
            and ended
            and "diagnose" in self.by
            and not self.checkpoint.startswith("damaged")
        )


def run(plan: Plan) -> Outcome:
    """Start the job, wait until none of its processes is left, and look at what it left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "reports").mkdir()
        job = Running(plan, folder)
        ranks_s, launcher_s = job.watch()
        output = (folder / "output").read_text(errors="replace")
        try:
            said = diagnose(read_reports(folder / "reports"), range(plan.ranks))
        except ArgumentError as error:  # no rank left one
            said = str(error)
        by = explained(plan, output, said)
        happened = (folder / "happened").exists()
        return Outcome(
            ranks_s, launcher_s, job.status, happened, checkpoint(plan, folder), by, output, said
        )


class Running:
    """A job under way, and who watches it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.status = None
        self.mark = f"{MARK}={folder}".encode()
        self.launched = threading.Thread(target=self._in_cluster if plan.hosts else self._here)
        self.over = threading.Event()
        self.launched.start()

    def watch(self) -> tuple[float | None, float | None]:
        """Seconds from the event to the end of the last rank, and of all else."""
        started = time.time()
        happened = None
        ranks_end = None
        all_end = None
        while all_end is None:
            time.sleep(0.05)
            found = processes(self.mark)
            happened = happened or when(self.folder)
            now = time.time()
            begun = happened is not None or now - started > START
            if begun and ranks_end is None and "rank" not in found.values():
                ranks_end = now
            if (begun or self.status is not None) and not found:
                all_end = now
            if now - (happened or started + START) > TIMEOUT + GRACE + 2:
                break
        self.over.set()
        end(self.mark)
        self.launched.join()
        since = happened or when(self.folder) or started
        return (ranks_end or all_end) and (
            ranks_end or all_end
        ) - since, all_end and all_end - since

    def _settings(self) -> dict[str, str]:
        return {
            **os.environ,
            **PERMISSIONS,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "MPICOLL_TIMEOUT": str(TIMEOUT),
            "MPICOLL_REPORT": str(self.folder / "reports"),
            MARK: str(self.folder),
        }

    def _words(self) -> list[str]:
        facts = {**asdict(self.plan), "folder": str(self.folder)}
        return ["-m", "benchmarks.run.killed", json.dumps(facts)]

    def _here(self) -> None:
        python, mpiexec = find(self.plan.mpi)
        words = [mpiexec, "-n", str(self.plan.ranks), python, *self._words()]
        with open(self.folder / "output", "w") as output:
            self.status = subprocess.run(
                words,
                cwd=ROOT,
                env=self._settings(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ).returncode

    def _in_cluster(self) -> None:
        plan = self.plan
        with Cluster(plan.hosts, "1gbit") as cluster, open(self.folder / "output", "w") as output:
            if plan.what == "cut":
                threading.Thread(target=self._cut, args=(cluster,), daemon=True).start()
            self.status = cluster.run(
                ["python", *self._words()],
                plan.mpi,
                ranks_per_host=plan.ranks // plan.hosts,
                cwd=ROOT,
                env=self._settings(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode

    def _cut(self, cluster: Cluster) -> None:
        while len(list(self.folder.glob("ready-*"))) < self.plan.ranks and not self.over.wait(0.05):
            pass
        if not self.over.wait(self.plan.after):
            (self.folder / "happened").write_text(str(time.time()))
            cluster.cut(f"host{self.plan.victims[0] // len(self.plan.victims)}")


def when(folder: Path) -> float | None:
    try:
        return float((folder / "happened").read_text())
    except (OSError, ValueError):
        return None


def processes(mark: bytes, module: bytes = b"benchmarks.run.killed") -> dict[int, str]:
    """Those of the job, by number: "rank", which runs the module, or who starts ranks."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                words = (path / "cmdline").read_bytes().split(b"\0")
                found[int(path.name)] = (
                    "rank" if b"python" in words[0] and module in words else "launcher"
                )
        except OSError:  # it has ended
            pass
    return found


def end(mark: bytes) -> None:
    """Kill those of the job that are left."""
    for pid in processes(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def explained(plan: Plan, output: str, diagnosis: str) -> list[str]:
    """What leads to the victims, and to no other rank: the reports, what ranks printed, the
    launcher.
    """
    names = f"rank{'s' if len(plan.victims) > 1 else ''} {', '.join(map(str, plan.victims))}"
    verdict = rf"So [^\n]*\b(?<!and ){names}\b(?!, \d| and)"
    if plan.what == "cut" and plan.hosts == 2:  # nobody can tell which side was cut off
        verdict += "|So the network is down between ranks 0, 1 and ranks 2, 3"
    words = [
        ("diagnose", re.search(verdict, diagnosis.splitlines()[-1])),
        # a launcher that ends all others at once: nobody can tell which of those was the first
        (
            "among the first",
            re.search(rf"So ranks [^\n]*\b{plan.victim}\b[^\n]* died first", diagnosis),
        ),
        ("ranks", re.search(rf"{verdict}|mpicoll: {names} (failed|ended)", output)),
        ("launcher", re.search(rf"rank {plan.victim}\s[^.]*exited on\s+signal 9", output)),
    ]
    return [name for name, found in words if found]


def checkpoint(plan: Plan, folder: Path) -> str:
    """Whether training goes on from what was saved."""
    directory = folder / "checkpoints"
    steps = (
        sorted(int(path.name.split("-")[1]) for path in directory.glob("step-*"))
        if directory.exists()
        else []
    )
    if not steps:
        return ""
    python, mpiexec = find(plan.mpi)
    words = [
        mpiexec,
        "-n",
        "2",
        python,
        "-m",
        "mpicoll",
        "train",
        *plan.work,
        "--steps",
        str(steps[-1] + 1),
        "--checkpoint",
        str(directory),
        "--resume",
    ]
    said = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, **PERMISSIONS, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    whole = said.returncode == 0 and "skipped" not in said.stderr
    return (
        f"went on from step {steps[-1]}"
        if whole
        else f"damaged: {said.stdout[-500:]}{said.stderr[-1500:]}"
    )


def main() -> int:
    options = _options()
    mpis = sorted(options.mpi, reverse=True)
    cluster = not unavailable()
    seeds = [seed for first in options.seed for seed in range(first, first + options.jobs)]
    plans = [planned(seed, mpis[seed % len(mpis)], cluster) for seed in seeds]
    results = []
    with ThreadPoolExecutor(options.at_once) as pool:
        for plan, outcome in zip(plans, pool.map(run, plans)):
            results.append(row(plan, outcome))
            print(text(results[-1]), flush=True)
            if not outcome.good or options.verbose:
                print(
                    f"--- output\n{outcome.output[-6000:]}\n--- diagnose\n{outcome.diagnosis}\n---",
                    flush=True,
                )
    print(summary(results))
    if options.json:
        document = {
            "schema": 1,
            "environment": environment(mpis),
            "summary": summary(results),
            "results": results,
        }
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0 if all(one["good"] for one in results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--jobs", type=int, default=1, help="default 1")
    add(
        "--seed",
        type=int,
        nargs="+",
        default=[1],
        help="of the first job; that of the next is one more (default 1)",
    )
    add(
        "--mpi",
        nargs="+",
        choices=("openmpi", "mpich"),
        default=["openmpi", "mpich"],
        help="by turns (default: both)",
    )
    add("--at-once", type=int, default=2, help="jobs at a time (default 2)")
    add("--verbose", action="store_true", help="show what each job printed")
    add("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def row(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What is kept of a job."""
    where = f"{plan.hosts} hosts" if plan.hosts else "one machine"
    work = (
        plan.work if plan.work == "calls" else f"training, {plan.work[7]}, overlap {plan.work[9]}"
    )
    seconds = {
        name: None if value is None else round(value, 2)
        for name, value in (("ranks_s", outcome.ranks_s), ("launcher_s", outcome.launcher_s))
    }
    return {
        "seed": plan.seed,
        "mpi": plan.mpi,
        "where": where,
        "ranks": plan.ranks,
        "work": work,
        "what": plan.what,
        "victims": plan.victims,
        "after": plan.after,
        **seconds,
        "status": outcome.status,
        "explained_by": outcome.by,
        "checkpoint": outcome.checkpoint,
        "good": outcome.good,
    }


def text(one: dict[str, Any]) -> str:
    mark = "good" if one["good"] else "BAD "
    return (
        f"{mark} seed {one['seed']:4} {one['mpi']:8}{one['where']:12}{one['ranks']} ranks"
        f" {one['what']:9}{one['victims']} ended after {one['ranks_s']} s (launcher"
        f" {one['launcher_s']} s), by {', '.join(one['explained_by'])}; {one['work']}"
        f" {one['checkpoint']}"
    )


def summary(results: list[dict[str, Any]]) -> str:
    """In a line."""
    bad = sum(not one["good"] for one in results)
    by = Counter(name for one in results for name in one["explained_by"])
    ended = [one["ranks_s"] for one in results if one["ranks_s"] is not None]
    return (
        f"{len(results)} jobs, {bad} not in order; ended after {max(ended, default=0)} s at most;"
        " explained by "
        + ", ".join(f"{name}: {count}" for name, count in by.items())
    )


def environment(mpis: list[str]) -> dict[str, Any]:
    """What it was measured on, of each MPI."""
    return {mpi: _info(mpi) for mpi in mpis} | {
        "command": command(),
        "timeout_s": TIMEOUT,
        "grace_s": GRACE,
    }


def _info(mpi: str) -> dict[str, Any]:
    python, mpiexec = find(mpi)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "info.json")
        subprocess.run(
            [mpiexec, "-n", "2", python, "-m", "mpicoll", "info", "--json", str(path)],
            cwd=ROOT,
            check=True,
            env={**os.environ, **PERMISSIONS, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["environment"]
    return {name: facts[name] for name in ("mpi", "mpi4py", "numpy", "python", "machine", "date")}


if __name__ == "__main__":
    sys.exit(main())
