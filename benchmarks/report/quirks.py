"""The table of special cases of MPI libraries."""

from mpicoll.support.quirks import QUIRKS


def table():
    """Markdown: a line for each row of `QUIRKS`."""
    lines = [
        "| quirk | library | seen in | what happens | what mpicoll does |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{quirk.name}` | {quirk.library} | {quirk.versions} | {quirk.symptom} | {quirk.instead} |"
        for quirk in QUIRKS
    ]
    return "\n".join(lines) + "\n"
