"""Arrays that are used after a death.

    python -m benchmarks.run.after_death --jobs 100 --json FILE

Each job makes the calls of `bereaved` on Open MPI; one rank or two are killed at a random call of a
random place in a collective. It is in order if all ranks that live end by themselves with right
results, and no array that was written to after a RankFailure has changed at the end.
"""

import json
import re
import sys
import tempfile
from collections import Counter
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

#: seconds that a job may take on a busy machine
LIMIT = 120
#: where: what is called, and how often in the life of a rank, about
PLACES = {
    "begin": ("mpicoll.execute.scheduled_call:ScheduledCall.Start", 60),
    "middle": ("mpicoll.progress.engine:Progress._advance", 2000),
    "receiving": ("mpicoll.shared_memory.messages:Incoming._is_done", 1000),
    "shrink": ("mpicoll.communicator.communicator:Communicator.shrink", 1),
}


def planned(seed: int) -> dict[str, Any]:
    """The job of a seed."""
    random = Random(seed)
    ranks = random.choice((3, 3, 4))
    victim = random.randrange(ranks)
    where = random.choice(("begin", "middle", "receiving"))
    deaths = [[victim, PLACES[where][0], random.randint(1, PLACES[where][1])]]
    if random.random() < 0.4:
        other = random.choice(tuple(PLACES))
        deaths.append([(victim + 1) % ranks, PLACES[other][0], random.randint(1, PLACES[other][1])])
        where += f" and {other}"
    return {"seed": seed, "ranks": ranks, "where": where, "deaths": deaths}


def run(job: dict[str, Any]) -> Row:
    """Make the job; a row of the result."""
    words = ["-m", "benchmarks.run.dying", json.dumps(job["deaths"])]
    words += ["benchmarks.run.bereaved", str(job["seed"])]
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "output")
        environ = settings(**{MARK: name})
        status = launched("openmpi", job["ranks"], words, file, environ, LIMIT, survive=True)
        end(f"{MARK}={name}".encode())
        output = file.read_text(errors="replace")
    kept = [int(number) for number in re.findall(r"done, (\d+) arrays kept", output)]
    left = job["ranks"] - len(job["deaths"])  # a place may never be reached
    if status is None:
        outcome = "hang"
    elif "an array changed" in output or "wrong result" in output:
        outcome = "wrong"
    else:
        outcome = "went on" if left <= len(kept) else "failed"
    return {
        **job,
        "outcome": outcome,
        "ended": len(kept),
        "arrays": sum(kept),
        "good": outcome == "went on",
        "output": output,
    }


def text_of(row: Row) -> str:
    """A job in a line."""
    text = "{outcome:8} seed {seed:4} {ranks} ranks, {where}: {ended} ended, {arrays} arrays"
    return text.format(**row)


def summary(rows: list[Row]) -> dict[str, Any]:
    """In a few numbers. deaths: ranks that did not come to the end."""
    return {
        "jobs": len(rows),
        "deaths": sum(row["ranks"] - row["ended"] for row in rows if row["good"]),
        "arrays": sum(row["arrays"] for row in rows),
        "outcomes": dict(Counter(row["outcome"] for row in rows)),
    }


def main() -> int:
    options = parser_of_jobs(__doc__, jobs=10).parse_args()
    plans = [planned(seed) for seed in seeds(options)]
    facts = environment(["openmpi"]) if options.json else {}
    return carry_out(plans, run, text_of, summary, options, facts)


if __name__ == "__main__":
    sys.exit(main())
