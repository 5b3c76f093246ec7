"""Tables and pictures of the network measurements of `benchmarks.run.suite`."""

import json
from math import isnan, nan
from pathlib import Path

from mpicoll.bench import least_share, method_of
from mpicoll.simulate import closed_form
from mpicoll.support.units import format_bytes

from .markdown import table_of
from .results import RESULTS

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
#: a call whose bytes over a link are less than this many times what an idle link may be ahead is
#: marked
BURSTS = 50


class Result:
    """One result: medians in microseconds by candidate and size."""

    def __init__(self, document):
        self.facts = document["environment"]
        self.rows = document["results"]
        self.collective = self.rows[0]["collective"]
        self.split = self.rows[0].get("split", "even")
        self.title = (
            self.collective
            if self.split == "even"
            else f"{method_of(self.collective, self.split)}, {self.split}"
        )
        self.sizes = sorted({row["bytes"] for row in self.rows})
        self.size = self.facts["size"]
        self.median = {(row["algorithm"], row["bytes"]): row["median_us"] for row in self.rows}
        self.wrong = sum(row["wrong"] for row in self.rows)

    def best(self, nbytes, wanted):
        """Microseconds of the fastest of the candidates that `wanted` takes; not a number where
        there is none.
        """
        return min(
            (time for (name, size), time in self.median.items() if size == nbytes and wanted(name)),
            default=nan,
        )

    def limit(self, nbytes):
        """Microseconds in which the busiest link carries what it must: 2 (N-1)/N m for an allreduce
        on N nodes.
        """
        return (
            least_share(self.collective, self.facts["nodes"], self.split)
            * nbytes
            / self.facts["goodput"]
            * 1e6
        )

    def short(self, nbytes):
        """Whether what an idle link may be ahead of its rate shows in the result."""
        return self.limit(nbytes) * 1e-6 * self.facts["goodput"] < BURSTS * self.facts["burst"]


def load(pattern):
    """The `Result` of each file."""
    found = [Result(_read(path)) for path in sorted(RESULTS.glob(f"{pattern}.json"))]
    if not found:
        raise SystemExit(
            f"there is no {RESULTS.name}/{pattern}.json: run python -m benchmarks.run.suite"
        )
    return found


def _read(path):
    """A result; that of `hosts` with the rows of `small`, which is the same job for the sizes
    below, and those of `forced`.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    if not path.name.startswith("hosts-"):
        return document
    small, apart = (
        path.with_name(path.name.replace("hosts-", f"{part}-")) for part in ("small", "forced")
    )
    if small.exists():
        rows = json.loads(small.read_text(encoding="utf-8"))["results"]
        largest = max(row["bytes"] for row in rows)
        document["results"] = rows + [row for row in document["results"] if row["bytes"] > largest]
    if apart.exists():
        document["results"] += _beside(
            document["results"], json.loads(apart.read_text(encoding="utf-8"))["results"]
        )
    return document


def _beside(rows, others):
    """The forced rows of another job, which had a noise of its own: as long as they took there in
    times of `auto`.
    """
    auto, theirs = (
        {row["bytes"]: row["median_us"] for row in some if row["algorithm"] == "auto"}
        for some in (rows, others)
    )
    return [
        row | {"median_us": row["median_us"] / theirs[row["bytes"]] * auto[row["bytes"]]}
        for row in others
        if forced(row["algorithm"])
    ]


def forced(name):
    """Whether a candidate is MPI's own call with a forced algorithm."""
    return name.startswith("native ") and name != "native again"


def ours(name):
    """Whether a candidate is one of mpicoll's algorithms."""
    return not name.startswith(("native", "gloo", "auto"))


