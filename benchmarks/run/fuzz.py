"""Random programs of calls, every byte compared: `mpiexec -n 3 python -m benchmarks.run.fuzz
--calls 30000 --json FILE`.

Programs are those of `tests.support.fuzzing`. One that goes wrong is made smaller and printed;
`--again FILE` runs it, or any other program in a file, again. `--also` draws what is not drawn
otherwise, see `tests.support.fuzzing.drawing`. One that hangs ends the job and is printed too, so
that a result that is written had none.
"""

import argparse
import json
from pathlib import Path
from time import perf_counter

from mpi4py import MPI

import mpicoll
from mpicoll.measure import measured_on
from tests.support.fuzzing import Fuzzer, programs

#: programs of one seed
BATCH = 50


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--calls", type=int, default=10_000, help="at least so many (default 10,000)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the first programs, the next have the next (default 0)",
    )
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="run the program in this file, and nothing else"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    mpicoll.install_abort_hook()
    fuzzer = Fuzzer(MPI.COMM_WORLD)
    if options.again:
        finish(["\n".join(fuzzer.run(json.loads(options.again.read_text(encoding="utf-8"))))])
        return
    facts = measured_on(MPI.COMM_WORLD)
    began = perf_counter()
    failures = []
    seed = options.seed
    while fuzzer.made.total() < options.calls:
        failures.append(fuzzer.search(programs(), BATCH, seed))
        seed += 1
        document = {
            "schema": 1,
            "environment": facts,
            "seeds": [options.seed, seed - 1],
            **counted(fuzzer, failures),
            "seconds": round(perf_counter() - began, 1),
        }
        # a job that is cut short leaves what it has
        if options.json and MPI.COMM_WORLD.Get_rank() == 0:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(
            "{calls} calls, {programs} programs, {seconds} s: {wrong} wrong, {errors} errors"
            .format(**document),
            flush=True,
        )
    finish(failures)


def counted(fuzzer, failures):
    """The calls that were made, and how many batches ended with a wrong value, and how many with an
    error.
    """
    bad = [text for text in failures if text]
    errors = sum("Traceback" in text for text in bad)
    rows = [
        {"method": method, "form": form, "calls": calls}
        for (method, form), calls in sorted(fuzzer.made.items())
    ]
    words = {word or "chosen": calls for (word,), calls in sorted(fuzzer.words.items(), key=str)}
    return {
        "programs": fuzzer.programs,
        "calls": fuzzer.made.total(),
        "wrong": len(bad) - errors,
        "errors": errors,
        "hangs": 0,
        "failures": bad,
        "results": rows,
        "algorithms": words,
        "checks": dict(sorted(fuzzer.checked.items())),
        "axes": dict(sorted(fuzzer.axes.items())),
    }


def finish(failures):
    """Say what failed; exit status 1 if anything did."""
    text = "\n\n".join(filter(None, failures))
    if text and MPI.COMM_WORLD.Get_rank() == 0:
        print(text, flush=True)
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main()
