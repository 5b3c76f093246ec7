"""MPI's own collectives with a forced algorithm, switched inside one process.

    with forced(comm, "allreduce") as candidates:
        candidates["ring"](MPI.IN_PLACE, vector)

Both libraries let the algorithm be set through control variables of the MPI tool interface (MPI
4.1, section 15.3). Open MPI 5 reads coll_tuned_allreduce_algorithm and its like when a communicator
is made, so each algorithm gets a duplicate of its own (open-mpi/ompi issues 12593 and 12602). MPICH
5 reads MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM and its like in every call, so they are set around the
call. With several ranks on several nodes both would put a composition of two levels in place of the
algorithm on all ranks: coll_tuned_priority keeps Open MPI's coll/han from it, and
MPIR_CVAR_DEVICE_COLLECTIVES=none MPICH's ch4 device.

Intel MPI reads I_MPI_ADJUST_ALLREDUCE and its like once, when it starts, and takes no other value
beside them: in a job with a preset that is the one candidate, and the library's own choice is
measured in another job.

That the forced algorithm runs is seen from outside: an operation written in Python notes on each
rank how many elements it is given each time, and that is the signature of the algorithm.
tests/system/test_peers.py checks it on 3 ranks, with the library's own choice in between; on 2
hosts x 2 ranks the signatures were those of the flat algorithms, and without the two variables
above they were of two levels. allgather and bcast reduce nothing: on 4 ranks, breakpoints on
ompi_coll_base_* stopped in each function of that name (Open MPI 5.0.11), and each rank's messages,
as strace shows them over libfabric's tcp provider, had the sizes of each algorithm (MPICH 5.0.2).
What an algorithm cannot serve Open MPI may serve by another, silently: ring with fewer elements
than ranks, doubling where the ranks are no power of two.
"""

import ctypes
import os
import re
from contextlib import ExitStack, contextmanager

from mpi4py import MPI

from mpicoll.errors import ArgumentError
from mpicoll.support.quirks import library

#: MPI's words; mpicoll's reduce_scatter, as a Workload calls it, is reduce_scatter_block
COLLECTIVES = (
    "allreduce",
    "reduce_scatter",
    "reduce_scatter_block",
    "allgather",
    "allgatherv",
    "bcast",
    "reduce",
    "gather",
    "scatter",
    "scan",
    "exscan",
    "barrier",
)
#: of those, what Open MPI lets be set when it starts and not later: none of them is a candidate
#: there
_AT_START = {"allgatherv"}
#: algorithms that send in pieces, by the libraries' names
CUT = {
    "chain",
    "pipeline",
    "binary",
    "split_binary",
    "in-order_binary",
    "segmented_ring",
    "tree",
    "pipelined_tree",
}
#: the library's own choice, under its two names; a vendor's library, for which MPICH silently takes
#: something else where it was built without; and what is meant for other operations, and ends the
#: job where the ranks are no power of two
_NOT_FORCED = {"ignore", "auto", "ccl", "noncommutative"}


@contextmanager
def forced(comm, collective, segment_bytes=None):
    """{label: `Candidate`} of each algorithm that the MPI library has for a collective. Collective
    over `comm`.

    Labels are the library's own names. segment_bytes: pieces in which pipelined algorithms send,
    where there are any; by default the library's default, which is the whole. Raises ArgumentError
    for what is unknown. Candidates end with the context.
    """
    if collective not in COLLECTIVES:
        raise ArgumentError(f"expected one of {', '.join(COLLECTIVES)}, got {collective!r}")
    make = find_library(MPI.get_vendor()[0])
    with ExitStack() as stack:
        tools = stack.enter_context(Tools())
        yield make(stack, tools, MPI.Intracomm(comm), collective, segment_bytes)


def find_library(name):
    """The function that makes the candidates for this MPI library. Raises ArgumentError."""
    if name not in _LIBRARIES:
        raise ArgumentError(
            f"algorithms can be forced in {', '.join(_LIBRARIES)}, this is {name}: leave them out"
        )
    return _LIBRARIES[name]


def _open_mpi(stack, tools, comm, collective, segment_bytes):
    if collective in _AT_START:
        return {}
    algorithm = tools.variable(f"coll_tuned_{collective}_algorithm")
    # coll/han, for several ranks on several nodes, has a higher priority than the component that
    # can be told
    common = {
        tools.variable("coll_tuned_use_dynamic_rules"): 1,
        tools.variable("coll_tuned_priority"): 100,
    }
    # these have no algorithm that sends in pieces
    if segment_bytes is not None and collective not in ("scan", "exscan", "barrier"):
        common[tools.variable(f"coll_tuned_{collective}_algorithm_segmentsize")] = segment_bytes
    candidates = {}
    for label, number in algorithm.choices.items():
        with settings(common | {algorithm: number}):
            own = comm.Dup()
        stack.callback(own.Free)
        candidates[label] = Candidate(label, getattr(own, collective.capitalize()), {})
    return candidates


