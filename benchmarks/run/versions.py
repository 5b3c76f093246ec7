"""Two versions of mpicoll against each other.

    python -m benchmarks.run.versions --before TREE --json FILE

TREE is another checkout (`git worktree add TREE COMMIT`). Jobs on its mpicoll and on this one
alternate, with the MPI of this Python: the calls of `calls`, and steps of training. Times are
medians over rounds, the ratio is the median of the rounds' ratios: what else the machine does slows
both jobs of a round down. How far the ratios are apart is the noise.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CALLS = Path(__file__).with_name("calls.py")
TRAINING = [
    "--data",
    "synthetic:4096,256,16",
    "--hidden",
    "256,256",
    "--batch-size",
    "256",
    "--steps",
    "200",
    "--strategy",
    "zero2",
]


def main() -> None:
    options = _options()
    trees = {"before": options.before.resolve(), "after": options.after.resolve()}
    rounds = []
    for number in range(options.rounds):
        # the first in one round is the second in the next
        order = sorted(trees, reverse=number % 2 == 0)
        rounds.append({name: measure(trees[name], options.ranks) for name in order})
        print(f"round {number + 1} of {options.rounds}", flush=True)
    facts = in_tree(trees["after"], options.ranks, "-m", "mpicoll", "info", "--json")["environment"]
    facts |= {name: version(tree) for name, tree in trees.items()}
    facts["command"] = (
        f"python -m benchmarks.run.versions --before {facts['before']} --rounds {options.rounds}"
    )
    results = [row(what, rounds) for what in rounds[0]["before"]]
    for one in results:
        print(
            "{what:40}{before:10.2f} us, then {after:10.2f} us  x{ratio:.3f} ({least:.3f} to"
            " {most:.3f})".format(**one)
        )
    if options.json:
        document = {"schema": 1, "environment": facts, "results": results}
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--before",
        type=Path,
        required=True,
        metavar="TREE",
        help="root of the checkout to compare with",
    )
    parser.add_argument(
        "--after", type=Path, default=ROOT, metavar="TREE", help="default: this one"
    )
    parser.add_argument("--rounds", type=int, default=15, help="of both (default 15)")
    parser.add_argument("--ranks", type=int, default=2, help="default 2")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def measure(tree: Path, ranks: int) -> dict[str, float]:
    """Microseconds of each call, and of a step of training, of the mpicoll in a tree."""
    said = json.loads(launch(tree, ranks, str(CALLS)))
    if not Path(said["mpicoll"]).is_relative_to(tree):
        sys.exit(f"expected the mpicoll of {tree}, got {said['mpicoll']}")
    report = in_tree(tree, ranks, "-m", "mpicoll", "train", *TRAINING, "--json")["report"]
    return {**said["microseconds"], "step of training, zero2": report["step_s"] * 1e6}


def in_tree(tree: Path, ranks: int, *words: str) -> dict[str, Any]:
    """The JSON that a command writes into the file it is given last."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "result.json")
        launch(tree, ranks, *words, str(path))
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def launch(tree: Path, ranks: int, *words: str) -> str:
    """What this Python prints on ranks, with the mpicoll of a tree."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    command = [
        shutil.which("mpiexec", path=beside) or "mpiexec",
        "-n",
        str(ranks),
        sys.executable,
        *words,
    ]
    env = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def version(tree: Path) -> str:
    """Its commit; the name of the directory where it is no checkout."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=tree, capture_output=True, text=True
    )
    return said.stdout.strip() or tree.name


def row(what: str, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians of both, their ratio, and the least and largest ratio of a round."""
    before, after = (median(one[name][what] for one in rounds) for name in ("before", "after"))
    ratios = [one["after"][what] / one["before"][what] for one in rounds]
    figures = {
        "before": before,
        "after": after,
        "ratio": median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }
    each = [{name: round(one[name][what], 3) for name in ("before", "after")} for one in rounds]
    return {
        "what": what,
        **{name: round(figure, 3) for name, figure in figures.items()},
        "rounds": each,
    }


if __name__ == "__main__":
    main()
