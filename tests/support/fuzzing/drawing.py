"""Random programs as plain data, for Hypothesis to draw and to make smaller.

A program is {"lanes": [[step, …], …], "check", "timeout", "sums", "fresh", "starts", "by", "doing"}: one lane, or two or
three that run in threads. What disturbs it is done `by` something; plans are started in the same order on all ranks (`starts`:
"alike") or in any. A step is

- a call, see `calls`, with the communicator that it is made on, and whether it `stays`: a plan that is started later, a
  request that is only tested by what disturbs, until the end;
- {"start"}: the plans that were only made are started, in an order of this number;
- {"finish", "order", "all"}: what is under way is awaited, or some of it;
- {"keep", "drop"}: shared arrays of so many bytes are made, which must stay as they are, and some are forgotten;
- {"fork"}: a child writes to all arrays;
- {"late", "when", "limit", "calls"}: a rank makes calls after the others have given them up, or about then.
"""

from hypothesis import strategies as st
from mpi4py import MPI

from mpicoll import algorithms, collectives
from tests.support.cases import METHODS, words

from .disturbances import BY, DOING
from .layouts import DERIVED, MANY, ONE
from .memory import MEMORIES
from .neighbors import GRAPH, NEIGHBOR_METHODS, OTHERS

KINDS = ("world", "duplicate", "reversed", "parts", "created", "group", "alone", "idup", "cart", "sub", "copied cart", "graph",
         "adjacent", "dist graph", "node")  # fmt: skip
FORMS = ("blocking", "begin", "plan")
FINISHES = ("wait", "waitall", "test", "testall", "waitany", "in turn")
PLACES = ("apart", "in place", "none", "same", "woven", "beside")
CHECKS = ("first", "off", "always", "digest:3", "always,digest")
SUMS = ("", "", "deterministic")
STEPS = ("finish", "start", "fork", "keep", "late")
MOST_CALLS = 24
HAS_THREADS = MPI.Query_thread() == MPI.THREAD_MULTIPLE
_COUNTS = st.one_of(
    st.just(0), st.integers(0, 5), st.integers(0, 40), st.integers(0, 40), st.sampled_from([0, 1, 2, 64, 97, 251, 256, 1009]),
    st.sampled_from([1009, 2048, 4099, 10_007, 30_011]),
)  # fmt: skip
_MEMORIES = st.one_of(st.just(["ordinary"]), st.lists(st.sampled_from(MEMORIES), min_size=1, max_size=4))
_EMPTY = st.sampled_from(["", "", "d", "b", "F"])
_ORDERS = st.integers(0, 1 << 16)
_RARELY = st.integers(0, 4).map(lambda number: number == 4)
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


_LAYOUTS = sorted({**ONE, **MANY}, key=lambda name: name not in ("plain", "listed"))
_NOT_DERIVED = [name for name in _LAYOUTS if name not in DERIVED]
_COMPRESSED = ("allreduce", "reduce", "reduce_scatter", "allgather", "bcast")
#: in these the small numbers of `calls.values` are exact
_COMPRESSIONS = st.sampled_from([None, None, None, None, "float16", "bfloat16"])


def _counts_in_pieces(draw):
    counts, segment = draw(st.lists(_COUNTS, min_size=1, max_size=4)), draw(_SEGMENTS)
    if segment and max(counts) > 100 * segment:  # tens of thousands of messages say no more than a hundred
        segment *= 128
    return counts, segment


def _form(draw, forms, possible, served_by_mpi):
    """A form, and the words that it may have: without threads MPI serves all that does not block."""
    form = draw(st.sampled_from(forms if served_by_mpi or HAS_THREADS else ("blocking",)))
    return form, possible if form == "blocking" or HAS_THREADS else [None]


@st.composite
def calls(draw, methods=tuple(METHODS), forms=FORMS, served_by_mpi=True):
    """A call that MPI allows."""
    method = draw(st.sampled_from(methods))
    compression = draw(_COMPRESSIONS) if METHODS[method] in _COMPRESSED else None
    dtype, op = draw(st.sampled_from("fde") if compression else _DTYPES), None
    if collectives.find(METHODS[method]).reduces:
        op = "SUM" if compression else draw(st.sampled_from(_OPS[dtype]))
    possible = [*([None] if served_by_mpi else ()), *words(method, ordered=op == "joined")]
    if served_by_mpi and not (op is not None and dtype == "e"):  # not every MPI has the type
        possible.append(algorithms.NATIVE)
    layouts = draw(st.lists(st.sampled_from(_NOT_DERIVED if compression else _LAYOUTS), min_size=1, max_size=8))
    if compression:
        own = (each.name for each in algorithms.registered(METHODS[method]) if each.compressible)
        possible = [*([None] if served_by_mpi else ()), *own]
    form, possible = _form(draw, forms, possible, served_by_mpi)
    counts, segment = _counts_in_pieces(draw)
    return {
        "on": draw(st.sampled_from(KINDS)), "method": method, "form": form, "algorithm": draw(st.sampled_from(possible)),
        "segment": segment, "counts": counts, "dtype": dtype, "op": op,
        "root": draw(st.integers(0, 11)), "place": draw(st.sampled_from(PLACES)),
        "layouts": layouts, "memory": draw(_MEMORIES), "empty": "" if compression else draw(_EMPTY),
        "compression": compression,
        "seed": draw(st.integers(0, 1 << 16)), "times": draw(st.integers(1, 4)), "stays": draw(_RARELY),
    }  # fmt: skip