def _mpich(stack, tools, comm, collective, segment_bytes):
    name = f"MPIR_CVAR_{collective.upper()}"
    algorithm = tools.variable(f"{name}_INTRA_ALGORITHM")
    devices = tools.variable("MPIR_CVAR_DEVICE_COLLECTIVES")
    fallback = tools.variable("MPIR_CVAR_COLLECTIVE_FALLBACK")
    common = {devices: devices.choices["none"]}
    # others have no pipelined algorithm
    if segment_bytes is not None and collective in ("allreduce", "bcast"):
        common[tools.variable(f"{name}_TREE_PIPELINE_CHUNK_SIZE")] = segment_bytes
    function = getattr(comm, collective.capitalize())
    candidates = {}
    for label, number in algorithm.choices.items():
        # smp makes the same call again between the nodes' first ranks, where smp itself cannot
        # serve: only there fall back
        otherwise = fallback.choices["silent" if label == "smp" else "error"]
        candidates[label] = Candidate(
            label, function, common | {algorithm: number, fallback: otherwise}
        )
    return candidates


def _intel_mpi(stack, tools, comm, collective, segment_bytes):
    preset = os.environ.get(f"I_MPI_ADJUST_{collective.upper()}")
    label = f"preset {preset}"
    return {label: Candidate(label, getattr(comm, collective.capitalize()), {})} if preset else {}


_LIBRARIES = {"Open MPI": _open_mpi, "MPICH": _mpich, "Intel MPI": _intel_mpi}


class Candidate:
    """One algorithm of the MPI library: call it with the arguments of mpi4py's method.

    Where microseconds count, call `function` inside `with candidate.selected():`, which sets the
    variables that have to be set during the call (MPICH; none on Open MPI) outside the measured
    time.
    """

    def __init__(self, label, function, values):
        self.label = label
        self.function = function
        self._values = values

    def selected(self):
        """A context in which `function` uses this algorithm; the same on all ranks of a call."""
        return settings(self._values)

    def __call__(self, *arguments):
        """Make the call. Raises ArgumentError, on all ranks alike, where the algorithm cannot serve
        it.
        """
        with self.selected():
            try:
                self.function(*arguments)
            except MPI.Exception as error:
                name = self.function.__name__
                reason = error.Get_error_string().strip().splitlines()[-1]
                raise ArgumentError(
                    f"{name}: {self.label!r} cannot serve this call, leave it out here ({reason})"
                ) from error


@contextmanager
def settings(values):
    """Control variables have these values inside: {`Variable`: number}."""
    before = {variable: variable.read() for variable in values}
    try:
        for variable, number in values.items():
            variable.write(number)
        yield
    finally:
        for variable, number in before.items():
            variable.write(number)


class Tools:
    """The MPI tool interface, open as long as the context lasts."""

    def __enter__(self):
        # a symbol is looked up in the MPI library it is linked to as well
        self.library = ctypes.CDLL(MPI.__file__)
        self.handles = []
        self.call("init_thread", MPI.Query_thread(), ctypes.byref(ctypes.c_int()))
        return self

    def __exit__(self, *exception):
        for handle in self.handles:
            self.call("cvar_handle_free", ctypes.byref(handle))
        self.call("finalize")

    def call(self, name, *arguments):
        """MPI_T_name(arguments). Raises RuntimeError where it does not succeed."""
        status = getattr(self.library, f"MPI_T_{name}")(*arguments)
        if status != MPI.SUCCESS:
            raise RuntimeError(f"MPI_T_{name} returned error {status}, expected success")

    def variable(self, name):
        """The `Variable` of this name. Raises ArgumentError if the library has none."""
        index = ctypes.c_int()
        if self.library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)) != MPI.SUCCESS:
            raise ArgumentError(
                f"{library()} has no control variable {name}; expected Open MPI 5 or MPICH 5"
            )
        return Variable(self, index)


class Variable:
    """One integer of the MPI library that can be read and written while it runs.

    choices: {word: number} of the algorithms, or other words, it can name; empty where it is just a
    number.
    """

    def __init__(self, tools, index):
        handle = ctypes.c_void_p()
        count = ctypes.c_int()
        tools.call("cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(count))
        tools.handles.append(handle)
        self._tools = tools
        self._handle = handle
        self.choices = {
            word: number for word, number in self._words(index) if word not in _NOT_FORCED
        }

    def read(self):
        """Its value."""
        # on a little-endian machine right for each width: Open MPI's truth values are a byte
        number = ctypes.c_uint64(0)
        self._tools.call("cvar_read", self._handle, ctypes.byref(number))
        return number.value

    def write(self, number):
        """Change it, on this rank."""
        self._tools.call("cvar_write", self._handle, ctypes.byref(ctypes.c_uint64(number)))

    def _words(self, index):
        """(word, number) pairs: Open MPI has an enumeration; MPICH numbers the lines `word -
        meaning` of the description.
        """
        enumeration = ctypes.c_void_p()
        length = ctypes.c_int(1 << 14)
        description = ctypes.create_string_buffer(length.value)
        self._tools.call(
            "cvar_get_info",
            index,
            None,
            None,
            None,
            None,
            ctypes.byref(enumeration),
            description,
            ctypes.byref(length),
            None,
            None,
        )
        if enumeration:
            return self._items(enumeration)
        lines = re.findall(r"^(\w+) +- ", description.value.decode(), re.MULTILINE)
        return [(word, number) for number, word in enumerate(lines)]

    def _items(self, enumeration):
        size = ctypes.c_int()
        number = ctypes.c_int()
        length = ctypes.c_int()
        word = ctypes.create_string_buffer(256)
        self._tools.call("enum_get_info", enumeration, ctypes.byref(size), None, None)
        for item in range(size.value):
            length.value = len(word)
            self._tools.call(
                "enum_get_item", enumeration, item, ctypes.byref(number), word, ctypes.byref(length)
            )
            yield word.value.decode(), number.value
