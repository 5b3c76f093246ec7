"""Trainings that lose ranks and go on: `python -m benchmarks.run.survive --jobs 300 --seed 1 --json FILE`.

Each job trains with `--elastic` on Open MPI; one rank or two are killed (SIGKILL) at a random call of a random place: at the
start, in a phase of a collective, in forward, backward, update, copy, checkpoint, while the others recover. In some the disk
is full from a random checkpoint on. Its losses are
compared with those of the same training without a death. Half of the jobs train with `--reproducible`: there each loss must be
the same number. In the others a step after a death is summed over other ranks, so each must be equal to rounding: within
`--tolerance`. A job is in order if it ends by itself, in time, with all its steps and epochs, and with these losses; or if a
shard was lost with its copy, or the disk was full, and it says that.
"""

import argparse
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from mpicoll.cluster.installation import find
from mpicoll.measure.provenance import command

from .dying import DEATHS, EVERYONE
from .kills import environment

ROOT = Path(__file__).resolve().parents[2]
#: seconds that a job may take, on a busy machine; and steps of each
LIMIT, STEPS = 60, 60
PARALLEL = "mpicoll.train.parallel"
#: where: what is called, and how often in the life of a rank, about
PLACES = {
    "start": (f"{PARALLEL}.strategy:Strategy.__init__", 1),
    "collective, begin": ("mpicoll.execute.plan:Plan.Start", 100),
    "collective, middle": ("mpicoll.execute.progress:Progress._advance", 2000),
    "collective, receiving": ("mpicoll.shared_memory.messages:Incoming._is_done", 2000),
    "forward": (f"{PARALLEL}.hooks:ReducerHooks.forward", 170),
    "backward": (f"{PARALLEL}.hooks:ReducerHooks.backward", 110),
    "update": (f"{PARALLEL}.optimizer_step:Update._apply", 58),
    "copy, before": (f"{PARALLEL}.generations:Generations._copy", 60),
    "copy, sending": (f"{PARALLEL}.generations:Generations._send", 60),
    "publish": (f"{PARALLEL}.optimizer_step:Update._publish", 58),
    "checkpoint": ("mpicoll.train.checkpoint.directory:Checkpoints._write_files", 6),
    "epoch's end": ("mpicoll.train.run:Run._write_down", 6),
}
#: the same, while the others recover
RECOVERING = (f"{PARALLEL}.generations:Generations.hand_over", f"{PARALLEL}.generations:Generations.known",
              "mpicoll.communicator.communicator:Communicator.shrink", f"{PARALLEL}.generations:Generations.begin")  # fmt: skip
#: what fails where a disk is full; at the first call a directory is tried, before the first step
WRITING = "mpicoll.train.checkpoint.directory:write_file"


@dataclass(frozen=True)
class Plan:
    """One job. deaths: [(rank, place, call)]; where: in words."""

    seed: int
    ranks: int
    options: tuple[str, ...]
    where: str
    deaths: tuple[tuple[int, str, int], ...]
    saved: bool


def planned(seed: int) -> Plan:
    """The job of a seed."""
    random = Random(seed)
    strategy = random.choice(("allreduce", "zero1", "zero2"))
    overlap, precision = random.choice(("none", "gradients", "all")), random.choice(("float32", "float32", "float64"))
    summed = random.choice((("--reproducible", "8"), ("--accumulate", random.choice(("1", "2")))))
    options = ("--strategy", strategy, "--overlap", overlap, "--precision", precision, *summed)
    places = [name for name in PLACES if strategy != "allreduce" or not name.startswith("copy")]  # it needs none
    ranks, where = random.choice((3, 3, 4)), random.choice(places)
    place, calls = PLACES[where]
    victim = random.randrange(ranks)
    deaths = [(victim, place, random.randint(1, calls))]
    more = random.random()
    other = (victim + random.randrange(1, ranks)) % ranks
    if more < 0.15:
        deaths.append((other, place, deaths[0][2]))
        where += ", two at once"
    elif more < 0.3:
        deaths.append((other, random.choice(RECOVERING), 1))
        where += ", and one while recovering"
    saved = where.startswith("checkpoint") or random.random() < 0.3
    if saved and random.random() < 0.3:
        deaths.append((EVERYONE, WRITING, random.randint(2, 6)))
        where += ", disk full"
    return Plan(seed, ranks, options, where, tuple(deaths), saved)


def words(plan: Plan, deaths: Any, folder: Path, elastic: bool) -> list[str]:
    python, mpiexec = find("openmpi")
    training = ["train", "--data", "synthetic:600,32,4", "--hidden", "64,64", "--batch-size", "48", "--steps", str(STEPS),
                "--bucket-bytes", "8K", "--json", str(folder / "result.json"), *plan.options]  # fmt: skip
    if plan.saved:
        training += ["--checkpoint", str(folder / "checkpoints"), "--checkpoint-every", "10"]
    start = [mpiexec, *(["--with-ft", "ulfm"] if elastic else []), "-n", str(plan.ranks), python, "-m"]
    program = ["benchmarks.run.dying", json.dumps(deaths), "mpicoll"] if elastic else ["mpicoll"]
    return [*start, *program, *training, *(["--elastic"] if elastic else [])]


