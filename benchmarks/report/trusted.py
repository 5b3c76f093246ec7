"""What proves that calls can be trusted: cost of watching, fuzzing, soaking, random kills."""

from collections import Counter

from mpicoll.support.units import format_bytes

from .results import results_of


def cost():
    """What comparing calls, and a limit of waiting, cost."""
    text = ""
    for document in results_of("checks-*"):
        facts = document["environment"]
        text += (
            f"{facts['mpi']}, {facts['size']} ranks, {facts['machine']}: repeated allreduce, times"
            ' of `check="off"`\n\n'
        )
        text += (
            "| bytes | served by | off (µs) | first | always | off, with a timeout |\n"
            + "| --- " * 6
            + "|\n"
        )
        for row in document["results"]:
            ratios = (f"x {row[f'{mode}_ratio']:.2f}" for mode in ("first", "always", "timeout"))
            word = {None: "MPI, by default", "native": "MPI"}.get(
                row["algorithm"], row["algorithm"]
            )
            cells = (format_bytes(row["bytes"]), word, f"{row['off']['median_us']:.1f}", *ratios)
            text += f"| {' | '.join(cells)} |\n"
        text += "\n"
    return text


def bits():
    """What deterministic and reproducible communicators cost."""
    documents = results_of("bits-*")
    if not documents:
        return "Not measured yet: `python -m benchmarks.run.suite bits`.\n"
    text = "| | bytes | ordinary (µs) | deterministic | reproducible |\n" + "| --- " * 5 + "|\n"
    for document in documents:
        facts = document["environment"]
        hosts = (
            f"{facts['nodes']} hosts, {facts['link']}"
            if facts["nodes"] > 1
            else f"one host, {facts['size']} ranks"
        )
        for row in document["results"]:
            served = row["algorithms"]
            modes = ("deterministic", "reproducible")
            ratios = (f"x {row[f'{mode}_ratio']:.2f} (`{served[mode]}`)" for mode in modes)
            first = f"{row['ordinary']['median_us']:,.0f} (`{served['ordinary']}`)"
            text += (
                f"| {facts['mpi']}, {hosts} | {format_bytes(row['bytes'])} | {first} |"
                f" {' | '.join(ratios)} |\n"
            )
    wrong = sum(row["wrong"] for document in documents for row in document["results"])
    return text + f"\nWrong elements: {wrong}.\n"


def _sizes(documents):
    """The numbers of ranks that results are of."""
    return ", ".join(map(str, sorted({one["environment"]["size"] for one in documents})))


def proof():
    """Fuzzing, soaking and kills, one line each."""
    fuzzed = results_of("fuzz-*")
    calls, wrong, errors, hangs = (
        sum(one[name] for one in fuzzed) for name in ("calls", "wrong", "errors", "hangs")
    )
    lines = [
        f"- Random programs of collective calls on {_sizes(fuzzed)} ranks, both MPIs: {calls:,} calls, every"
        f" byte compared: {wrong} wrong, {errors} errors, {hangs} hangs (`python -m"
        " benchmarks.run.fuzz`)."
    ]
    lines += _with_axes([one for one in fuzzed if "axes" in one])
    lines += [_after_deaths(one) for one in results_of("after-death")]
    trained = results_of("trainings-*")
    trainings, wrong, hangs = (
        sum(one[name] for one in trained) for name in ("trainings", "wrong", "hangs")
    )
    if trained:
        lines.append(
            f"- Random trainings on {_sizes(trained)} ranks, both MPIs: {trainings:,},"
            f" losses and parameters compared with a reference in plain NumPy: {wrong} wrong,"
            f" {hangs} hangs (`python -m benchmarks.run.trainings`)."
        )
    soaked = [
        row
        for one in results_of("soak-*")
        for row in one["results"]
        if row["what"] in ("blocking", "nonblocking")
    ]
    most = max(row["growth"] for row in soaked) - 1
    lines.append(
        f"- {sum(row['calls'] for row in soaked):,} blocking and non-blocking calls: resident"
        f" memory grew by at most {most:.2%}, nothing was left (`python -m benchmarks.run.soak`)."
    )
    (kills,) = results_of("kills")
    lines.append(
        f"- Random kills (a rank killed, stopped, stuck, a host cut off): {kills['summary']} "
        "(`python -m benchmarks.run.kills`)."
    )
    return "\n".join(lines) + "\n"


