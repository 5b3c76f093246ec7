"""The table of versions that the quick tests ran on: `.ci/versions.json`, and what `.ci/versions` made of it."""

import json
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "supported.json"
#: SPEC 0: years after its release for which a feature release is supported
YEARS = {"python": 3, "numpy": 2}


def table():
    """Markdown: a line for each case."""
    wanted = json.loads((ROOT / ".ci" / "versions.json").read_text(encoding="utf-8"))
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    lines = [
        "| case | Python | NumPy | mpi4py | MPI | quick tests | in the window of SPEC 0 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, case in wanted["cases"].items():
        result = results.get(name)
        cells = (name, *installed(case, result), outcome(result), window(wanted["released"], result))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def installed(case, result):
    """The versions that were installed; those asked for, where the case did not run."""
    asked = [case[part] or "newest" for part in ("python", "numpy", "mpi4py", "mpi")]
    if not result or "mpi" not in result:
        return asked
    return [result[part] for part in ("python", "numpy", "mpi4py", "mpi")]


def outcome(result):
    if not result:
        return "not run yet"
    if result["failed"]:
        return f"failed, {result['date']}"
    engine = "" if result["engine"] else ", without the extension"
    return f"{result['passed']} passed, {result.get('skipped', 0)} skipped{engine}, {result['date']}"


def window(released, result):
    """Whether Python and NumPy were so young when the case ran."""
    if not result or "numpy" not in result:
        return "-"
    ran = date.fromisoformat(result["date"])
    old = [part for part, years in YEARS.items() if not _is_young(released[part], result[part], ran, years)]
    return f"older: {', '.join(old)}" if old else "yes"


def _is_young(dates, version, ran, years):
    """Releases that are not in the list are newer than those in it."""
    release = dates.get(".".join(version.split(".")[:2]))
    return release is None or date.fromisoformat(release).replace(year=int(release[:4]) + years) > ran
