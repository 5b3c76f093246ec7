"""What proves that calls can be trusted, as the README shows it: what watching costs, fuzzing, soaking, random kills."""

import json
from pathlib import Path

from mpicoll.support.units import format_bytes

RESULTS = Path(__file__).resolve().parents[1] / "results"


def cost():
    """What comparing calls, and a limit of waiting, cost."""
    text = ""
    for path in sorted(RESULTS.glob("checks-*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        facts = document["environment"]
        text += f"{facts['mpi']}, {facts['size']} ranks, {facts['machine']}: repeated allreduce, times of `check=\"off\"`\n\n"
        text += "| bytes | served by | off (µs) | first | always | off, with a timeout |\n" + "| --- " * 6 + "|\n"
        for row in document["results"]:
            ratios = (f"x {row[f'{mode}_ratio']:.2f}" for mode in ("first", "always", "timeout"))
            word = {None: "MPI, not looked at", "native": "MPI"}.get(row["algorithm"], row["algorithm"])
            cells = (format_bytes(row["bytes"]), word, f"{row['off']['median_us']:.1f}", *ratios)
            text += f"| {' | '.join(cells)} |\n"
        text += "\n"
    return text


def bits():
    """What deterministic and reproducible communicators cost."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("bits-*.json"))]
    if not documents:
        return "Not measured yet: `python -m benchmarks.run.suite bits`.\n"
    text = "| | bytes | ordinary (µs) | deterministic | reproducible |\n" + "| --- " * 5 + "|\n"
    for document in documents:
        facts = document["environment"]
        hosts = f"{facts['nodes']} hosts, {facts['link']}" if facts["nodes"] > 1 else f"one host, {facts['size']} ranks"
        for row in document["results"]:
            served, modes = row["algorithms"], ("deterministic", "reproducible")
            ratios = (f"x {row[f'{mode}_ratio']:.2f} (`{served[mode]}`)" for mode in modes)
            first = f"{row['ordinary']['median_us']:,.0f} (`{served['ordinary']}`)"
            text += f"| {facts['mpi']}, {hosts} | {format_bytes(row['bytes'])} | {first} | {' | '.join(ratios)} |\n"
    wrong = sum(row["wrong"] for document in documents for row in document["results"])
    return text + f"\nWrong elements: {wrong}.\n"


def proof():
    """Fuzzing, soaking and kills, one line each."""
    fuzzed = _all("fuzz-*")
    calls, wrong, errors, hangs = (sum(one[name] for one in fuzzed) for name in ("calls", "wrong", "errors", "hangs"))
    lines = [f"- Random programs of collective calls on 2 and 3 ranks, both MPIs: {calls:,} calls, every byte compared: "
             f"{wrong} wrong, {errors} errors, {hangs} hangs (`python -m benchmarks.run.fuzz`)."]  # fmt: skip
    soaked = [row for one in _all("soak-*") for row in one["results"] if row["what"] in ("blocking", "nonblocking")]
    most = max(row["growth"] for row in soaked) - 1
    lines.append(f"- {sum(row['calls'] for row in soaked):,} blocking and non-blocking calls: resident memory grew by at most "
                 f"{most:.2%}, nothing was left (`python -m benchmarks.run.soak`).")  # fmt: skip
    (kills,) = _all("kills")
    lines.append(f"- Random kills (a rank killed, stopped, stuck, a host cut off): {kills['summary']} "
                 "(`python -m benchmarks.run.kills`).")  # fmt: skip
    return "\n".join(lines) + "\n"


def _all(pattern):
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob(f"{pattern}.json"))]
