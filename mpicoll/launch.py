"""How the program was launched: the abort hook, and the check for N separate worlds of one rank."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn

from mpi4py import MPI

from .errors import CollectiveTimeout, LaunchError
from .support.callsite import site_of_error
from .support.garbage import frames_of_threads
from .support.node import failed_ranks
from .support.quirks import library_text

#: variables in which launchers tell each process how many processes they started
_COUNTS = (
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "PALS_NRANKS",
    "PMIX_SIZE",
)
#: of these the variables that are right for a job of a single process
_TRUSTED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: called with the reason, in a few words, before this rank ends the job
LAST_WORDS: list[Callable[[str], object]] = []


def install_abort_hook() -> None:
    """Let a failure of one rank end the whole job, and say what it was.

    A failure is an uncaught exception, in the main thread or another, and an end with an exit
    status other than 0: ``sys.exit("no such file")``. Without the hook that rank waits in
    MPI_Finalize for the others, and they wait for its messages: a hang. The exit status of the job
    is that of the rank, or 1.

    ``python -m mpi4py script.py`` does the same from outside, but for threads, and without the half
    second in which launchers read what was printed. Not seen: ``raise SystemExit(1)``, and an
    ``exit`` imported from sys before this call.
    """
    sys.excepthook = _on_exception
    threading.excepthook = _on_exception_in_thread
    sys.exit = _exit
    atexit.register(_at_exit)


def _on_exception(
    kind: type[BaseException],
    value: BaseException | None,
    trace: TracebackType | None,
    place: str = "",
) -> None:
    text = "".join(traceback.format_exception(kind, value, trace))
    status = 128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1
    abort(f"mpicoll: rank {_rank()} failed{place}, the job ends:\n{text}", status, words_of(value))


def _on_exception_in_thread(failure: threading.ExceptHookArgs) -> None:
    if issubclass(failure.exc_type, SystemExit):  # a thread may end itself so
        return
    place = f" in its thread {failure.thread.name if failure.thread else '?'}"
    _on_exception(failure.exc_type, failure.exc_value, failure.exc_traceback, place)


def _on_exit(code: object) -> None:
    """Handle the end of the program by a SystemExit with this code.

    Where no other rank waits, Python's own exit is enough.
    """
    if (
        code in (None, 0)
        or sys.excepthook is not _on_exception
        or MPI.Is_finalized()
        or MPI.COMM_WORLD.Get_size() == 1
    ):
        return
    status = 1
    reason = f"an error: {code}"
    if isinstance(code, int):
        status = int(code)
        reason = f"exit status {status}"
    message = f"mpicoll: rank {_rank()} ended, and so the job ends, with {reason}"
    abort(message, status, f"ended with {reason}")


class _Exit(SystemExit):
    """The exception of `sys.exit`. Python calls no hook when it ends the program, but deletes it.

    It has ended the program if the main thread's outermost function is over, and has executed
    nothing since.
    """

    #: the latest exit
    last: weakref.ref[_Exit] | None = None

    def __init__(self, *code: object) -> None:
        super().__init__(*code)
        self.outermost = _stack()[-1]
        self.instruction = self.outermost.f_lasti
        _Exit.last = weakref.ref(self)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # the names of this module may be gone then
            self.handle()

    def handle(self) -> None:
        """End the job, once, where this exit has ended the program."""
        if self.outermost not in _stack() and self.outermost.f_lasti == self.instruction:
            code = self.code
            self.code = None
            _on_exit(code)


def _stack() -> list[FrameType]:
    """The frames of the main thread, the innermost first."""
    frames = []
    frame = frames_of_threads().get(threading.main_thread().ident or 0)
    while frame:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _exit(status: object = None, /) -> NoReturn:
    """Exit the program (or the thread): a status, or a message for standard error and status 1."""
    raise (_Exit if threading.current_thread() is threading.main_thread() else SystemExit)(status)


def _at_exit() -> None:
    """Handle a pending exit that is still referenced, by a call under way for example."""
    if _Exit.last is not None and (error := _Exit.last()):
        error.handle()


def words_of(error: BaseException | None) -> str:
    """The text of an error that ended this rank, for reports; "" where another rank caused it."""
    if error is None or isinstance(error, CollectiveTimeout):
        return ""
    site = site_of_error(error)
    at = f" at {site}" if site else ""
    return f"raised {type(error).__name__}: {str(error)[:200]}{at}"


def _rank() -> int | str:
    return "?" if MPI.Is_finalized() else MPI.COMM_WORLD.Get_rank()


def abort(message: str, status: int = 1, because: str = "") -> None:
    """Print the message on standard error, and end the job on all ranks with this status.

    because: the reason in reports.
    """
    # sys.stderr may be a buffer, which is lost with this process
    for stream in {sys.stderr, sys.__stderr__} - {None}:
        print(message, file=stream, flush=True)
    for tell in LAST_WORDS:
        tell(because)
    if not MPI.Is_finalized():
        # quirk: abort-loses-output
        time.sleep(0.5)
        living = _living()
        is_death = len(living) < MPI.COMM_WORLD.Get_size()
        if is_death and MPI.COMM_WORLD.Get_rank() != living[0]:
            # the lowest living rank ends all others. quirk: two-aborts-hang
            time.sleep(1)
        # after the Abort of the last living rank the launcher would end with status 0
        if not is_death or len(living) > 1:
            MPI.COMM_WORLD.Abort(status)
        # else this process would go on and print the message again. quirk: abort-returns
        os._exit(status)


def _living() -> list[int]:
    """The ranks of the world that have not died, as far as MPI knows."""
    try:
        failed = failed_ranks(MPI.COMM_WORLD)
    except (NotImplementedError, MPI.Exception):  # this MPI does not tell survivors of deaths
        failed = []
    return [rank for rank in range(MPI.COMM_WORLD.Get_size()) if rank not in failed]


def check_launch() -> None:
    """Raise LaunchError where a launcher started several processes and MPI connected none of them.

    It happens when launcher and MPI library have different protocols (``srun`` without ``--mpi``,
    an mpiexec of another MPI): then each process is alone in its world, all write the same files,
    and the job "succeeds".
    """
    if MPI.COMM_WORLD.Get_size() > 1 or any(os.environ.get(name) == "1" for name in _TRUSTED):
        return
    for name in _COUNTS:  # quirk: separate-worlds
        count = os.environ.get(name, "")
        if count.isdigit() and int(count) > 1:
            library = library_text().splitlines()[0].strip()
            raise LaunchError(
                f"{name}={count}: the launcher started {count} processes, but each is alone in a"
                f" world of one rank, because the launcher and the MPI library ({library}) do not"
                " understand each other. Use the mpiexec of this MPI library, or `srun --mpi=pmix`"
                " for Open MPI and `srun --mpi=pmi2` for MPICH and Intel MPI; `srun --mpi=list`"
                " shows what this cluster offers. Where one rank is meant: mpiexec -n 1."
            )
