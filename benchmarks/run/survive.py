"""Trainings that lose ranks and go on.

    python -m benchmarks.run.survive [--cluster] --jobs 300 --seed 1 --json FILE

Each job trains with `--elastic` on Open MPI; one rank or two are killed (SIGKILL) at a random call
of a random place: at the start, in a phase of a collective, in forward, backward, update, copy,
checkpoint, while the others recover. In some the disk is full from a random checkpoint on. Its
losses are compared with those of the same training without a death. Half of the jobs train with
`--reproducible`: there each loss must be the same number. In the others a step after a death is
summed over other ranks, so each must be equal to rounding: within `--tolerance`. A job is in order
if it ends by itself, in time, with all its steps and epochs, and with these losses; or if a shard
was lost with its copy, or the disk was full, and it says that.

With `--cluster` the jobs run on hosts of the virtual cluster, with one rank or two each, and in
most of them it is a host that is lost: its network is cut off when one of its ranks comes to the
place. Its ranks live, and must end, too; so must the others. Only mpirun may stay, and is ended
then. Seeds there mean other jobs than without `--cluster`.

How long a loss takes is told as two numbers. *Interruption*: from the loss to the end of the first
step that all who are left have made without it, as a user feels it; `noticed_s` of that are over
when the first of them leaves the dead behind (all know then). *Recovery*: from the new communicator
on until the next step can begin, the trainer's own part.
"""

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from mpicoll.cluster import Cluster

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
from .dying import CUT, EVENTS, EVERYONE

#: seconds that a job may take, on a busy machine; and steps of each
LIMIT = 120
STEPS = 60
#: seconds for which mpirun may stay after the last rank, where a host was cut off: of a launcher
#: that stays, the one price
LEAVING = 1
#: hosts of the virtual cluster and ranks of each; and what their links carry
CLUSTERS = ((2, 2), (3, 1), (3, 1), (4, 1), (3, 2))
RATE = "1gbit"
PARALLEL = "mpicoll.train.parallel"
#: where: what is called, and how often in the life of a rank, about
PLACES = {
    "start": (f"{PARALLEL}.strategy:Strategy.__init__", 1),
    "collective, begin": ("mpicoll.execute.scheduled_call:ScheduledCall.Start", 100),
    "collective, middle": ("mpicoll.progress.engine:Progress._advance", 2000),
    "collective, receiving": ("mpicoll.shared_memory.messages:Incoming._is_done", 2000),
    "forward": (f"{PARALLEL}.hooks:ReducerHooks.forward", 170),
    "backward": (f"{PARALLEL}.hooks:ReducerHooks.backward", 110),
    "update": (f"{PARALLEL}.optimizer_step:Update._apply", 58),
    "copy, before": (f"{PARALLEL}.backup:Backup._copy_gradients", 60),
    "copy, sending": (f"{PARALLEL}.backup:Backup._send", 60),
    "copy, following": (f"{PARALLEL}.replica:Replica.follow", 115),
    "publish": (f"{PARALLEL}.optimizer_step:Update.publish", 58),
    "checkpoint": ("mpicoll.train.checkpoint.directory:Checkpoints._write_files", 6),
    "epoch's end": ("mpicoll.train.run:Run._write_down", 6),
}
#: the same, while the others recover
RECOVERING = (
    f"{PARALLEL}.backup:Backup.hand_over",
    f"{PARALLEL}.backup:Backup.known",
    "mpicoll.communicator.communicator:Communicator.shrink",
    f"{PARALLEL}.backup:Backup.secure",
)
#: what fails where a disk is full; at the first call a directory is tried, before the first step
WRITING = "mpicoll.train.checkpoint.directory:write_file"


@dataclass(frozen=True)
class Plan:
    """One job. deaths: as `dying` takes them; where: in words. hosts: of the virtual cluster; 0:
    this machine.
    """

    seed: int
    ranks: int
    options: tuple[str, ...]
    where: str
    deaths: tuple[tuple[Any, ...], ...]
    saved: bool
    hosts: int = 0

    def on(self, host: int) -> set[int]:
        """The ranks of a host."""
        each = self.ranks // self.hosts
        return set(range(host * each, (host + 1) * each))


def planned(seed: int, cluster: bool) -> Plan:
    """The job of a seed."""
    random = Random(seed)
    strategy = random.choice(("allreduce", "zero1", "zero2"))
    overlap = random.choice(("none", "gradients", "all"))
    summed = random.choice((("--reproducible", "8"), ("--accumulate", random.choice(("1", "2")))))
    # a sum of 16 bits over other ranks is rounded too much to be compared, except in fixed point
    narrow = ("float16", "bfloat16") if "--reproducible" in summed else ()
    precision = random.choice(("float32", "float32", "float64", *narrow))
    options = ("--strategy", strategy, "--overlap", overlap, "--precision", precision, *summed)
    # it needs none
    places = [name for name in PLACES if strategy != "allreduce" or not name.startswith("copy")]
    ranks = random.choice((3, 3, 4))
    where = random.choice(places)
    hosts = 0
    if cluster:
        hosts, each = random.choice(CLUSTERS)
        ranks = hosts * each
    place, calls = PLACES[where]
    victim = random.randrange(ranks)
    deaths: list[tuple[Any, ...]] = [(victim, place, random.randint(1, calls))]
    if cluster and random.random() < 0.7:
        deaths[0] += (CUT,)
        where += ", host cut off"
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
    return Plan(seed, ranks, options, where, tuple(deaths), saved, hosts)