def metrics(job):
    """Rows (name, one text per size) that say how `auto` stands."""

    def line(name, cell):
        cells = [cell(nbytes) for nbytes in job.sizes]
        return [name, *("-" if one is None else one for one in cells)]

    def against(name):
        return lambda nbytes: _ratio(job.median.get((name, nbytes)), job.median["auto", nbytes])

    def share(nbytes):
        mark = "*" if job.short(nbytes) else ""
        return f"{job.limit(nbytes) / job.median['auto', nbytes]:.2f}{mark}"

    def beside(wanted):
        return lambda nbytes: _ratio(job.best(nbytes, wanted), job.median["auto", nbytes])

    def chosen(nbytes):
        return next(
            row["chose"] for row in job.rows if (row["algorithm"], row["bytes"]) == ("auto", nbytes)
        )

    yield line("native, ms", lambda nbytes: f"{job.median['native', nbytes] / 1e3:.3g}")
    yield line(
        "native against itself",
        lambda nbytes: _ratio(job.median["native", nbytes], job.median["native again", nbytes]),
    )
    yield line("auto is", chosen)
    yield line("**auto x native**", lambda nbytes: f"**{against('native')(nbytes)}**")
    if any(forced(name) for name, _ in job.median):
        yield line("auto x best forced", beside(forced))
    if any(name == "gloo" for name, _ in job.median):
        yield line("auto x gloo", against("gloo"))
    yield line("auto x our best word", beside(ours))
    yield line("auto, share of the link", share)


def _ratio(time, base):
    return None if time is None or isnan(time) else f"{time / base:.2f}"


def table(pattern):
    """Markdown of all results of a pattern: a table per MPI library and collective, hosts one below
    the other.
    """
    jobs = load(pattern)
    text = ""
    for library in dict.fromkeys(job.facts["mpi"] for job in jobs):
        for collective in dict.fromkeys(job.collective for job in jobs):
            some = [
                job for job in jobs if (job.facts["mpi"], job.collective) == (library, collective)
            ]
            some.sort(key=lambda job: job.size)
            if some:
                text += _caption(some) + _rows(some)
    return text


def _caption(jobs):
    facts = jobs[0].facts
    return (
        f"{jobs[0].collective}, {facts['mpi']}, mpi4py {facts['mpi4py']}, float32, virtual cluster"
        f" on {facts['machine']}, {facts['date'].partition('T')[0]}, wrong elements:"
        f" {sum(job.wrong for job in jobs)}\n\n"
    )


def _rows(jobs):
    sizes = sorted(
        {format_bytes(rounded(nbytes)): nbytes for job in jobs for nbytes in job.sizes}.items(),
        key=lambda e: e[1],
    )
    lines = [["hosts", "", *(name for name, _ in sizes)], ["---"] * 2 + ["---:"] * len(sizes)]
    for job in jobs:
        where = f"{job.facts['nodes']}, {job.facts['link']}"
        if job.size > job.facts["nodes"]:
            where = (
                f"{job.facts['nodes']} x {job.size // job.facts['nodes']}, {job.facts['link']},"
                f" {job.facts['placement']}"
            )
        for row in metrics(job):
            lines.append([where, *row])
            where = ""
    return table_of(lines) + "\n"


def rounded(nbytes):
    """The power of two that a size was asked for as: blocks of equal size may have cost it a few
    bytes.
    """
    return 1 << (nbytes + 1024).bit_length() - 1 if nbytes & (nbytes - 1) else nbytes


def brief(*patterns):
    """Markdown of many results: a row per collective and number of hosts, in each cell how `auto`
    stands.
    """
    jobs = [job for pattern in patterns for job in load(pattern)]
    text = ""
    for library in dict.fromkeys(job.facts["mpi"] for job in jobs):
        some = [job for job in jobs if job.facts["mpi"] == library]
        sizes = sorted({rounded(nbytes) for job in some for nbytes in job.sizes})
        lines = [
            ["collective", "hosts", *map(format_bytes, sizes)],
            ["---"] * 2 + ["---:"] * len(sizes),
        ]
        for job in sorted(some, key=lambda job: (job.title, job.size)):
            cells = {rounded(nbytes): _brief(job, nbytes) for nbytes in job.sizes}
            lines.append(
                [
                    job.title,
                    f"{job.size}, {job.facts['link']}",
                    *(cells.get(size, "-") for size in sizes),
                ]
            )
        text += (
            _caption(some).partition(", ")[2]
            + table_of(lines)
            + "\n"
        )
    return text


def barriers():
    """Markdown: a row per library, and by the number of hosts how a barrier by `auto` stands."""
    jobs = load("scans-*-barrier-*")
    hosts = sorted({job.size for job in jobs})
    lines = [
        ["barrier", *(f"{size} hosts" for size in hosts)],
        ["---"] + ["---:"] * len(hosts),
    ]
    for library in sorted({job.facts["mpi"] for job in jobs}):
        cells = {job.size: _brief(job, *job.sizes) for job in jobs if job.facts["mpi"] == library}
        lines.append([library, *(cells.get(size, "-") for size in hosts)])
    return table_of(lines)


