"""Random programs of calls, every byte compared.

    mpiexec -n 3 python -m benchmarks.run.fuzz --calls 30000 --json FILE

Programs are those of `tests.support.fuzzing`. One that goes wrong is made smaller and printed;
`--again FILE` runs it, or any other program in a file, again. `--also` draws what is not drawn
otherwise, see `tests.support.fuzzing.drawing`. One that hangs ends the job and is printed too, so
that a result that is written had none; the program under way is in FILE.running.json.
"""

import json
from time import perf_counter

from mpi4py import MPI

import mpicoll
from mpicoll.measure import measured_on
from tests.support.fuzzing import Fuzzer, programs

from .campaign import finish, parser_on_ranks, write

#: programs of one seed
BATCH = 50


def main():
    parser = parser_on_ranks(__doc__, "programs")
    parser.add_argument("--calls", type=int, default=10_000, help="at least (default 10,000)")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    mpicoll.install_abort_hook()
    running = options.json and options.json.with_suffix(".running.json")
    fuzzer = Fuzzer(comm, running=running)
    if options.again:
        program = json.loads(options.again.read_text(encoding="utf-8"))
        finish(comm, ["\n".join(fuzzer.run(program))])
        return
    facts = measured_on(comm)
    began = perf_counter()
    failures = []
    seed = options.seed
    while fuzzer.made.total() < options.calls:
        failures.append(fuzzer.search(programs(), BATCH, seed))
        seed += 1
        document = {
            "environment": facts,
            "seeds": [options.seed, seed - 1],
            **counted(fuzzer, failures),
            "seconds": round(perf_counter() - began, 1),
        }
        if comm.Get_rank() == 0:  # a job that is cut short leaves what it has
            write(options.json, document)
    if comm.Get_rank() == 0:
        text = "{calls} calls, {programs} programs, {seconds} s: {wrong} wrong, {errors} errors"
        print(text.format(**document), flush=True)
        if running:
            running.unlink(missing_ok=True)
    finish(comm, failures)


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


if __name__ == "__main__":
    main()