@st.composite
def exchanges(draw, methods=(*NEIGHBOR_METHODS, *OTHERS), forms=FORMS, served_by_mpi=True):
    """A call of neighbours on a graph that is drawn, too, an Alltoallw, or a barrier."""
    method = draw(st.sampled_from(methods))
    is_of_neighbours = method in NEIGHBOR_METHODS
    if is_of_neighbours:
        possible = algorithms.list_algorithms(method.lower().rstrip("vw"))
    else:
        own = [each.name for each in algorithms.proposed("barrier")] if method == "Barrier" else words(method)
        possible = [*own, algorithms.NATIVE]
    if served_by_mpi:
        possible = [None, *possible]
    else:
        possible = [word for word in possible if word != algorithms.NATIVE]
    form, possible = _form(draw, forms, possible, served_by_mpi)
    counts, segment = _counts_in_pieces(draw)
    number = draw(st.one_of(st.integers(0, 20), st.integers(0, 10_000)))
    return {
        "on": f"{GRAPH}{number}" if is_of_neighbours else draw(st.sampled_from(KINDS)),
        "method": method, "form": form, "algorithm": draw(st.sampled_from(possible)), "segment": segment,
        "counts": [count % 12_000 for count in counts],
        "dtype": draw(_DTYPES), "op": None, "root": 0, "place": draw(st.sampled_from(("apart", "in place", "none"))),
        "layouts": draw(st.lists(st.sampled_from(_LAYOUTS), min_size=1, max_size=8)), "memory": draw(_MEMORIES),
        "empty": draw(_EMPTY), "compression": None, "seed": draw(_ORDERS), "times": draw(st.integers(1, 4)),
        "stays": draw(_RARELY),
    }  # fmt: skip


_FINISH = st.fixed_dictionaries({"finish": st.sampled_from(FINISHES), "order": _ORDERS, "all": st.booleans()})
_START = st.fixed_dictionaries({"start": _ORDERS})
_FORK = st.fixed_dictionaries({"fork": st.just(True)})
_BYTES = st.sampled_from([1, 100, 4096, 5000, 300_000, 3_000_000])
_KEEP = st.fixed_dictionaries({"keep": st.lists(_BYTES, max_size=3), "drop": st.integers(0, 100)})
_LATE = st.fixed_dictionaries({
    "late": st.integers(0, 3), "when": st.sampled_from(["after", "after", "about"]), "limit": st.sampled_from([0.05, 0.2]),
    "calls": st.lists(st.one_of(calls(served_by_mpi=False), calls(served_by_mpi=False),
                                exchanges(OTHERS, served_by_mpi=False)), min_size=1, max_size=3),
})  # fmt: skip
_OTHERS = st.integers(0, 19).flatmap(lambda number: _LATE if number == 19 else _FORK if number > 15 else _KEEP)


def programs(most: int = MOST_CALLS):
    """Programs of so many steps in a lane at most."""
    step = st.one_of(calls(), calls(), calls(), calls(), exchanges(), exchanges(), _FINISH, _FINISH, _START, _OTHERS)
    lane = st.lists(step, min_size=1, max_size=most)
    numbers = st.sampled_from([1, 1, 1, 2, 2, 3] if HAS_THREADS else [1])
    by = [one for one in ("nobody", *BY) if one != "thread" or HAS_THREADS]
    return st.fixed_dictionaries({
        "lanes": numbers.flatmap(lambda number: st.lists(lane, min_size=number, max_size=number)),
        "check": st.sampled_from(CHECKS), "timeout": st.sampled_from([0, 20]), "sums": st.sampled_from(SUMS),
        "fresh": st.integers(0, 19).map(lambda number: number == 19),
        "starts": st.sampled_from(["alike", "any"]),
        "by": st.sampled_from(by), "doing": st.sampled_from(DOING),
    })  # fmt: skip


#: a program of one call, but for its lanes
PLAIN = {"check": "first", "timeout": 0, "sums": "", "fresh": False, "starts": "alike", "by": "nobody", "doing": "numbers"}
