"""Jobs in which something happens to a rank.

    python -m benchmarks.run.kills --jobs 100 --seed 1 --json FILE

A rank is killed, stopped, raises, ends, or gets stuck; a host is cut off: at a random moment of
random calls or of training with checkpoints (`killed`), on ranks of this machine or, where root
permits, of the virtual cluster. A job is in order if all its processes end by themselves within the
limit of waiting and a grace, if what they printed and left (MPICOLL_REPORT) leads to that rank, and
if each checkpoint is whole. A job depends on its seed and the MPI alone.
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from mpicoll.cluster import Cluster
from mpicoll.cluster.namespaces import unavailable
from mpicoll.errors import ArgumentError
from mpicoll.reports import diagnose, read_reports

from .campaign import (
    MARK,
    ROOT,
    Row,
    carry_out,
    end,
    environment,
    launched,
    parser_of_jobs,
    processes,
    seeds,
    settings,
)

#: seconds: of MPICOLL_TIMEOUT, beyond it until the last process has ended, and for a start and all
#: that comes before
TIMEOUT = 2
GRACE = 10
START = 40
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


def run(plan: Plan) -> Row:
    """Start the job, wait until none of its processes is left; a row of the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "reports").mkdir()
        job = Running(plan, folder)
        ranks_s, launcher_s = job.watch()
        output = (folder / "output").read_text(errors="replace")
        try:
            diagnosis = diagnose(read_reports(folder / "reports"), range(plan.ranks))
        except ArgumentError as error:  # no rank left one
            diagnosis = str(error)
        by = explained(plan, output, diagnosis)
        saved = checkpoint(plan, folder)
        ended = ranks_s is not None and ranks_s <= TIMEOUT + GRACE
        named = {"diagnose", "among the first"} & set(by)
        good = ended and (folder / "happened").exists() and bool(named)
        training = not isinstance(plan.work, str)
        return {
            "seed": plan.seed,
            "mpi": plan.mpi,
            "where": f"{plan.hosts} hosts" if plan.hosts else "one machine",
            "ranks": plan.ranks,
            "work": f"training, {plan.work[7]}, overlap {plan.work[9]}" if training else plan.work,
            "what": plan.what,
            "victims": plan.victims,
            "after": plan.after,
            "ranks_s": _rounded(ranks_s),
            "launcher_s": _rounded(launcher_s),
            "status": job.status,
            "explained_by": by,
            "checkpoint": saved,
            "good": good and not saved.startswith("damaged"),
            "output": f"--- output\n{output[-6000:]}\n--- diagnose\n{diagnosis}\n---",
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


class Running:
    """A job under way, and who watches it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.status: int | None = None
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
        last = ranks_end or all_end
        return last and last - since, all_end and all_end - since

    def _settings(self) -> dict[str, str]:
        ours = {"MPICOLL_TIMEOUT": str(TIMEOUT), "MPICOLL_REPORT": str(self.folder / "reports")}
        return settings(PYTHONUNBUFFERED="1", **ours, **{MARK: str(self.folder)})

    def _words(self) -> list[str]:
        facts = {**asdict(self.plan), "folder": str(self.folder)}
        return ["-m", "benchmarks.run.killed", json.dumps(facts)]

    def _here(self) -> None:
        plan = self.plan
        output = self.folder / "output"
        self.status = launched(plan.mpi, plan.ranks, self._words(), output, self._settings())

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
        # a launcher ended others within 5 ms: nobody can tell which of those was the first
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
    steps = [int(path.name.split("-")[1]) for path in directory.glob("step-*")]
    if not steps:
        return ""
    last = max(steps)
    words = ["-m", "mpicoll", "train", *plan.work, "--steps", str(last + 1)]
    words += ["--checkpoint", str(directory), "--resume"]
    output = folder / "resumed"
    status = launched(plan.mpi, 2, words, output, settings(), limit=120)
    said = output.read_text(errors="replace")
    whole = status == 0 and "skipped" not in said
    return f"went on from step {last}" if whole else f"damaged: {said[-2000:]}"


def text_of(row: Row) -> str:
    """A job in a line."""
    return (
        "seed {seed:4} {mpi:8}{where:12}{ranks} ranks {what:9}{victims} ended after {ranks_s} s"
        " (launcher {launcher_s} s), by {by}; {work} {checkpoint}"
    ).format(**row, by=", ".join(row["explained_by"]))


def summary(rows: list[Row]) -> str:
    """In a line."""
    bad = sum(not row["good"] for row in rows)
    by = Counter(name for row in rows for name in row["explained_by"])
    ended = [row["ranks_s"] for row in rows if row["ranks_s"] is not None]
    counts = ", ".join(f"{name}: {count}" for name, count in by.items())
    return (
        f"{len(rows)} jobs, {bad} not in order; ended after {max(ended, default=0)} s at most;"
        f" explained by {counts}"
    )


def main() -> int:
    parser = parser_of_jobs(__doc__, at_once=2)
    both = ("openmpi", "mpich")
    parser.add_argument("--mpi", nargs="+", choices=both, default=both, help="by turns (both)")
    options = parser.parse_args()
    mpis = sorted(options.mpi, reverse=True)
    cluster = not unavailable()
    plans = [planned(seed, mpis[seed % len(mpis)], cluster) for seed in seeds(options)]
    facts = environment(mpis) if options.json else {}
    facts |= {"timeout_s": TIMEOUT, "grace_s": GRACE}
    return carry_out(plans, run, text_of, summary, options, facts)


if __name__ == "__main__":
    sys.exit(main())
