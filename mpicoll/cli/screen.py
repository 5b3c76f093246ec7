"""What fits on a person's screen."""

import shutil
from textwrap import wrap

#: lines of a table that one looks at without scrolling
LINES = 24


def width() -> int:
    """Characters of a line: COLUMNS, else the terminal's, else 80; no less than tables need."""
    return max(shutil.get_terminal_size((80, LINES)).columns, 80)


def folded(text: str, first: str = "", rest: str = "") -> str:
    """The text wrapped to the screen. first, rest: prefixes of the first line and the others."""
    words = " ".join(text.split())
    return "\n".join(
        wrap(words, width(), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    )


def comment(text: str) -> str:
    """The text in lines that begin with #."""
    return folded(text, "# ", "# ")
