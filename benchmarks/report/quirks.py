"""The table of special cases of MPI libraries."""

from mpicoll.support.quirks import QUIRKS


def table():
    """Markdown: a line for each row of `QUIRKS`."""
    lines = [
        "| quirk | library | seen in | what happens | what mpicoll does |",
        "| --- | --- | --- | --- | --- |",
    ]
    for quirk in QUIRKS:
        cells = (f"`{quirk.name}`", quirk.library, quirk.versions, quirk.symptom, quirk.instead)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
