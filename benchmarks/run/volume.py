"""Count what each rank sends.

    mpiexec -n 8 python -m benchmarks.run.volume --json benchmarks/results/volume-8.json

The bytes are counted where the sends are started (`comm.sent`), for a vector of 8 MiB, and given as
a fraction of it.
"""

import argparse
import json

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.measure import measured_on

CASES = {
    "reduce_scatter": ("ring", "halving", "circulant", "pairwise"),
    "allgather": ("ring", "doubling", "circulant", "bruck"),
    "allreduce": (
        "ring",
        "halving_doubling",
        "circulant",
        "recursive_doubling",
        "reduce_bcast",
        "parameter_server",
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--bytes", type=int, default=8 << 20)
    arguments = parser.parse_args()
    mpicoll.install_abort_hook()
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    results = [
        count(comm, *case, arguments.bytes)
        for case in ((c, word) for c in CASES for word in CASES[c])
    ]
    document = {"schema": 1, "environment": measured_on(comm), "results": results}
    if comm.rank == 0:
        for result in results:
            print(
                "{collective:15} {algorithm:20} least {least:9} most {most:9} of {bytes} bytes"
                .format(**result)
            )
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(document, file, indent=1)


def count(comm, collective, word, nbytes):
    """The least and most bytes that a rank sends in one call."""
    whole = np.ones(nbytes // 4, np.float32)
    part = np.ones(nbytes // 4 // comm.size, np.float32)
    buffers = {
        "reduce_scatter": (whole, part),
        "allgather": (part, whole),
        "allreduce": (MPI.IN_PLACE, whole),
    }[collective]
    method = {"reduce_scatter": "Reduce_scatter_block"}.get(collective, collective.capitalize())
    before = comm.sent[1]
    getattr(comm, method)(*buffers, algorithm=word)
    sent = comm.allgather(comm.sent[1] - before)
    return {
        "collective": collective,
        "algorithm": word,
        "bytes": nbytes,
        "least": min(sent),
        "most": max(sent),
    }


if __name__ == "__main__":
    main()
