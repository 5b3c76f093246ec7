"""All network measurements behind the README.

    python -m benchmarks.run.suite [PART …]

It needs root, and takes an hour.

Parts, all on the virtual cluster: hosts and small (allreduce against everything, 2 to 13 hosts,
from 64K and below it), forced (Intel MPI's best preset), others (reduce_scatter, allgather, bcast),
moves (reduce, gather, scatter, blocks of uneven size), alltoall (7 hosts), between (numbers of
hosts that no rule was made from), placed (4 hosts x 2 ranks, two placements), law (parameter server
against ring, 2 to 8 hosts), bits (what the same bits cost; one host, 4 and 7), training, torch and
backend (2, 4 and 7 hosts, of `backend` also 4 x 2). Each job leaves one file in
benchmarks/results/; `python -m benchmarks.report.tables` then makes the tables.
"""

import argparse
import os
import sys
from pathlib import Path

from mpicoll.cluster import PLACEMENTS, Cluster

RESULTS = Path(__file__).resolve().parents[1] / "results"
#: hosts and the rate of their links: what two to four cores can move between so many hosts
RATES = {2: "1gbit", 4: "1gbit", 7: "500mbit", 8: "500mbit", 13: "200mbit"}
LIBRARIES = ("openmpi", "mpich")
#: numbers of hosts that no rule of the table was made from
BETWEEN = {3: "1gbit", 5: "500mbit", 6: "500mbit", 9: "200mbit", 11: "200mbit"}
#: what of ours is measured there
LIKELY = {
    "allreduce": "ring,circulant,recursive_doubling",
    "reduce_scatter": "ring,circulant,halving",
    "allgather": "ring,circulant,bruck",
    "bcast": "circulant,pipeline,scatter_allgather",
}
#: rooted collectives are pipelined: pieces that their algorithms are measured in, MPI's own too
PIECES = ["--segments", "8K,16K,32K,60000"]
IN_PIECES = [
    "--algorithms",
    "circulant,pipeline,scatter_allgather",
    *PIECES,
    "--forced-segments",
    "16K",
]
#: of Intel MPI's presets for allreduce the best at 7 hosts
PRESETS = {"I_MPI_ADJUST_ALLREDUCE": "8"}
#: for training, where the cores must compute as well
SLOW = {2: "400mbit", 4: "200mbit", 7: "200mbit"}


def jobs():
    """(part, name of the result, MPI library, hosts, rate, ranks per host, placement, options of
    benchmarks.run.collective).
    """
    for mpi in LIBRARIES:
        for hosts, rate in RATES.items():
            yield (
                "hosts",
                f"hosts-{mpi}-{hosts:02}",
                mpi,
                hosts,
                rate,
                1,
                "node",
                ["--sizes", "64K:16M", "--min-time", "4"],
            )
            yield (
                "small",
                f"small-{mpi}-{hosts:02}",
                mpi,
                hosts,
                rate,
                1,
                "node",
                ["--sizes", "1K:16K", "--min-time", "3"],
            )
        for hosts in RATES:
            for collective in ("reduce_scatter", "allgather", "bcast"):
                options = [
                    "--collective",
                    collective,
                    "--sizes",
                    "4K:4M",
                    "--min-time",
                    "2",
                    "--peers",
                    "forced",
                ]
                options += IN_PIECES if collective == "bcast" else []
                yield (
                    "others",
                    f"others-{mpi}-{collective}-{hosts:02}",
                    mpi,
                    hosts,
                    RATES[hosts],
                    1,
                    "node",
                    options,
                )
        yield from _moves(mpi)
        yield from _between(mpi)
        exchanged = [
            "--collective",
            "alltoall",
            "--sizes",
            "1K:4M",
            "--min-time",
            "2",
            "--peers",
            "none",
            "--keep",
        ]
        yield "alltoall", f"alltoall-{mpi}-07", mpi, 7, RATES[7], 1, "node", exchanged
        for placement in PLACEMENTS:
            options = [
                "--sizes",
                "1M:16M",
                "--algorithms",
                "hierarchical,ring,circulant,halving_doubling",
                "--least",
                "9",
            ]
            yield "placed", f"placed-{mpi}-{placement}", mpi, 4, "1gbit", 2, placement, options
            for collective in ("reduce_scatter", "allgather"):
                options = [
                    "--collective",
                    collective,
                    "--sizes",
                    "16K:4M",
                    "--min-time",
                    "1",
                    "--peers",
                    "forced",
                    "--algorithms",
                    "hierarchical,ring,circulant",
                ]
                yield (
                    "placed",
                    f"placed-{mpi}-{collective}-{placement}",
                    mpi,
                    4,
                    "1gbit",
                    2,
                    placement,
                    options,
                )
    for hosts in (4, 7):
        options = [
            "--sizes",
            "64K:16M",
            "--min-time",
            "4",
            "--peers",
            "forced",
            "--algorithms",
            "ring,circulant",
        ]
        for part in ("hosts", "forced"):  # in a job of its own, says peers.forced
            yield (
                part,
                f"{part}-intelmpi-{hosts:02}",
                "intelmpi",
                hosts,
                RATES[hosts],
                1,
                "node",
                options,
            )
        small = [
            "--sizes",
            "1K:16K",
            "--min-time",
            "3",
            "--peers",
            "none",
            "--algorithms",
            "recursive_doubling,tree,circulant",
        ]
        yield (
            "small",
            f"small-intelmpi-{hosts:02}",
            "intelmpi",
            hosts,
            RATES[hosts],
            1,
            "node",
            small,
        )
    for hosts in range(2, 9):
        options = [
            "--sizes",
            "4M",
            "--algorithms",
            "parameter_server,ring",
            "--peers",
            "none",
            "--least",
            "9",
            "--keep",
        ]
        yield "law", f"law-mpich-{hosts}", "mpich", hosts, "500mbit", 1, "node", options


