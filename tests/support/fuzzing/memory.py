"""Where arrays of programs lie: in NumPy's own memory, in `comm.empty`, or not aligned."""

import numpy as np

MEMORIES = ("ordinary", "shared", "misaligned")


def array(memory: str, length: int, dtype: np.dtype, comm) -> np.ndarray:
    """An array of so many elements in that memory."""
    if memory == "shared":
        return comm.empty(length, dtype)
    if memory == "misaligned":
        return np.empty(length * dtype.itemsize + 1, np.uint8)[1:].view(dtype)
    return np.empty(length, dtype)


class Keepsake:
    """An array of which each byte must stay as it is now."""

    def __init__(self, array: np.ndarray, what: str):
        self.array, self.what = array, what
        self.copy = array.copy()

    @classmethod
    def new(cls, comm, number: int, nbytes: int) -> "Keepsake":
        """A shared array, filled with a pattern of its own."""
        array = comm.empty(nbytes, np.uint8)
        array[:] = np.arange(number, number + nbytes, dtype=np.uint64).astype(np.uint8)
        return cls(array, f"array {number} of {nbytes} bytes")

    def problem(self) -> str:
        """What has changed; empty where nothing has."""
        one, other = (np.ascontiguousarray(part).view(np.uint8) for part in (self.array, self.copy))
        if np.array_equal(one, other):
            return ""
        at = np.flatnonzero(one != other)
        changed = f"{at.size} bytes changed, the first at {at[0]}"
        return f"{self.what}: {changed}: {one[at[0]]} for {other[at[0]]}"
