"""The committed results that the pages are made of."""

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"


def results_of(pattern, made_by=None):
    """Those whose names match, in the order of these.

    made_by: the job of the suite that makes them; SystemExit names it where there is none.
    """
    paths = sorted(RESULTS.glob(f"{pattern}.json"))
    if made_by and not paths:
        raise SystemExit(
            f"there is no {RESULTS.name}/{pattern}.json: run python -m benchmarks.run.suite {made_by}"
        )
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
