"""Trainings of several fits that lose ranks.

    python -m benchmarks.run.survive_fits --jobs 300 --seed 1 --json FILE

Each job runs `refits` with `elastic` on Open MPI: two or three fits, models that are seeded
differently on each rank, parameters and optimizer state written before the first fit and between
two. One rank or two are killed (SIGKILL): before a fit, while it begins, in its first step or a
later one, after its last, at the end of an epoch, while the others recover. A job is in order if it
ends by itself, in time, and all ranks that live have the losses, epochs and parameters of one rank
to which nothing happened: to the bit with `reproducible`, else within `--tolerance`; or if part of
the state was lost and it says so: a shard with its copy, or what was written to the optimizer with
the rank that had not copied it.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

from .campaign import (
    MARK,
    Row,
    carry_out,
    end,
    environment,
    launched,
    parser_of_jobs,
    seeds,
    settings,
)
from .refits import Plan as Training
from .survive import RECOVERING

#: seconds that a job may take, on a busy machine
LIMIT = 90
PARALLEL = "mpicoll.train.parallel"
TRAINER = "mpicoll.train.trainer:Trainer"
#: once in each fit: calls of its start and its end
OF_A_FIT = {
    "before a fit": f"{TRAINER}.fit",
    "a fit begins": f"{TRAINER}._check_data",
    "its base": f"{PARALLEL}.backup:Backup.secure",
    "its end": "mpicoll.train.monitor.meter:Meter.summary_of_ranks",
}
#: once in each step, or several times
OF_A_STEP = {
    "forward": (f"{PARALLEL}.hooks:ReducerHooks.forward", 5),
    "backward": (f"{PARALLEL}.hooks:ReducerHooks.backward", 3),
    "update": (f"{PARALLEL}.optimizer_step:Update.prepare", 1),
    "publish": (f"{PARALLEL}.optimizer_step:Update.publish", 1),
}
OF_A_COPY = {
    "copy, before": (f"{PARALLEL}.backup:Backup._copy_gradients", 1),
    "copy, sending": (f"{PARALLEL}.backup:Backup._send", 1),
}
#: once before the first fit, when the strategy is made, and once in each
RESTING = f"{PARALLEL}.hooks:ReducerHooks.rest"
EPOCHS_END = "mpicoll.train.run:Run._write_down"
#: what says that part of the state was lost
LOST = ("was lost with its copy", "no copy has that")


@dataclass(frozen=True)
class Plan:
    """One job. deaths: as `dying` takes them; where: in words."""

    seed: int
    ranks: int
    training: Training
    where: str
    deaths: tuple[tuple[Any, ...], ...]


def planned(seed: int) -> Plan:
    """The job of a seed."""
    random = Random(seed)
    steps = [random.randint(1, 12) for _ in range(random.choice((2, 2, 3)))]
    reproducible = random.random() < 0.4
    options = {
        "strategy": random.choice(("allreduce", "zero1", "zero2", "zero2")),
        "elastic": True,
        "overlap": random.choice(("none", "gradients", "all")),
    }
    if reproducible:
        options |= {
            "reproducible": 8,
            "precision": random.choice(("float32", "float64", "bfloat16")),
        }
    # its masters are not the parameters that a program writes to
    narrow = options.get("precision") == "bfloat16"
    seeds, weights, state, between = (random.random() < 0.5 for _ in range(4))
    training = Training(
        steps, options, seeds, weights and not narrow, state, between and not narrow
    )
    ranks = random.choice((3, 3, 4))
    victim = random.randrange(ranks)
    where, place, call = _place(random, steps, options["strategy"] != "allreduce")
    deaths: list[tuple[Any, ...]] = [(victim, place, call)]
    other = (victim + random.randrange(1, ranks)) % ranks
    more = random.random()
    if more < 0.25:
        also, place, call = _place(random, steps, options["strategy"] != "allreduce")
        deaths.append((other, place, call))
        where += f"; {also}"
    elif more < 0.4:
        deaths.append((other, random.choice(RECOVERING), 1))
        where += "; and one while recovering"
    return Plan(seed, ranks, training, where, tuple(deaths))


def _place(random: Random, steps: list[int], divided: bool) -> tuple[str, str, int]:
    """(in words, what is called, at which call)"""
    fit = random.randrange(len(steps))
    kind = random.random()
    if kind < 0.1:
        number = random.randrange(len(steps) + 1)
        return (
            f"after the last step, fit {number}" if number else "before fit 1, when all is made",
            RESTING,
            number + 1,
        )
    if kind < 0.45:
        name = random.choice(list(OF_A_FIT))
        return f"{name}, fit {fit + 1}", OF_A_FIT[name], fit + 1
    if kind < 0.55:
        return f"epoch's end, about fit {fit + 1}", EPOCHS_END, fit + 1
    names = {**OF_A_STEP, **(OF_A_COPY if divided else {})}
    name = random.choice(list(names))
    place, often = names[name]
    step = sum(steps[:fit]) + (0 if kind < 0.8 else random.randrange(steps[fit]))
    return f"{name}, step {step + 1} of {steps}", place, step * often + random.randint(1, often)


def trained(plan: Plan, folder: Path) -> tuple[int | None, str, list[dict[str, Any]]]:
    """Run a job: its status as of `launched`, what it printed, what each rank wrote."""
    words = ["-m", "benchmarks.run.dying", json.dumps(plan.deaths), "benchmarks.run.refits"]
    words += [json.dumps(asdict(plan.training) | {"directory": str(folder)})]
    output = folder / "output"
    environ = settings(**{MARK: str(folder)})
    survive = plan.ranks > 1
    status = launched("openmpi", plan.ranks, words, output, environ, LIMIT, survive)
    end(f"{MARK}={folder}".encode())
    written = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
    return status, output.read_text(errors="replace"), written


@lru_cache
def _undisturbed(text: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        plan = Plan(0, 1, Training(**json.loads(text)), "", ())
        status, output, written = trained(plan, Path(name))
        assert status == 0, output
        return written[0]


def undisturbed(training: Training) -> dict[str, Any]:
    """What one rank comes to: neither ranks nor strategy nor overlap matter, nor that it could
    survive.
    """
    options = {
        name: value
        for name, value in training.options.items()
        if name in ("reproducible", "precision")
    }
    return _undisturbed(json.dumps(asdict(training) | {"options": options}))


def run(plan: Plan, tolerance: float) -> Row:
    """Make the job; a row of the result."""
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        status, output, written = trained(plan, Path(name))
        seconds = round(time.monotonic() - begin, 2)
    whole = undisturbed(plan.training)
    died = plan.ranks - len(written)
    row = {**asdict(plan), "status": status, "seconds": seconds, "written": len(written)}
    if status is None:
        row |= {"outcome": "hang", "good": False}
    elif status == 0 and written:
        exact = "reproducible" in plan.training.options
        difference = max(_difference(one, whole) for one in written)
        good = difference <= (0 if exact else tolerance) and died <= len(plan.deaths)
        outcome = ("went on" if died else "nobody died") if good else "wrong"
        row |= {"outcome": outcome, "good": good, "difference": difference}
    elif any(text in output for text in LOST):
        # one death alone loses state only where that has been written to the optimizer, and not
        # copied
        early = (
            plan.training.between
            or "fit 1" in plan.where
            or plan.where.startswith("copy, sending, step 1 ")
        )
        excused = len(plan.deaths) > 1 or plan.training.state and early
        row |= {"outcome": "part of the state was lost", "good": excused}
    else:
        row |= {"outcome": "failed", "good": False}
    return row | {"output": output}


def _difference(result: dict[str, Any], whole: dict[str, Any]) -> float:
    """The largest, relative where numbers are above 1; infinite where these are not as many, or the
    updates.
    """
    numbers, wanted = (
        [*one["losses"], *one["epochs"], *one["parameters"].values()] for one in (result, whole)
    )
    same = len(numbers) == len(wanted) and result["updates"] == whole["updates"]
    pairs = zip(numbers, wanted)
    return (
        max(abs(one - other) / max(1, abs(other)) for one, other in pairs) if same else float("inf")
    )


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """In a few numbers."""
    return {
        "jobs": len(rows),
        "deaths": sum(row["ranks"] - row["written"] for row in rows if row["outcome"] == "went on"),
        "outcomes": dict(sorted(Counter(row["outcome"] for row in rows).items())),
        "not in order": sum(not row["good"] for row in rows),
        "largest_difference": max(
            (row["difference"] for row in rows if "difference" in row), default=0.0
        ),
    }


def text_of(row: Row) -> str:
    """A job in a line."""
    return (
        f"seed {row['seed']:4} {row['ranks']} ranks, {row['training']['options']['strategy']},"
        f" {row['where']}: {row['outcome']} {row.get('difference', '')} {row['seconds']} s"
    )


def main() -> int:
    parser = parser_of_jobs(__doc__, at_once=2)
    parser.add_argument("--tolerance", type=float, default=2e-5, help="relative (default 2e-5)")
    options = parser.parse_args()
    plans = [planned(seed) for seed in seeds(options)]
    facts = environment(["openmpi"]) if options.json else {}
    make = partial(run, tolerance=options.tolerance)
    return carry_out(plans, make, text_of, summary, options, facts)


if __name__ == "__main__":
    sys.exit(main())
