"""The rooms of the package for the README, floor by floor: each with the first line of its docstring.

A room is a folder of `mpicoll/`, or a file beside its folders. It stands one floor above the highest room that it may import,
which the end of its docstring says; a test holds the imports to that.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path

import mpicoll

PACKAGE = Path(mpicoll.__file__).parent


def listing() -> str:
    """Markdown: a list of the rooms, from those that stand on nothing to the command line."""
    floors: dict[int, list[str]] = {}
    for name in sorted(docstrings(), key=lambda name: (floor(name), name)):
        floors.setdefault(floor(name), []).append(f"- `{_path(name)}` {docstrings()[name].splitlines()[0]}")
    return "".join("\n".join([f"Floor {number}", "", *lines, "", ""]) for number, lines in floors.items())


@lru_cache
def docstrings() -> dict[str, str]:
    """The docstring of each room's face, by its dotted name below `mpicoll`."""
    faces = [path for path in PACKAGE.rglob("*.py") if path.name == "__init__.py" or path.parent == PACKAGE]
    named = {_dotted(path): ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in faces}
    return {name: text for name, text in named.items() if name not in ("", "__main__")}


def _dotted(path: Path) -> str:
    """The name of a module below `mpicoll`; '' for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@lru_cache
def floor(name: str) -> int:
    """1 for a room that imports no other, else one more than the highest it imports."""
    said = re.search(r"May import: (.*)\.\s*$", docstrings()[name], re.DOTALL)
    below = re.split(r",\s+", said[1]) if said else ["nothing"]
    if below == ["everything"]:
        below = [other for other in docstrings() if other != name]
    return 1 + max((floor(other) for other in below if other != "nothing"), default=0)


def _path(name: str) -> str:
    """As the README names it: `train/data/`, `tune.py`."""
    path = name.replace(".", "/")
    return f"{path}/" if (PACKAGE / path).is_dir() else f"{path}.py"
