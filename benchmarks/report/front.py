"""The results at the front of the README: a picture of the gain, and ten cells, wins and losses."""

from math import isnan

from mpicoll.support.units import format_bytes

from . import compared
from .markdown import table_of

#: (file, bytes, what else is known of the place) of each cell; bytes as asked for
CELLS = [
    ("hosts-openmpi-07", "1M"),
    ("hosts-mpich-13", "16M"),
    ("others-openmpi-bcast-13", "1M"),
    ("others-mpich-reduce_scatter-13", "1M"),
    ("others-mpich-allgather-13", "1M"),
    ("shared-reduce_scatter-openmpi-2", "16M"),
    ("hosts-mpich-08", "1M"),
    ("small-openmpi-07", "4K"),
    ("others-mpich-bcast-13", "16K"),
    ("shared-allreduce-mpich-2", "64K"),
]
#: candidates that stand for a call without options; on one machine our schedule on ordinary arrays
OURS = ("auto", "ordinary arrays")


def cells():
    """Markdown: one row per cell."""
    lines = [
        ["call", "where", "MPI's own, ms", "mpicoll, ms", "x MPI's own", "x its best forced"],
        ["---"] * 2 + ["---:"] * 4,
    ]
    for name, size in CELLS:
        (job,) = compared.load(name)
        nbytes = next(one for one in job.sizes if format_bytes(compared.rounded(one)) == size)
        native = job.median["native", nbytes]
        ours = next(job.median[word, nbytes] for word in OURS if (word, nbytes) in job.median)
        forced = job.best(nbytes, compared.forced)
        where = f"{job.size} ranks on one machine"
        if job.facts["nodes"] > 1:
            where = f"{job.facts['nodes']} hosts, {job.facts['link']}"
        lines.append(
            [
                f"{job.collective}, {size}",
                f"{where}, {job.facts['mpi']}",
                f"{native / 1e3:.3g}",
                f"{ours / 1e3:.3g}",
                f"**{native / ours:.2f}**",
                "-" if isnan(forced) else f"{forced / ours:.2f}",
            ]
        )
    return table_of(lines)


def draw():
    """Bars: how many times as fast as MPI's own allreduce a call without options is, at 7 and 13
    hosts.
    """
    jobs = sorted(
        (
            job
            for job in compared.load("hosts-*")
            if job.size in (7, 13) and "Intel" not in job.facts["mpi"]
        ),
        key=lambda job: (job.size, job.facts["mpi"]),
    )
    figure, ax = compared.plotting().subplots(figsize=(8, 3.6), layout="constrained")
    sizes = [nbytes for nbytes in jobs[0].sizes if nbytes >= 1 << 16]
    width = 0.8 / len(jobs)
    for number, job in enumerate(jobs):
        places = [at + (number - (len(jobs) - 1) / 2) * width for at in range(len(sizes))]
        gains = [job.median["native", nbytes] / job.median["auto", nbytes] for nbytes in sizes]
        bars = ax.bar(
            places, gains, width, label=f"{job.size} hosts, {job.facts['mpi'].replace(' v', ' ')}"
        )
        ax.bar_label(bars, fmt="%.1f", fontsize=7)
    ax.axhline(1, color="black", linewidth=0.8)
    ax.set_xticks(range(len(sizes)), [format_bytes(nbytes) for nbytes in sizes])
    ax.set(
        ylabel="x MPI_Allreduce (above 1: faster)",
        xlabel="m, bytes of the vector",
        title="comm.Allreduce(MPI.IN_PLACE, x) over a network, no options",
        ylim=(0, 4.4),
    )
    ax.legend(fontsize="small", ncols=2, loc="upper left")
    compared.save(figure, "gain")