def _with_axes(documents):
    """Of the programs that have more than calls in one thread or two."""
    if not documents:
        return []
    axes = Counter()
    checks = Counter()
    for one in documents:
        axes.update(one["axes"])
        checks.update(one["checks"])
    calls, errors = (sum(one[name] for one in documents) for name in ("calls", "errors"))
    disturbed = sum(
        number for name, number in axes.items() if name.startswith("by ") and "nobody" not in name
    )
    compared = sum(number for name, number in checks.items() if name != "off")
    return [
        (
            f"- {calls:,} of these calls have arrays of all kinds (shared, misaligned, empty ones"
            " of another type), communicators of all kinds, and up to three threads that make and"
            f" forget shared arrays. Among them: {axes['fork']:,} forks, {disturbed:,} programs"
            f" disturbed by a signal handler, finalizers or a thread, {axes['late']:,} times a rank"
            f" that came when the others had given up, {axes['plans started later']:,} plans"
            " started later."
        ),
        (
            f"- {compared:,} of these calls were compared with those of other ranks: {errors} false"
            " alarms."
        ),
    ]


def _after_deaths(document):
    told = document["summary"]
    return (
        f"- Ranks killed in random calls, Open MPI: {told['jobs']} jobs, {told['deaths']} deaths,"
        f" {told['arrays']:,} arrays written to after the error and looked at in the end:"
        f" {_outcomes(told)} (`python -m benchmarks.run.after_death`)."
    )


def bugs():
    """Faulty programs, by class: how many are named."""
    documents = results_of("bugs-*")
    if not documents:
        return "Not measured yet: `python -m benchmarks.run.bugs`.\n"
    rows = [row for document in documents for row in document["results"]]
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    text = f"| class | programs | {' | '.join(f'named, {mode}' for mode in modes)} |\n"
    text += "| --- " * (2 + len(modes)) + "|\n"
    for kind in [*kinds, "all"]:
        ours = [row for row in rows if kind in (row["kind"], "all")]
        cells = [kind, len({row["name"] for row in ours})]
        for mode in modes:
            said = [row["said"] for row in ours if row["mode"] == mode]
            cells.append(
                f"{said.count('named')} of {len(said)} jobs ({said.count('named') / len(said):.0%})"
            )
        text += f"| {' | '.join(map(str, cells))} |\n"
    allowed = [row for document in documents for row in document["legal"]]
    calls, alarms = (sum(row[name] for row in allowed) for name in ("calls", "false_alarms"))
    libraries = dict.fromkeys(facts["mpi"] for facts in _of_each_mpi(documents))
    text = f"{', '.join(libraries)}:\n\n{text}"
    text += (
        f"\nFalse alarms in {calls:,} legal calls: {alarms}. Named: a message or `mpicoll diagnose`"
        " has the rank that made "
    )
    return text + "the mistake together with its line (`python -m benchmarks.run.bugs`).\n"


def _of_each_mpi(documents):
    """What was measured on each MPI library."""
    environments = [document["environment"] for document in documents]
    return [
        facts
        for one in environments
        for facts in one.values()
        if isinstance(facts, dict) and "mpi" in facts
    ]


def survival():
    """Random kills of trainings that go on."""
    (document,) = results_of("survive")
    told = document["summary"]
    return (
        "\n".join(
            [
                f"- {told['jobs']} jobs, {told['deaths']} ranks killed: {_outcomes(told)}.",
                *_survived(document),
            ]
        )
        + "\n"
    )


def several_fits():
    """Random kills of trainings of several fits."""
    (document,) = results_of("survive-fits")
    told = document["summary"]
    exact = [
        row
        for row in document["results"]
        if "reproducible" in row["training"]["options"] and "difference" in row
    ]
    equal = sum(row["difference"] == 0 for row in exact)
    lines = [
        (
            f"- {told['jobs']} jobs, two at a time: {_outcomes(told)}; {told['not in order']} not"
            " in order."
        ),
        (
            "- Losses, epochs and sums of parameters differ from the undisturbed ones by at most "
            f"{told['largest_difference']:.1e}."
        ),
        f"- With `reproducible` {equal} of {len(exact)} jobs have the same to the bit.",
    ]
    failed = [row for row in document["results"] if not row["good"]]
    lines += [
        f"- Not in order: seed {row['seed']}, {row['where']}: {row['outcome']}." for row in failed
    ]
    return "\n".join(lines) + "\n"


