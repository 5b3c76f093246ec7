"""Measure what a schedule costs in Python.

    mpiexec -n 2 python -m benchmarks.run.overhead --json FILE

The executor's ring, as a persistent plan and as repeated blocking calls, alternates with a ring
written by hand over mpi4py and with MPI's own allreduce: in place, float32, on the same array.
Times are medians of the maximum over ranks.
"""

import argparse
import json
from time import perf_counter

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.algorithms import allreduce
from mpicoll.measure import alternate, measured_on, repeats_for, statistics
from mpicoll.schedule import rounds
from mpicoll.support.units import format_bytes, parse_bytes

SIZES = [1 << power for power in range(10, 27, 2)]  # 1 KiB to 64 MiB
BUILD_SIZE = 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--max-bytes", type=parse_bytes, default=SIZES[-1], metavar="B")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size (default 2)")
    arguments = parser.parse_args()
    mpicoll.install_abort_hook()
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    facts = measured_on(comm)
    results = [
        ring(comm, nbytes, arguments.seconds) for nbytes in SIZES if nbytes <= arguments.max_bytes
    ]
    document = {
        "schema": 1,
        "environment": facts,
        "results": results,
        "small": small(comm, arguments.seconds),
        "build": build_time(),
    }
    if comm.rank == 0:
        print(text(document), flush=True)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)


def hand_written(comm, vector):
    """The ring allreduce as one writes it over mpi4py; returns a function that runs it."""
    rank = comm.rank
    size = comm.size
    blocks = np.array_split(vector, size)
    inbox = np.empty_like(blocks[0])
    left = (rank - 1) % size
    right = (rank + 1) % size

    def run():
        for step in range(size - 1):
            mine = blocks[(rank - step - 1) % size]
            received = inbox[: mine.size]
            request = comm.Irecv(received, left)
            comm.Send(blocks[(rank - step) % size], right)
            request.Wait()
            np.add(received, mine, out=mine)
        for step in range(size - 1):
            request = comm.Irecv(blocks[(rank - step) % size], left)
            comm.Send(blocks[(rank - step + 1) % size], right)
            request.Wait()

    return run


def ring(comm, nbytes, seconds):
    """The four candidates at one size."""
    own = comm.Dup()
    vector = np.zeros(nbytes // 4, np.float32)  # sums of zeros stay finite, however often
    plan = own.Allreduce_init(MPI.IN_PLACE, vector, algorithm="ring")

    def start_and_wait():
        plan.Start()
        plan.Wait()

    plain = MPI.Intracomm(own)
    candidates = {
        "hand_written": hand_written(plain, vector),
        "plan": start_and_wait,
        "blocking": lambda: own.Allreduce(MPI.IN_PLACE, vector, algorithm="ring"),
        "native": lambda: plain.Allreduce(MPI.IN_PLACE, vector),
    }
    check(comm, candidates, vector)
    calls = max(1, min(32, (256 << 10) // nbytes))

    def before(name, repetition):
        vector.fill(0)  # the same caches for all of them, as if it were just computed

    repeats = repeats_for(own, candidates, seconds, before, calls=calls, least=7)
    times = alternate(own, candidates, repeats, before, calls=calls)
    plan.Free()
    own.Free()
    figures = compared(times, "hand_written", ("plan", "blocking"))
    return {"bytes": nbytes, "repeats": repeats, "calls": calls, **figures}


def check(comm, candidates, vector):
    """All of them are an allreduce."""
    for name, run in candidates.items():
        vector[:] = comm.rank + 1
        run()
        assert (vector == comm.size * (comm.size + 1) // 2).all(), name
    vector[:] = 0


def compared(times, reference, names):
    """Statistics of each candidate, and of some of them the ratio to a reference."""
    figures = {name: statistics(seconds) for name, seconds in times.items()}
    base = figures[reference]["median_us"]
    return figures | {
        f"{name}_ratio": round(figures[name]["median_us"] / base, 3) for name in names
    }


def small(comm, seconds):
    """What the library adds to an allreduce of 8 bytes that it hands on to MPI."""
    own = comm.Dup()
    plain = MPI.Intracomm(own)
    one = np.zeros(1)
    result = np.zeros(1)
    candidates = {
        "plain": lambda: plain.Allreduce(one, result),
        "mpicoll": lambda: own.Allreduce(one, result),
    }
    repeats = repeats_for(own, candidates, seconds, calls=100, least=20)
    figures = compared(alternate(own, candidates, repeats, calls=100), "plain", ("mpicoll",))
    own.Free()
    extra = figures["mpicoll"]["median_us"] - figures["plain"]["median_us"]
    return {
        "bytes": one.nbytes,
        "repeats": repeats,
        "calls": 100,
        **figures,
        "extra_us": round(extra, 3),
    }


def build_time():
    """Seconds to make one rank's rounds of a ring on 1,024 ranks, the best of five."""
    times = []
    for _ in range(5):
        start = perf_counter()
        steps = list(rounds(allreduce.ring, 0, BUILD_SIZE, None, BUILD_SIZE))
        times.append(perf_counter() - start)
    return {
        "collective": "allreduce",
        "algorithm": "ring",
        "size": BUILD_SIZE,
        "rounds": len(steps),
        "milliseconds": round(min(times) * 1e3, 3),
    }


def text(document):
    """The figures for a person."""
    facts = document["environment"]
    few = document["small"]
    build = document["build"]
    lines = [
        f"# {facts['mpi']}, {facts['size']} ranks on {facts['nodes']} node(s), {facts['machine']}",
        "   bytes  by hand us     plan us blocking us   native us  plan x  blocking x",
    ]
    for row in document["results"]:
        medians = "".join(
            f"{row[name]['median_us']:>12.1f}"
            for name in ("hand_written", "plan", "blocking", "native")
        )
        ratios = f"{row['plan_ratio']:>8.2f}{row['blocking_ratio']:>12.2f}"
        lines.append(f"{format_bytes(row['bytes']):>8}{medians}{ratios}")
    lines.append(
        f"allreduce of {few['bytes']} bytes: mpi4py {few['plain']['median_us']:.2f} us, mpicoll"
        f" {few['mpicoll']['median_us']:.2f} us (x {few['mpicoll_ratio']:.2f},"
        f" {few['extra_us']:+.2f} us)"
    )
    lines.append(
        f"rounds of one rank, {build['collective']} {build['algorithm']}, {build['size']} ranks: "
        f"{build['rounds']} rounds in {build['milliseconds']:.1f} ms"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