def _brief(job, nbytes):
    """How many times as fast as MPI's own call `auto` is, and as the fastest of everything else."""
    auto = job.median["auto", nbytes]
    others = job.best(nbytes, lambda name: name != "auto")
    return f"**{job.median['native', nbytes] / auto:.2f}** {others / auto:.2f}"


# Pictures.


def pictures():
    """Write all of them."""
    pyplot = plotting()
    _bandwidth(pyplot)
    _law(pyplot)


def plotting():
    """matplotlib's pyplot, which then writes the same file from the same results."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "mpicoll"
    from matplotlib import pyplot

    return pyplot


def save(figure, name):
    """Write a picture of the pages."""
    figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})


def _bandwidth(pyplot):
    """The share of the link that native, its best forced algorithm, gloo and auto use, over size,
    at 7 and 13 hosts.
    """
    jobs = [
        job
        for job in load("hosts-*")
        if job.size in (7, 13) and ("gloo", job.sizes[-1]) in job.median
    ]
    figure, axes = pyplot.subplots(
        2, 2, figsize=(10, 7), layout="constrained", sharex=True, sharey=True
    )
    for job, ax in zip(jobs, axes.flat):
        lines = {
            "MPI_Allreduce": lambda n: job.median["native", n],
            "mpicoll": lambda n: job.median["auto", n],
            "MPI, best forced": lambda n: job.best(n, forced),
            "gloo": lambda n: job.median["gloo", n],
        }
        for label, time in lines.items():
            ax.plot(
                job.sizes,
                [job.limit(nbytes) / time(nbytes) for nbytes in job.sizes],
                marker=".",
                label=label,
            )
        ax.axhline(1, color="black", linewidth=0.5)
        ax.set(
            xscale="log",
            title=f"{job.size} hosts, {job.facts['link']}, {job.facts['mpi']}",
            ylabel="share of the link",
            xlabel="m, bytes of the vector",
        )
        ax.tick_params(labelbottom=True)
        ax.set_xticks(job.sizes, [format_bytes(nbytes) for nbytes in job.sizes])
        ax.set_xticks([], minor=True)
    axes.flat[0].legend(fontsize="small")
    figure.supxlabel(
        "above 1: what a short message puts into an idle link's buffers is not waited for",
        fontsize="small",
    )
    save(figure, "hosts")


def _law(pyplot):
    """Time over the number of hosts, measured and by formula."""
    jobs = sorted(load("law-*"), key=lambda job: job.size)
    figure, ax = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    hosts = [job.size for job in jobs]
    nbytes = jobs[0].sizes[0]
    goodput = jobs[0].facts["goodput"]
    for word, formula, colour in (
        ("parameter_server", "2(p-1)·m/b", "C3"),
        ("ring", "2(p-1)/p·m/b", "C0"),
    ):
        ax.plot(
            hosts,
            [job.median[word, nbytes] / 1e3 for job in jobs],
            "o",
            color=colour,
            label=f"{word}, measured",
        )
        law = [closed_form("allreduce", word, size).sent * nbytes / goodput * 1e3 for size in hosts]
        ax.plot(hosts, law, "-", color=colour, label=f"{word}: {formula}")
    title = f"allreduce of m = {format_bytes(nbytes)} over links of b = {jobs[0].facts['link']}"
    ax.set(xlabel="p, ranks, one on each host", ylabel="ms", title=title, ylim=(0, None))
    ax.legend(fontsize="small")
    save(figure, "law")


def law_table():
    """Markdown: parameter server and ring over the number of hosts, measured and by formula."""
    jobs = sorted(load("law-*"), key=lambda job: job.size)
    lines = [["hosts", *(str(job.size) for job in jobs)], ["---"] + ["---:"] * len(jobs)]
    for word in ("parameter_server", "ring"):
        times = [job.median[word, job.sizes[0]] / 1e3 for job in jobs]
        laws = [
            closed_form("allreduce", word, job.size).sent
            * job.sizes[0]
            / job.facts["goodput"]
            * 1e3
            for job in jobs
        ]
        lines += [
            [f"{word}, measured, ms", *(f"{time:.1f}" for time in times)],
            [f"{word}, by formula, ms", *(f"{law:.1f}" for law in laws)],
        ]
    return _caption(jobs) + table_of(lines) + "\n"
