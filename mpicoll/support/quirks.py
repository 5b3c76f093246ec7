"""Special cases of MPI libraries and launchers, and what mpicoll does about each.

Each is a row of `QUIRKS`. Code that follows a row says `# quirk: NAME`. Code that
depends on which library is loaded asks `applies`, so that names and versions of libraries are
compared here only. Rows need no MPI: the functions import it when they are called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf

OPEN_MPI = "Open MPI"
MPICH = "MPICH"
INTEL_MPI = "Intel MPI"

Version = tuple[int, ...]


@dataclass(frozen=True)
class Quirk:
    """One special case."""

    name: str
    #: MPI libraries or launchers
    library: str
    #: versions in which it was seen; "" where nobody wrote them down
    versions: str
    symptom: str
    #: what mpicoll does
    instead: str
    #: pytest id of the test that guards it
    test: str


QUIRKS = (
    # communicators
    Quirk(
        name="idup-beside-others",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="Two MPI_Comm_idup under way on one communicator, or one beside other collectives"
        " of it, end in MPI_ERR_INTERN, hang or take memory without bound while another thread"
        " makes MPI progress (open-mpi/ompi issue 2025).",
        instead="mpicoll begins no private duplicate: ranks are told a number on the wire that they"
        " share.",
        test="tests/mpi/test_made_from.py::test_an_idup_begins_no_other_beside_it",
    ),
    Quirk(
        name="dup-beside-calls",
        library=OPEN_MPI,
        versions="",
        symptom="Duplicating a communicator beside its non-blocking collectives ends in errors of"
        " these, and then in a hang.",
        instead="The private communicator is made together with the `Communicator`.",
        test="tests/mpi/test_legal_programs.py"
        "::test_a_private_communicator_is_made_before_anything_is_under_way",
    ),
    Quirk(
        name="attributes-copied-to-groups",
        library=OPEN_MPI,
        versions="5.0",
        symptom="MPI_Comm_create_group copies attributes to a communicator of other ranks.",
        instead="Attributes have no copy function, or one that copies while an MPI_Comm_idup"
        " begins, and a delete function compares the handle.",
        test="tests/mpi/test_communicator.py::test_made_communicators_work",
    ),
    Quirk(
        name="free-holds-the-lock",
        library=MPICH,
        versions="",
        symptom="Within MPI_Comm_free, which calls delete functions, no other thread enters MPI.",
        instead="A delete function waits for other threads for 0.1 s at most, and completes"
        " nothing.",
        test="tests/mpi/test_communicator.py"
        "::test_a_thread_that_is_within_mpi_keeps_what_it_uses",
    ),
    Quirk(
        name="group-of-a-grid",
        library=MPICH,
        versions="5.0.2",
        symptom="MPI_Comm_group of a grid of fewer ranks than its parent has all ranks of the"
        " parent.",
        instead="Ranks tell each other their rank in the parent; locally, only the first ranks of"
        " the group count.",
        test="tests/mpi/test_made_from.py::test_ranks_without_a_place_get_none",
    ),
    Quirk(
        name="translation-of-ranks-is-quadratic",
        library=OPEN_MPI,
        versions="",
        symptom="MPI_Group_translate_ranks compares each rank with each.",
        instead="Ranks tell each other their rank in the parent.",
        test="tests/mpi/test_made_from.py::test_a_grid_is_a_grid",
    ),
    # MPI's own collectives
    Quirk(
        name="stale-persistent",
        library="MPICH, Intel MPI",
        versions="MPICH before 4.3.2 (pmodels/mpich#7078), Intel MPI 2021.18.1",
        symptom="Persistent Allgather, Gather and Scatter send the rank's own block as it was when"
        " the request was made; at 3 ranks Intel's end with errors.",
        instead="A native plan makes the non-blocking call at each Start.",
        test="tests/mpi/test_plans.py::test_which_persistent_calls_of_mpi_are_wrong",
    ),
    Quirk(
        name="neighbor-directions",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="Ineighbor_alltoall(v) and Neighbor_alltoall(v)_init swap the two blocks of a"
        " periodic dimension of one or two ranks: what is sent down arrives as if from below."
        " The blocking calls are right.",
        instead="A schedule serves these calls; algorithm='native' is refused.",
        test="tests/mpi/test_neighborhoods.py::test_which_directions_of_mpi_are_wrong",
    ),
    Quirk(
        name="counts-without-neighbours",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="A rank with destinations and no sources, or the reverse, has to pass a count for"
        " both, also where a buffer is empty: else the call ends in MPI_ERR_TRUNCATE.",
        instead="MPI gets a count that fits.",
        test="tests/mpi/test_neighborhoods.py::test_ranks_with_destinations_only",
    ),
    Quirk(
        name="no-persistent",
        library=INTEL_MPI,
        versions="2021.10",
        symptom="There are no persistent collectives.",
        instead="A native plan makes the non-blocking call at each Start.",
        test="tests/mpi/test_plans.py::test_native_plans_without_persistent_calls_of_mpi",
    ),
    Quirk(
        name="empty-buffers-alias",
        library=MPICH,
        versions="",
        symptom="An empty buffer at the address of the other one is refused; NumPy's empty slices"
        " lie in their array.",
        instead="MPI gets another empty array.",
        test="tests/mpi/test_odd_buffers.py::test_an_empty_block_beside_the_input",
    ),
    Quirk(
        name="reduce-scatter-in-place",
        library=MPICH,
        versions="",
        symptom="Reduce_scatter in place ends the job where a rank's block is moved over a part of"
        " itself.",
        instead="MPI gets a copy of the input.",
        test="tests/mpi/test_odd_buffers.py::test_a_large_block_behind_a_small_one_in_place",
    ),
    Quirk(
        name="gather-of-long-complex",
        library=MPICH,
        versions="5.0.2 (others were not tried)",
        symptom="Gather of MPI_C_LONG_DOUBLE_COMPLEX on four ranks or more ends the job or raises;"
        " Igather and persistent ones have wrong data.",
        instead="MPI gets twice as many MPI_LONG_DOUBLE.",
        test="tests/mpi/test_odd_buffers.py::test_gather_of_complex_long_doubles",
    ),
    Quirk(
        name="exchanges-in-place",
        library=OPEN_MPI,
        versions="5.0.11 (others were not tried)",
        symptom="Ialltoallv and Ialltoallw in place, and persistent ones, have wrong data on four"
        " ranks or more where blocks are empty; Ialltoallw does not end where their number is even."
        " The blocking calls are right.",
        instead="MPI gets a copy of the input.",
        test="tests/mpi/test_odd_buffers.py::test_exchanges_in_place_of_which_blocks_are_empty",
    ),
    Quirk(
        name="algorithm-by-datatype",
        library=OPEN_MPI,
        versions="",
        symptom="The algorithm depends on the rank's datatype: Allgatherv waits for ever where one"
        " rank sends packed bytes, or nothing, with a type of another size.",
        instead="Packed vectors go to MPI as elements of their own type, and nothing as none of the"
        " type that is received.",
        test="tests/mpi/test_legal_programs.py"
        "::test_ranks_that_give_nothing_may_say_so_with_any_type",
    ),
    Quirk(
        name="int-counts",
        library=OPEN_MPI,
        versions="",
        symptom="Calls take no count above 2,147,483,647.",
        instead="A schedule serves the call, whose messages are below 1 GiB.",
        test="tests/mpi/test_odd_buffers.py::test_huge_calls_are_served_by_what_can",
    ),
    Quirk(
        name="waitall-beside-null",
        library=MPICH,
        versions="5.0.2",
        symptom="MPI_Waitall ends the job (an assertion in request_impl.c) where a list has a"
        " generalized request, such as those of mpicoll's non-blocking calls or of mpi4py's"
        " Grequest, and MPI_REQUEST_NULL, such as one that has been waited for.",
        instead="Leave out of the list what has ended, or call Testall, Waitsome or Waitany.",
        test="tests/mpi/test_nonblocking.py"
        "::test_lists_in_which_a_request_has_been_waited_for",
    ),
    Quirk(
        name="wrong-bcast",
        library=INTEL_MPI,
        versions="2021.16 to 2021.18",
        symptom="Bcast of 20,000 bytes or more may give wrong data on nodes of five or more ranks.",
        instead="`mpicoll info` warns of it, and names settings that avoid it.",
        test="tests/mpi/test_bench.py::test_info_warns_of_the_wrong_bcast_of_intel_mpi",
    ),
    Quirk(
        name="sizes-unchecked",
        library=MPICH,
        versions="",
        symptom="A reduction of vectors of different sizes adds up what fits, without an error.",
        instead="The PyTorch backend compares each call when it is first met, and a hash of all"
        " calls later.",
        test="tests/system/test_torch_ends.py"
        "::test_other_sizes_are_told_though_each_was_met_before",
    ),
    # ranks that die
    Quirk(
        name="death-ends-the-job",
        library="all but Open MPI",
        versions="",
        symptom="The job ends when a rank dies; with Open MPI, too, without `mpirun --with-ft"
        " ulfm`.",
        instead="Survival is refused when it is asked for, with a message that says what to use.",
        test="tests/system/test_survival.py::test_elastic_elsewhere_is_one_message_at_the_start",
    ),
    Quirk(
        name="death-noticed-late",
        library=OPEN_MPI,
        versions="",
        symptom="A rank learns of a death only within calls that make progress, maybe after other"
        " errors of several classes.",
        instead="An error that may follow from a death waits up to a second for the news of one.",
        test="tests/system/test_survival.py"
        "::test_ranks_that_die_while_communicators_are_made",
    ),
    Quirk(
        name="heartbeat-tells-one",
        library=OPEN_MPI,
        versions="",
        symptom="Where heartbeats cease one rank notices, and the others wait for ever unless"
        " mpi_ft_propagator_with_rbcast is set.",
        instead="`mpicoll cluster --survive` sets it; without it survival is refused.",
        test="tests/system/test_survival.py"
        "::test_heartbeats_of_which_only_one_rank_hears_are_refused",
    ),
    Quirk(
        name="first-message-to-the-lost",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="The first message between two ranks asks the launcher's daemons where the other"
        " rank is: it waits for ever for one of a host that was cut off.",
        instead="`mpicoll cluster --survive` sets mpi_preconnect_mpi; with heartbeats on several"
        " hosts survival is refused without it.",
        test="tests/system/test_survival.py::test_a_first_message_to_a_host_that_is_cut_off",
    ),
    Quirk(
        name="han-ignores-deaths",
        library=OPEN_MPI,
        versions="",
        symptom="The component coll/han, on several hosts with several ranks each, succeeds after"
        " a death with wrong data received.",
        instead="`mpicoll cluster --survive` excludes it; with it survival is refused.",
        test="tests/system/test_survival.py"
        "::test_collectives_that_do_not_notice_a_death_are_refused",
    ),
    Quirk(
        name="no-heartbeat-in-init",
        library=OPEN_MPI,
        versions="",
        symptom="A rank in MPI_Init sends no heartbeat, and is taken for dead where cores are"
        " shared.",
        instead="`mpicoll cluster --survive` allows more time for more processes per core.",
        test="tests/system/test_survival.py"
        "::test_heartbeats_of_the_virtual_cluster_may_be_late_where_cores_are_shared",
    ),
    Quirk(
        name="heartbeat-crashes-init",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="A heartbeat that comes through shared memory while a rank is in MPI_Init crashes"
        " that rank.",
        instead="`mpicoll cluster --survive` leaves the transport `sm` out.",
        test="tests/unit/test_quirks.py::test_heartbeats_do_not_come_through_shared_memory",
    ),
    Quirk(
        name="init-waits-for-the-dead",
        library=OPEN_MPI,
        versions="",
        symptom="Where a rank dies before MPI_Init the others wait in it for ever.",
        instead="`mpicoll train --elastic` starts MPI with a time limit.",
        test="tests/system/test_survival.py"
        "::test_a_rank_that_dies_before_mpi_starts_does_not_leave_the_others_waiting",
    ),
    Quirk(
        name="finalize-waits-for-the-dead",
        library=OPEN_MPI,
        versions="",
        symptom="MPI_Finalize may wait for ever after a death.",
        instead="Survivors leave together without it: the library's state is set to finalized.",
        test="tests/system/test_survival.py::test_the_exit_status_is_that_of_the_program",
    ),
    Quirk(
        name="sendrecv-revoked",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="MPI_Sendrecv, and so MPI_Sendrecv_replace, may read freed memory when the"
        " communicator is revoked.",
        instead="Where ranks may be lost both are two non-blocking messages.",
        test="tests/system/test_survival.py::test_sendrecv_replace_hears_of_a_death",
    ),
    Quirk(
        name="two-aborts-hang",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="mpirun may hang when several ranks abort at once after a death.",
        instead="All survivors but the lowest wait a second before they abort.",
        test="tests/unit/test_quirks.py::test_how_a_rank_ends_the_job",
    ),
    # launchers
    Quirk(
        name="abort-loses-output",
        library="Open MPI, MPICH, SLURM",
        versions="Open MPI 5.0.11",
        symptom="Launchers end an aborted job without reading what ranks printed last; Open MPI's"
        " may hang when a rank aborts at once.",
        instead="A rank waits half a second before it aborts.",
        test="tests/unit/test_quirks.py::test_how_a_rank_ends_the_job",
    ),
    Quirk(
        name="abort-returns",
        library=MPICH,
        versions="",
        symptom="MPI_Abort may return, and the program goes on until the launcher ends it.",
        instead="The process ends itself after MPI_Abort.",
        test="tests/unit/test_quirks.py::test_how_a_rank_ends_the_job",
    ),
    Quirk(
        name="separate-worlds",
        library="Open MPI, MPICH, Intel MPI",
        versions="",
        symptom="Under a launcher of another protocol (`srun` without `--mpi`, another MPI's"
        " mpiexec) each process is alone in a world of one rank.",
        instead="`Communicator` compares the world with what launchers say and raises LaunchError;"
        " `mpicoll slurm check` finds such scripts.",
        test="tests/system/test_cli_mpi.py::test_ranks_that_do_not_know_of_each_other",
    ),
    Quirk(
        name="sigterm-kills-soon",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="mpiexec passes SIGTERM on, and kills the ranks a fraction of a second later, too"
        " early for most checkpoints.",
        instead="SIGUSR1, which is passed on alone, requests a stop as well.",
        test="tests/system/test_training_jobs.py::test_sigusr1_ends_a_job_with_a_checkpoint",
    ),
    Quirk(
        name="ucx-address-grows",
        library="MPICH over UCX, under SLURM's pmi2",
        versions="5.0.2",
        symptom="MPICH publishes its address with memory behind it that it never wrote; pmi2"
        " refuses values of more than 1,024 bytes.",
        instead="mpicoll's commands start MPI before imports leave text there.",
        test="tests/system/test_starting.py::test_no_old_memory_goes_to_the_launcher",
    ),
    Quirk(
        name="status-of-a-lost-node",
        library=OPEN_MPI,
        versions="5.0.11",
        symptom="mpirun ends all ranks, with status 0, when it loses the daemon of a node.",
        instead="A job of a template has succeeded where rank 0 has written the file of `--done`.",
        test="tests/system/slurm/test_elastic.py"
        "::test_a_killed_rank_a_lost_node_and_what_cannot_go_on",
    ),
    Quirk(
        name="mpirun-keeps-signals",
        library=INTEL_MPI,
        versions="",
        symptom="mpirun is a script, which keeps signals to itself.",
        instead="Templates start mpiexec.hydra.",
        test="tests/system/slurm/test_templates.py::test_train",
    ),
    Quirk(
        name="hydra-counts-tasks",
        library="MPICH, Intel MPI",
        versions="",
        symptom="Hydra and SLURM disagree about SLURM_NTASKS_PER_NODE.",
        instead="Templates start MPI's own launcher without it.",
        test="tests/system/slurm/test_templates.py::test_train",
    ),
    Quirk(
        name="refuses-root",
        library=OPEN_MPI,
        versions="",
        symptom="mpiexec refuses to start as root, or more ranks than cores.",
        instead="Jobs that mpicoll starts set the variables by which Open MPI allows both.",
        test="tests/system/test_device_trial.py::test_what_a_trial_finds",
    ),
    Quirk(
        name="binds-and-spins",
        library="Open MPI, Intel MPI",
        versions="",
        symptom="On the virtual cluster each host binds its first rank to the same core, and ranks"
        " that wait keep the core busy.",
        instead="Ranks of the virtual cluster are unbound and yield.",
        test="tests/unit/test_quirks.py::test_ranks_of_the_virtual_cluster_share_cores",
    ),
    Quirk(
        name="topology-file",
        library="MPICH, Intel MPI",
        versions="",
        symptom="MPICH's hydra leaves a file of the topology in /tmp when it is killed, unless"
        " HWLOC_XMLFILE is set; Intel's leaves none, and crashes on that variable.",
        instead="On the virtual cluster HWLOC_XMLFILE is set for MPICH's launcher, and unset for"
        " its ranks.",
        test="tests/unit/test_quirks.py::test_hydra_leaves_no_topology",
    ),
    Quirk(
        name="libpmix-of-the-package",
        library="SLURM, as Debian packages it",
        versions="",
        symptom="The plugin pmix opens a libpmix.so that only the package libpmix-dev has.",
        instead="The virtual cluster's SLURM gets a link of that name.",
        test="tests/system/slurm/test_templates.py::test_train",
    ),
    # devices
    Quirk(
        name="cuda-query-ends-the-process",
        library=MPICH,
        versions="",
        symptom="MPIX_Query_cuda_support ended the process.",
        instead="MPIX_GPU_query_support is asked first.",
        test="tests/unit/test_quirks.py::test_the_query_that_is_safe_comes_first",
    ),
    Quirk(
        name="nolocal-nodes",
        library=MPICH,
        versions="",
        symptom="With MPIR_CVAR_NOLOCAL=1, which a CUDA-capable UCX needs, MPI takes each rank for"
        " a node of its own.",
        instead="Ranks that share GPUs go by the name of their host.",
        test="tests/system/test_device_trial.py"
        "::test_ranks_that_may_not_share_memory_share_a_host",
    ),
)


def _stale_persistent(library: str, version: Version) -> bool:
    # Intel's were wrong in all versions so far
    mended = {MPICH: (4, 3, 2), INTEL_MPI: (inf,)}
    return version < mended.get(library, (0,))


def _wrong_bcast(library: str, version: Version) -> bool:
    return library == INTEL_MPI and (2021, 16) <= version < (2021, 19)


def _death_ends_the_job(library: str, version: Version) -> bool:
    return not is_open_mpi(library)


def _neighbor_directions(library: str, version: Version) -> bool:
    return is_open_mpi(library)


def _gather_of_long_complex(library: str, version: Version) -> bool:
    return library == MPICH


def _exchanges_in_place(library: str, version: Version) -> bool:
    return is_open_mpi(library)


_AFFECTED: dict[str, Callable[[str, Version], bool]] = {
    "exchanges-in-place": _exchanges_in_place,
    "gather-of-long-complex": _gather_of_long_complex,
    "neighbor-directions": _neighbor_directions,
    "stale-persistent": _stale_persistent,
    "wrong-bcast": _wrong_bcast,
    "death-ends-the-job": _death_ends_the_job,
}


def applies(name: str, vendor: tuple[str, Version] | None = None) -> bool:
    """Whether the loaded library, or another (its name and version), has a quirk. Local.

    >>> applies("wrong-bcast", ("Intel MPI", (2021, 18, 1)))
    True
    """
    return _AFFECTED[name](*(vendor or loaded()))


def is_open_mpi(library: str) -> bool:
    """Whether it is Open MPI that has this name, with or without version."""
    return library.startswith(OPEN_MPI)


@cache
def loaded() -> tuple[str, Version]:
    """Name and version of the MPI library that is loaded."""
    from mpi4py import MPI

    return MPI.get_vendor()


@cache
def library_text() -> str:
    """All that the loaded library says of itself."""
    from mpi4py import MPI

    return MPI.Get_library_version().strip("\x00 \n")


@cache
def library() -> str:
    """Name and version of the loaded MPI library, in one line."""
    words = library_text().splitlines()[0].split(",")[0].split()
    name = " ".join(words).replace("Version: ", "").replace("Version:", "")
    return name.replace("Intel(R) MPI Library", INTEL_MPI).partition(" for ")[0]
