"""Random trainings beside a reference in plain NumPy.

    mpiexec -n 3 python -m benchmarks.run.trainings --json FILE

Configurations are those of `tests.support.trainings`: functions and own layers of 1 to 40 tensors,
every strategy, overlap, precision and size of buckets, shapes that no number of ranks divides. One
that goes wrong is printed; `--again FILE` runs it, or any other configuration in a file, again. One
that hangs ends the job and is printed too, so that a result that is written had none.
"""

import faulthandler
import json
import sys
import threading
import traceback
from collections import Counter
from contextlib import contextmanager
from time import perf_counter

from mpi4py import MPI

import mpicoll
from mpicoll.measure import measured_on
from tests.support.trainings import differences, draw

from .campaign import finish, parser_on_ranks, write

#: seconds after which a training is taken to hang
PATIENCE = 120.0
#: what is counted by its value
AXES = (
    "strategy",
    "overlap",
    "precision",
    "bucket_bytes",
    "accumulate",
    "reproducible",
    "algorithm",
)


def main():
    parser = parser_on_ranks(__doc__, "configurations")
    parser.add_argument("--trainings", type=int, default=500, help="how many (default 500)")
    options = parser.parse_args()
    mpicoll.install_abort_hook()
    comm = MPI.COMM_WORLD
    if options.again:
        finish(comm, attempt(json.loads(options.again.read_text(encoding="utf-8")), comm))
        return
    facts = measured_on(comm)
    began = perf_counter()
    counts = {name: Counter() for name in ("kind", *AXES)}
    failures = []
    for seed in range(options.seed, options.seed + options.trainings):
        config = draw(seed, comm.Get_size())
        failures += attempt(config, comm)
        counts["kind"][config["kind"]] += 1
        for name in AXES:
            counts[name][str(config["options"][name])] += 1
    document = {
        "environment": facts,
        "seeds": [options.seed, options.seed + options.trainings - 1],
        "trainings": options.trainings,
        "wrong": len(failures),
        "hangs": 0,
        "failures": failures,
        "counts": {name: dict(sorted(values.items())) for name, values in counts.items()},
        "seconds": round(perf_counter() - began, 1),
    }
    if comm.Get_rank() == 0:
        text = "{trainings} trainings, {seconds} s: {wrong} wrong, {hangs} hangs"
        print(text.format(**document), flush=True)
        write(options.json, document)
    finish(comm, failures)


def attempt(config, comm):
    """What was wrong with a training, as a list of at most one text, the same on all ranks."""
    with patience(config, comm):
        try:
            texts = differences(config, comm)
        except mpicoll.MpicollError:
            texts = comm.allgather(traceback.format_exc())
    return ["\n".join([*texts, "the configuration:", json.dumps(config)])] if texts else []


@contextmanager
def patience(config, comm):
    """A training that hangs is printed, with what every thread does; the job ends."""

    def hangs():
        text = (
            f"rank {comm.Get_rank()}: no end after {PATIENCE} s of the"
            f" training\n{json.dumps(config)}"
        )
        print(text, file=sys.__stderr__, flush=True)
        faulthandler.dump_traceback(sys.__stderr__)
        comm.Abort(3)

    timer = threading.Timer(PATIENCE, hangs)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


if __name__ == "__main__":
    main()
