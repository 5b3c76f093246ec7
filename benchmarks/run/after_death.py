"""Arrays that are used after a death: `python -m benchmarks.run.after_death --jobs 100 --json
FILE`.

Each job makes the calls of `bereaved` on Open MPI; one rank or two are killed at a random call of a
random place in a collective. It is in order if all ranks that live end by themselves with right
results, and no array that was written to after a RankFailure has changed at the end.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from mpicoll.cluster.installation import find

from .kills import PERMISSIONS, ROOT, environment

#: seconds that a job may take on a busy machine
LIMIT = 120
#: where: what is called, and how often in the life of a rank, about
PLACES = {
    "begin": ("mpicoll.execute.plan:Plan.Start", 60),
    "middle": ("mpicoll.execute.progress:Progress._advance", 2000),
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


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Make the job; a row of the result."""
    python, mpiexec = find("openmpi")
    words = [
        mpiexec,
        "--with-ft",
        "ulfm",
        "-n",
        str(job["ranks"]),
        python,
        "-m",
        "benchmarks.run.dying",
        json.dumps(job["deaths"]),
        "benchmarks.run.bereaved",
        str(job["seed"]),
    ]
    env = {**os.environ, **PERMISSIONS, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=LIMIT)[0]
        hang = False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
        hang = True
    kept = [int(number) for number in re.findall(r"done, (\d+) arrays kept", output)]
    wrong = "an array changed" in output or "wrong result" in output
    left = job["ranks"] - len(job["deaths"])  # a place may never be reached
    outcome = "hang" if hang else "wrong" if wrong else "went on" if left <= len(kept) else "failed"
    row = {
        **job,
        "outcome": outcome,
        "ended": len(kept),
        "arrays": sum(kept),
        "good": outcome == "went on",
    }
    return row if row["good"] else {**row, "output": output[-6000:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10, help="default 10")
    parser.add_argument("--seed", type=int, default=1, help="of the first job (default 1)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where results go, after each job"
    )
    options = parser.parse_args()
    rows = []
    facts = environment(["openmpi"])
    for seed in range(options.seed, options.seed + options.jobs):
        rows.append(run(planned(seed)))
        said = "{outcome:8} seed {seed:4} {ranks} ranks, {where}: {ended} ended, {arrays} arrays"
        print(said.format(**rows[-1]), flush=True)
        if "output" in rows[-1]:
            print(rows[-1]["output"], flush=True)
        if options.json:
            document = {
                "schema": 1,
                "environment": facts,
                "summary": summary(rows),
                "results": rows,
            }
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(summary(rows))
    return 0 if all(row["good"] for row in rows) else 1


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """In a few numbers. deaths: ranks that did not come to the end."""
    deaths = sum(row["ranks"] - row["ended"] for row in rows if row["good"])
    return {
        "jobs": len(rows),
        "deaths": deaths,
        "arrays": sum(row["arrays"] for row in rows),
        "outcomes": dict(Counter(row["outcome"] for row in rows)),
    }


if __name__ == "__main__":
    sys.exit(main())