def cut_off():
    """The same on the virtual cluster, where hosts are cut off."""
    (document,) = results_of("survive-cluster")
    told = document["summary"]
    lines = [
        f"- {told['jobs']} jobs, {told['cut']} hosts cut off, {told['deaths']} ranks killed:"
        f" {_outcomes(told)}."
    ]
    lines += _survived(document)
    for cause, words in (("cut", "a host was cut off"), ("killed", "a rank was killed")):
        seconds = told["interruptions"][cause]
        step, noticed = (
            (seconds[f"{name}_median_s"], seconds[f"{name}_worst_s"])
            for name in ("step", "noticed")
        )
        lines.append(
            f"- Interruption, from when {words} to the end of the next step of all who are left"
            f" ({seconds['count']} times): median {step[0]:.2f} s, at worst {step[1]:.2f} s. Of"
            f" that until they know: median {noticed[0]:.2f} s, at worst {noticed[1]:.2f} s."
        )
    return "\n".join(lines) + "\n"


def _outcomes(told):
    return ", ".join(f"{number} {name}" for name, number in told["outcomes"].items())


def _survived(document):
    told = document["summary"]
    lines = [
        "- Losses differ from those of the uninterrupted run by at most"
        f" {told['largest_difference']:.1e} of each."
    ]
    exact = [
        row
        for row in document["results"]
        if "--reproducible" in row["options"] and "difference" in row
    ]
    if exact:
        equal = sum(row["difference"] == 0 for row in exact)
        lines.append(
            f"- With `--reproducible` {equal} of {len(exact)} jobs have the same losses to the bit."
        )
    often, worst = (told[f"recovery_{which}_s"] * 1e3 for which in ("median", "worst"))
    lines.append(
        f"- Recovery, from the new communicator until the next step can begin: median {often:.0f}"
        f" ms, at worst {worst:.0f} ms."
    )
    failed = [row for row in document["results"] if not row["good"]]
    return lines + [
        f"- Not in order: seed {row['seed']}, {row['where']}: {row['outcome']}." for row in failed
    ]


def elastic_off():
    """What everything since the last commit without lost ranks in mind costs a program that does
    not ask for it.
    """
    text = "| | before | now | ratio | of each round |\n" + "| --- " * 5 + "|\n"
    for document in results_of("elastic-off-*"):
        for row in document["results"]:
            times = (f"{row[name]:,.1f} µs" for name in ("before", "after"))
            apart = f"{row['least']:.2f} to {row['most']:.2f}"
            what = f"{document['environment']['mpi']}, {row['what']}"
            text += f"| {what} | {' | '.join(times)} | x {row['ratio']:.2f} | {apart} |\n"
    return text


def copies():
    """What the copies of shards cost a step; allreduce, which needs none, shows what the rest of
    `--elastic` costs.
    """
    documents = results_of("copies")
    if not documents:
        return "Not measured yet: `python -m benchmarks.run.copies`.\n"
    (document,) = documents
    rows = {
        (row["hosts"], row["batch_size"], row["strategy"], row["elastic"]): row
        for row in document["results"]
    }
    header = (
        "hosts",
        "batch",
        "strategy",
        "computing, ms",
        "step, ms",
        "elastic, ms",
        "MB copied",
        "wire, ms",
        "exposed, ms",
        "hidden",
        "of the step",
    )
    text = "| " + " | ".join(header) + " |\n" + "| --- " * len(header) + "|\n"
    for key in dict.fromkeys(key[:3] for key in rows):
        plain = rows[(*key, False)]
        elastic = rows[(*key, True)]
        seconds = (
            f"{one * 1e3:.0f}" for one in (plain["compute_s"], plain["step_s"], elastic["step_s"])
        )
        copied = ["-"] * 5
        if wire := elastic["wire_s"]:
            exposed = elastic["copy_exposed_s"]
            longer = elastic["step_s"] - plain["step_s"]
            copied = [
                f"{elastic['copy_bytes_per_step'] / 1e6:.1f}",
                f"{wire * 1e3:.0f}",
                f"{exposed * 1e3:.1f}",
                f"{1 - exposed / wire:.2f}",
                f"{1 - max(0.0, longer) / wire:.2f}",
            ]
        text += f"| {' | '.join(map(str, (*key, *seconds, *copied)))} |\n"
    return text