def _moves(mpi):
    """Reduce, gather and scatter; blocks of which one rank has most, or of random size."""
    for hosts in (4, 7, 13):
        sizes = [
            "--sizes",
            "4K:4M" if hosts < 13 else "4K:1M",
            "--min-time",
            "1",
            "--peers",
            "forced",
        ]
        pieces = [
            "--algorithms",
            "circulant,pipeline,reduce_scatter_gather",
            *PIECES,
            "--forced-segments",
            "16K",
        ]
        cases = [("reduce", "even", pieces), ("gather", "even", []), ("scatter", "even", [])]
        if hosts > 4:
            cases += [
                (name, split, [])
                for name in ("allgather", "reduce_scatter")
                for split in ("one", "random")
            ]
            cases += [(name, "one", []) for name in ("gather", "scatter")]
        for name, split, more in cases:
            result = f"moves-{mpi}-{name}{'' if split == 'even' else '-' + split}-{hosts:02}"
            options = ["--collective", name, "--split", split, *sizes, *more]
            yield "moves", result, mpi, hosts, RATES[hosts], 1, "node", options


def _between(mpi):
    for hosts, rate in BETWEEN.items():
        for name, words in LIKELY.items():
            options = [
                "--collective",
                name,
                "--sizes",
                "16K:1M",
                "--min-time",
                "1",
                "--peers",
                "forced",
                "--algorithms",
                words,
            ]
            more = PIECES if name == "bcast" else []
            yield (
                "between",
                f"between-{mpi}-{name}-{hosts:02}",
                mpi,
                hosts,
                rate,
                1,
                "node",
                [*options, *more],
            )


def training():
    """(part, module, name of the result, MPI library, hosts, rate, options, ranks per host) of the
    jobs that train.
    """
    for mpi in LIBRARIES:
        for hosts, rate in SLOW.items():
            trace = (
                ["--trace", os.path.relpath(RESULTS / "timeline")]
                if (mpi, hosts) == ("mpich", 4)
                else []
            )
            # minutes: a few cores compute for all of them
            short = ["--rounds", "1"] if hosts > 4 else []
            yield (
                "training",
                "benchmarks.run.training",
                f"training-{mpi}-{hosts}",
                mpi,
                hosts,
                rate,
                [*trace, *short],
                1,
            )
            yield (
                "torch",
                "benchmarks.peers.torch_ddp",
                f"torch-{mpi}-{hosts}",
                mpi,
                hosts,
                rate,
                [],
                1,
            )
            for ranks in (1, 2) if hosts == 4 else (1,):
                name = f"backend-{mpi}-{hosts}{'' if ranks == 1 else f'x{ranks}'}"
                options = ["--most", "16M", "--rounds", "3"]
                yield (
                    "backend",
                    "benchmarks.peers.torch_backend",
                    name,
                    mpi,
                    hosts,
                    rate,
                    options,
                    ranks,
                )


def bits():
    """The same of the jobs that measure what the same bits cost."""
    for mpi in LIBRARIES:
        for hosts, ranks in ((1, 2), (4, 1), (7, 1)):
            name = f"bits-{mpi}-{hosts}{'' if ranks == 1 else f'x{ranks}'}"
            yield (
                "bits",
                "benchmarks.run.bits",
                name,
                mpi,
                hosts,
                RATES.get(hosts, "1gbit"),
                [],
                ranks,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="default: all; also names of single results")
    parser.add_argument(
        "--python", metavar="PATTERN", help="the interpreters, with {} for openmpi and mpich"
    )
    options = parser.parse_args()
    asked = lambda part, name: not options.parts or part in options.parts or name in options.parts
    for part, name, mpi, hosts, rate, ranks, placement, more in jobs():
        if asked(part, name):
            more = ["--placement", placement, *more]
            _run(
                "benchmarks.run.collective",
                name,
                mpi,
                hosts,
                rate,
                more,
                options,
                ranks_per_host=ranks,
                placement=placement,
            )
    for part, module, name, mpi, hosts, rate, more, ranks in (*training(), *bits()):
        if asked(part, name):
            _run(module, name, mpi, hosts, rate, more, options, ranks_per_host=ranks)


def _run(module, name, mpi, hosts, rate, more, options, **where):
    print(f"--- {name}", flush=True)
    command = [
        "python",
        "-m",
        module,
        "--link",
        rate,
        "--json",
        os.path.relpath(RESULTS / f"{name}.json"),
        *more,
    ]
    python = options.python.format(mpi) if options.python else None
    env = {**os.environ, **(PRESETS if name.startswith("forced-") else {})}
    with Cluster(hosts, rate) as cluster:
        status = cluster.run(command, mpi, python=python, env=env, **where).returncode
    if status:
        sys.exit(f"{name}: exit status {status}")


if __name__ == "__main__":
    main()