def launched(plan: Plan, folder: Path, elastic: bool) -> tuple[int | None, str]:
    """Run a job; its exit status (None: it had to be ended), and what it printed."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", DEATHS: str(folder / "deaths"),
                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}  # fmt: skip
    with open(folder / "output", "w+") as output:
        job = subprocess.Popen(words(plan, plan.deaths, folder, elastic), cwd=ROOT, env=settings, stdin=subprocess.DEVNULL,
                               stdout=output, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            status: int | None = job.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = None
            ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
            os.killpg(job.pid, signal.SIGKILL)
            for rank in ranks:
                subprocess.run(["kill", "-9", rank], stderr=subprocess.DEVNULL)
            job.wait()
        output.seek(0)
        return status, output.read()


@lru_cache
def uninterrupted(options: tuple[str, ...]) -> dict[str, Any]:
    """What a training with these options comes to when nobody dies: on one rank, since neither ranks nor strategy matter."""
    with tempfile.TemporaryDirectory() as name:
        status, output = launched(Plan(0, 1, options, "", (), False), Path(name), elastic=False)
        assert status == 0, output
        found: dict[str, Any] = json.loads(Path(name, "result.json").read_text())
        return found


def run(plan: Plan, tolerance: float) -> dict[str, Any]:
    """Make the job; a row of the result."""
    with tempfile.TemporaryDirectory() as name:
        folder, begin = Path(name), time.monotonic()
        status, output = launched(plan, folder, elastic=True)
        deaths = (folder / "deaths").read_text().splitlines() if (folder / "deaths").exists() else []
        seconds = round(time.monotonic() - begin, 2)
        row: dict[str, Any] = {**asdict(plan), "died": len(deaths), "status": status, "seconds": seconds}
        result = folder / "result.json"
        if status is None:
            row["outcome"] = "hang"
        elif "was lost with its copy" in output:
            row["outcome"] = "lost with its copy"
        elif os.strerror(errno.ENOSPC) in output:
            row["outcome"] = "disk full"
        elif not result.exists():
            row["outcome"] = "failed"
        else:
            exact = "--reproducible" in plan.options
            same = plan.options[4:8] if exact else plan.options[4:6]
            row |= compared(json.loads(result.read_text()), uninterrupted(same), 0 if exact else tolerance)
        row["good"] = row["outcome"] in ("went on", "lost with its copy", "disk full")
        if not row["good"]:
            row["output"] = output[-3000:]
        return row


def compared(result: dict[str, Any], whole: dict[str, Any], tolerance: float) -> dict[str, Any]:
    """The losses of a job and those of the one in which nobody died."""
    pairs = list(zip(result["losses"], whole["losses"]))
    difference = max(abs(one - other) / abs(other) for one, other in pairs)
    complete = len(result["losses"]) == STEPS and len(result["epochs"]) == len(whole["epochs"])
    recoveries = result["report"].get("recoveries", []) if result["report"] else []
    outcome = "went on" if complete and difference <= tolerance else "wrong"
    return {"outcome": outcome, "difference": difference, "recoveries": recoveries}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """In a few numbers."""
    outcomes = [one["outcome"] for one in rows]
    seconds = [one["seconds"] for row in rows for one in row.get("recoveries", [])]
    return {"jobs": len(rows), "deaths": sum(row["died"] for row in rows),
            "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
            "largest_difference": max((row.get("difference", 0.0) for row in rows), default=0.0),
            "recovery_median_s": median(seconds) if seconds else None,
            "recovery_worst_s": max(seconds, default=None)}  # fmt: skip


def text_of(row: dict[str, Any]) -> str:
    """A job in a line."""
    job = f"seed {row['seed']:4} {row['ranks']} ranks, {' '.join(row['options'][1::2])}: {row['where']}, {row['died']} died"
    return f"{'good' if row['good'] else 'BAD '} {job}: {row['outcome']} {row.get('difference', '')} {row['seconds']} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--jobs", type=int, default=1, help="default 1")
    add("--seed", type=int, nargs="+", default=[1], help="of the first job; that of the next is one more (default 1)")
    add("--at-once", type=int, default=1, help="jobs at a time (default 1)")
    add("--tolerance", type=float, default=1e-5, help="relative, of each loss (default 1e-5)")
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    plans = [planned(seed) for first in options.seed for seed in range(first, first + options.jobs)]
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.at_once) as pool:
        for row in pool.map(lambda plan: run(plan, options.tolerance), plans):
            rows.append(row)
            print(text_of(row), flush=True)
            if options.json:
                facts = {**environment([]), "command": command()}
                text = {"schema": 1, "environment": facts, "summary": summary(rows), "results": rows}
                options.json.write_text(json.dumps(text, indent=1), encoding="utf-8")
            if not row["good"]:
                print(row["output"], flush=True)
    bad = sum(not row["good"] for row in rows)
    print(f"{len(rows)} jobs, {bad} not in order: {json.dumps(summary(rows))}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