def words(plan: Plan, folder: Path, elastic: bool) -> list[str]:
    """What the ranks run."""
    training = [
        "train",
        "--data",
        "synthetic:600,32,4",
        "--hidden",
        "64,64",
        "--batch-size",
        "48",
        "--steps",
        str(STEPS),
        "--bucket-bytes",
        "8K",
        "--json",
        str(folder / "result.json"),
        *plan.options,
    ]
    if plan.saved:
        training += ["--checkpoint", str(folder / "checkpoints"), "--checkpoint-every", "10"]
    program = (
        ["benchmarks.run.dying", json.dumps(plan.deaths), "mpicoll"] if elastic else ["mpicoll"]
    )
    return ["-m", *program, *training, *(["--elastic"] if elastic else [])]


def trained(plan: Plan, folder: Path, elastic: bool) -> tuple[int | None, str]:
    """Run a job: its launcher's exit status (None: it was ended), and what it printed."""
    environ = settings(**{EVENTS: str(folder / "events"), MARK: str(folder)})
    program = words(plan, folder, elastic)
    path = folder / "output"
    with ExitStack() as stack:
        output = stack.enter_context(open(path, "w"))
        cluster = stack.enter_context(Cluster(plan.hosts, RATE)) if plan.hosts else None
        pool = stack.enter_context(ThreadPoolExecutor(1))

        def on_hosts(cluster: Cluster) -> int:
            done = cluster.run(
                ["python", *program],
                "openmpi",
                ranks_per_host=plan.ranks // plan.hosts,
                survive=elastic,
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            return done.returncode

        job: Future[int | None]
        if cluster:
            job = pool.submit(on_hosts, cluster)
        else:
            arguments = ("openmpi", plan.ranks, program, path, environ)
            job = pool.submit(launched, *arguments, survive=elastic)
        by_itself = watched(job, folder, cluster)
        status = job.result() if by_itself else None
    return status, path.read_text(errors="replace")


def watched(job: "Future[int | None]", folder: Path, cluster: Cluster | None) -> bool:
    """Whether a job ends by itself, in time: all of it, or but for its launcher where a host was
    cut off, as ranks ask here.
    """
    mark = f"{MARK}={folder}".encode()
    until = time.monotonic() + LIMIT
    request = folder / CUT
    cut = False
    left = True
    while not job.done() and time.monotonic() < until:
        time.sleep(0.02)
        if cluster and request.exists() and (host := request.read_text()):
            with open(folder / "events", "a") as events:
                print(time.time(), host.removeprefix("host"), CUT, file=events)
            cluster.cut(host)
            request.unlink()
            cut = True
        if cut and left and "rank" not in processes(mark, b"benchmarks.run.dying").values():
            left = False
            until = time.monotonic() + LEAVING
    by_itself = job.done() or not left
    end(mark)
    return by_itself


@lru_cache
def uninterrupted(options: tuple[str, ...]) -> dict[str, Any]:
    """What a training with these options comes to when nobody dies: on one rank, since neither
    ranks nor strategy matter.
    """
    with tempfile.TemporaryDirectory() as name:
        status, output = trained(Plan(0, 1, options, "", (), False), Path(name), elastic=False)
        assert status == 0, output
        found: dict[str, Any] = json.loads(Path(name, "result.json").read_text())
        return found


def run(plan: Plan, tolerance: float) -> Row:
    """Make the job; a row of the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.monotonic()
        status, output = trained(plan, folder, elastic=True)
        seconds = round(time.monotonic() - begin, 2)
        lost, interruptions = interrupted(plan, folder / "events")
        causes = [one["cause"] for one in interruptions]
        row: dict[str, Any] = {
            **asdict(plan),
            "died": causes.count("killed"),
            "cut": causes.count(CUT),
            "status": status,
            "seconds": seconds,
            "interruptions": interruptions,
        }
        row["good"] = True
        result = folder / "result.json"
        if status is None:
            row |= {"outcome": "hang", "good": False}
        elif result.exists():
            exact = "--reproducible" in plan.options
            same = plan.options[4:8] if exact else plan.options[4:6]
            row |= compared(
                json.loads(result.read_text()), uninterrupted(same), 0 if exact else tolerance
            )
        elif "was lost with its copy" in output:
            row |= {"outcome": "lost with its copy", "good": len(causes) > 1}
        elif "with heartbeats more than half must be" in output:
            row |= {"outcome": "half lost", "good": 2 * len(lost) >= plan.ranks}
        elif os.strerror(errno.ENOSPC) in output:
            row["outcome"] = "disk full"
        else:
            row |= {"outcome": "failed", "good": False}
        return row | {"output": output}


class Event(NamedTuple):
    """A line of the events file. who: a rank, or a host that was cut off."""

    time: float
    who: int
    what: str
    ranks: int = 0
    step: int = 0


def interrupted(plan: Plan, path: Path) -> tuple[set[int], list[dict[str, Any]]]:
    """The ranks that were lost, and of each loss its cause and seconds."""
    lines = path.read_text().splitlines() if path.exists() else []
    split = (line.split() for line in lines)
    events = sorted(
        Event(float(time), int(who), what, *map(int, numbers))
        for time, who, what, *numbers in split
    )
    lost: set[int] = set()
    found = []
    for place, event in enumerate(events, 1):
        if event.what in ("killed", CUT):
            lost |= plan.on(event.who) if event.what == CUT else {event.who}
            found.append(
                {
                    "cause": event.what,
                    **until_next_step(event.time, events[place:], plan.ranks - len(lost)),
                }
            )
    return lost, found


def until_next_step(since: float, events: list[Event], left: int) -> dict[str, float]:
    """Seconds until the ranks that are left begin to leave the dead behind, and until all of these
    have made a step.
    """
    steps = [one for one in events if one.what == "step" and one.ranks <= left]
    first = [one for one in steps if one.ranks == steps[0].ranks and one.step == steps[0].step]
    going_on = {one.who for one in first}
    noticed = [one for one in events if one.what == "noticed" and one.who in going_on]
    return (
        {"noticed_s": noticed[0].time - since, "step_s": first[-1].time - since} if noticed else {}
    )


def compared(result: dict[str, Any], whole: dict[str, Any], tolerance: float) -> dict[str, Any]:
    """The losses of a job and those of the one in which nobody died."""
    pairs = list(zip(result["losses"], whole["losses"]))
    difference = max(abs(one - other) / abs(other) for one, other in pairs)
    complete = len(result["losses"]) == STEPS and len(result["epochs"]) == len(whole["epochs"])
    recoveries = result["report"].get("recoveries", []) if result["report"] else []
    good = complete and difference <= tolerance
    return {
        "outcome": "went on" if good else "wrong",
        "good": good,
        "difference": difference,
        "recoveries": recoveries,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """In a few numbers."""
    outcomes = [one["outcome"] for one in rows]
    seconds = [one["seconds"] for row in rows for one in row.get("recoveries", [])]
    return {
        "jobs": len(rows),
        "deaths": sum(row["died"] for row in rows),
        "cut": sum(row["cut"] for row in rows),
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
        "largest_difference": max((row.get("difference", 0.0) for row in rows), default=0.0),
        "recovery_median_s": median(seconds) if seconds else None,
        "recovery_worst_s": max(seconds, default=None),
        "interruptions": {cause: interruption(rows, cause) for cause in ("killed", CUT)},
    }


def interruption(rows: list[dict[str, Any]], cause: str) -> dict[str, float] | None:
    """Of the losses with this cause after which steps were made: how many, and median and worst
    seconds; None of none.
    """
    found = [
        one
        for row in rows
        for one in row["interruptions"]
        if one["cause"] == cause and "step_s" in one
    ]
    if not found:
        return None
    noticed, step = ([one[name] for one in found] for name in ("noticed_s", "step_s"))
    return {
        "count": len(found),
        "noticed_median_s": median(noticed),
        "noticed_worst_s": max(noticed),
        "step_median_s": median(step),
        "step_worst_s": max(step),
    }


def text_of(row: dict[str, Any]) -> str:
    """A job in a line."""
    where = f"{row['hosts']} hosts, " if row["hosts"] else ""
    job = (
        f"seed {row['seed']:4} {where}{row['ranks']} ranks, {' '.join(row['options'][1::2])}:"
        f" {row['where']}"
    )
    happened = f"{row['died']} died, {row['cut']} cut"
    steps = ", ".join(f"{one['step_s']:.2f}" for one in row["interruptions"] if "step_s" in one)
    return (
        f"{job}: {happened}: {row['outcome']}"
        f" {row.get('difference', '')} {row['seconds']} s, interrupted for {steps or '-'} s"
    )


def main() -> int:
    parser = parser_of_jobs(__doc__)
    add = parser.add_argument
    add("--tolerance", type=float, default=1e-5, help="relative, of each loss (default 1e-5)")
    add("--cluster", action="store_true", help="on hosts of the virtual cluster, which are cut off")
    options = parser.parse_args()
    plans = [planned(seed, options.cluster) for seed in seeds(options)]
    facts = environment(["openmpi"]) if options.json else {}
    make = partial(run, tolerance=options.tolerance)
    return carry_out(plans, make, text_of, summary, options, facts)


if __name__ == "__main__":
    sys.exit(main())
