"""Which commands of `mpicoll` run on all ranks; the others do their work once, however many processes a launcher starts."""

ON_RANKS = frozenset({"info", "bench", "tune", "train"})
