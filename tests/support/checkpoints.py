"""What tests of checkpoints save on each rank, and whether it has come back."""

import json
import zlib

import numpy as np

from mpicoll.support.arrays import element_type
from tests.support.cases import RANK, SIZE

TOTALS = {"parameters": 101, "mean": 8009, "wire": 33, "nothing": 0}
DTYPES = {"parameters": "float32", "mean": "float64", "wire": "bfloat16", "nothing": "float64"}


def state(name, step):
    return (np.arange(TOTALS[name]) % 97 + step).astype(element_type(DTYPES[name]))


def ends_of(total, parts):
    """Bounds of `parts` parts, some of them empty where there are more parts than elements."""
    return [total * part // parts for part in range(parts + 1)]


def mine(step, rank=RANK, size=SIZE, cuts=3):
    """A cyclic cut, so that each rank holds pieces that are not neighbours."""
    result = {}
    for name, total in TOTALS.items():
        ends = ends_of(total, size * cuts)
        result[name] = [(ends[i], state(name, step)[ends[i] : ends[i + 1]]) for i in range(rank, size * cuts, size)]
    return result


def write_manifest(path, document):
    """Write a document as a manifest with a correct checksum: the CRC-32 of its JSON with sorted keys."""
    document = json.loads(json.dumps(document))  # keys become text
    checksum = zlib.crc32(json.dumps(document, sort_keys=True).encode())
    path.write_text(json.dumps({**document, "crc32": checksum}))


def save(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, mine(step), TOTALS, {"step": step, "loss": 0.1 * step})
    return checkpoints


def same_as(checkpoint, step):
    """Every rank reads all, and every piece of another cut, as another number of ranks would."""
    assert (checkpoint.step, checkpoint.meta["loss"], checkpoint.totals) == (step, 0.1 * step, TOTALS)
    for name, total in TOTALS.items():
        whole = state(name, step)
        for parts in (1, 2, 5, 50):
            ends = ends_of(total, parts)
            for start, stop in zip(ends, ends[1:]):
                found = checkpoint.read(name, start, stop)
                assert found.dtype == whole.dtype and found.tobytes() == whole[start:stop].tobytes()
    return True
