"""Tables in Markdown."""


def table_of(lines):
    """A table of rows of cells: the header, the row of dashes, and the others."""
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"
