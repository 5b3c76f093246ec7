"""Random programs as plain data, for Hypothesis to draw and to make smaller.

A program is {"lanes": [[step, …], …], "check", "timeout", "fresh"}: one lane, or two that run in threads. A step is a
call, see `calls`, with the communicator that it is made on, or {"finish", "order"}: what is under way is awaited.
"""

from hypothesis import strategies as st
from mpi4py import MPI

from mpicoll import algorithms
from tests.support.cases import METHODS, words

from .layouts import MANY, ONE

KINDS = ("world", "duplicate", "reversed", "parts", "created", "group", "alone")
FORMS = ("blocking", "begin", "plan")
FINISHES = ("wait", "waitall", "test", "testall", "waitany")
PLACES = ("apart", "in place", "none", "same", "woven", "beside")
CHECKS = ("first", "off", "always")
MOST_CALLS = 24
_COUNTS = st.one_of(
    st.integers(0, 5), st.integers(0, 40), st.integers(0, 40), st.sampled_from([0, 1, 2, 64, 97, 251, 256, 1009]),
    st.sampled_from([1009, 2048, 4099, 10_007, 30_011]),
)  # fmt: skip
_SEGMENTS = st.sampled_from([None, None, 0, 1, 64, 512, 4096, 65_536])
_INTEGERS, _FLOATS, _COMPLEX = "bhilqBHILQ", "fdg", "FDG"
_ARITHMETIC, _LOGICAL, _BITS = ("SUM", "PROD", "MAX", "MIN"), ("LAND", "LOR", "LXOR"), ("BAND", "BOR", "BXOR")
#: which ops MPI defines on which types; numbers of digits need room
_OPS = {
    **dict.fromkeys(_INTEGERS, (*_ARITHMETIC, *_LOGICAL, *_BITS, "xored")), **dict.fromkeys(_FLOATS, _ARITHMETIC),
    **dict.fromkeys(_COMPLEX, _ARITHMETIC[:2]), "?": _LOGICAL, "e": _ARITHMETIC,
}  # fmt: skip
_OPS |= {code: (*_OPS[code], "joined") for code in "ilqILQd"}
_DTYPES = st.sampled_from(sorted(_OPS))


@st.composite
def calls(draw, methods=tuple(METHODS), forms=FORMS):
    """A call that MPI allows."""
    method = draw(st.sampled_from(methods))
    dtype, op = draw(_DTYPES), None
    if METHODS[method] in ("allreduce", "reduce", "reduce_scatter"):
        op = draw(st.sampled_from(_OPS[dtype]))
    possible = [None, *words(method, ordered=op == "joined")]
    if not (op is not None and dtype == "e"):  # not every MPI has the type
        possible.append(algorithms.NATIVE)
    form = draw(st.sampled_from(forms))
    if form != "blocking" and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        possible = [None]
    counts, segment = draw(st.lists(_COUNTS, min_size=1, max_size=4)), draw(_SEGMENTS)
    if segment and max(counts) > 100 * segment:  # tens of thousands of messages say no more than a hundred
        segment *= 128
    layouts = sorted({**ONE, **MANY}, key=lambda name: name not in ("plain", "listed"))
    return {
        "on": draw(st.sampled_from(KINDS)), "method": method, "form": form, "algorithm": draw(st.sampled_from(possible)),
        "segment": segment, "counts": counts, "dtype": dtype, "op": op,
        "root": draw(st.integers(0, 3)), "place": draw(st.sampled_from(PLACES)),
        "layouts": draw(st.lists(st.sampled_from(layouts), min_size=1, max_size=8)),
        "seed": draw(st.integers(0, 1 << 16)), "times": draw(st.integers(1, 4)),
    }  # fmt: skip


_FINISH = st.fixed_dictionaries({"finish": st.sampled_from(FINISHES), "order": st.integers(0, 1 << 16)})


def programs(most: int = MOST_CALLS):
    """Programs of so many steps in a lane at most."""
    lane = st.lists(st.one_of(calls(), calls(), calls(), _FINISH), min_size=1, max_size=most)
    lanes = st.one_of(st.tuples(lane).map(list), st.tuples(lane, lane).map(list))
    return st.fixed_dictionaries({
        "lanes": lanes, "check": st.sampled_from(CHECKS), "timeout": st.sampled_from([0, 20]),
        "fresh": st.integers(0, 19).map(lambda number: number == 19),
    })  # fmt: skip
