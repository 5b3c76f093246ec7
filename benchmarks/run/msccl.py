"""What `mpicoll verify --msccl` says of algorithms that others publish.

    python -m benchmarks.run.msccl FOLDER --json FILE

FOLDER has the files as OWNER/REPOSITORY/PATH.xml. No MPI is needed, and nothing is timed.
"""

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from mpicoll.cli.verify import proved_file
from mpicoll.errors import ArgumentError
from mpicoll.verify.msccl_file import read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", metavar="FILE", required=True)
    arguments = parser.parse_args()
    rows = [row(arguments.folder, path) for path in sorted(arguments.folder.rglob("*.xml"))]
    for one in rows:
        print(f"{one['repository']} {one['path']}: {one['outcome']} {one['why'] or ''}")
    document = {"schema": 1, "date": date.today().isoformat(), "files": rows}
    Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def row(folder: Path, path: Path) -> dict[str, Any]:
    """The outcome of one file."""
    text = path.read_bytes()
    owner, repository, *rest = path.relative_to(folder).parts
    return {
        "repository": f"{owner}/{repository}",
        "path": "/".join(rest),
        **facts(text),
        **{key: value for key, value in proved_file(str(path), text).items() if key != "file"},
    }


def facts(text: bytes) -> dict[str, Any]:
    """What a file says of itself, also one that is wrong."""
    try:
        algorithm = read(text)
    except ArgumentError:
        return {}
    return {
        "collective": algorithm.collective,
        "gpus": len(algorithm.gpus),
        "steps": algorithm.steps,
        "protocol": algorithm.protocol,
    }


if __name__ == "__main__":
    main()
