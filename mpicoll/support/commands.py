"""The commands of `mpicoll` that run on all ranks; of the others only the first process works."""

ON_RANKS = frozenset({"info", "doctor", "bench", "tune", "train"})
