"""Whether MPI accepts device pointers: a query of the library, or a trial in a separate job."""

from __future__ import annotations

import ctypes
import os
import sys
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from mpi4py import MPI

from ..errors import LaunchError
from ..support import settings
from ..support.node import on_each_host
from ..support.settings import AUTO, DIRECT, STAGED
from . import proofs
from .proofs import Result

if TYPE_CHECKING:
    from ..support.child_job import Ended

#: CUDA in MPICH's MPIX_GPU_query_support
_MPICH_CUDA = 0
#: what Python's fault handler writes of a crash, in a write of its own: another rank's writes may
#: stand before and after it on its line
_CRASHES = (
    "Segmentation fault",
    "Bus error",
    "Aborted",
    "Illegal instruction",
    "Floating point exception",
)
#: lines of output shown of a trial that ended without a message; launchers append their own
_FIRST = 6


@lru_cache(maxsize=None)
def cuda_awareness() -> tuple[bool | None, str]:
    """(answer, its source): whether the loaded MPI library says that it takes CUDA device pointers.

    The answer is None where the library has no query function. Options and file names do not count.
    """
    gpu_query, cuda_query = "MPIX_GPU_query_support", "MPIX_Query_cuda_support"
    handle = ctypes.CDLL(MPI.__file__)  # finds the symbols of the MPI library, which it links
    # this one first. quirk: cuda-query-ends-the-process
    if hasattr(handle, gpu_query):
        answer = ctypes.c_int(0)
        if handle.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(answer)) == 0:
            return bool(answer.value), gpu_query
        return None, f"{gpu_query} failed"
    if hasattr(handle, cuda_query):
        return bool(handle.MPIX_Query_cuda_support()), cuda_query
    return None, f"not offered: the library has neither {cuda_query} nor {gpu_query}"


@lru_cache(maxsize=None)
def last_trial() -> Result | None:
    """The result of the last trial with this machine, MPI, driver, CuPy and transport, or None."""
    try:
        return proofs.read(proofs.circumstances())
    except LaunchError:  # no GPU
        return None


def gpu_mode() -> str:
    """How device memory travels: "direct" (by its pointers) or "staged" through the host. Local."""
    return gpu_mode_and_why()[0]


def gpu_mode_and_why() -> tuple[str, str]:
    """The mode, and the reason for it."""
    setting = settings.gpu()
    return _safe_mode() if setting == AUTO else (setting, f"{settings.GPU}={setting}")


def _safe_mode() -> tuple[str, str]:
    """The mode that is safe: a failed trial outweighs the library's answer."""
    aware, source = cuda_awareness()
    trial = last_trial()
    if trial is not None and not trial.passed:
        return STAGED, f"the trial of {trial.when} failed: {trial.said}"
    if aware:
        return DIRECT, f"{source} says that MPI takes device pointers"
    if trial is not None:
        return DIRECT, f"the trial of {trial.when} passed: {trial.said}"
    unknown = f"MPI is not known to take device pointers ({source})"
    return STAGED, f"{unknown}, and no trial has shown it: mpicoll info --gpu makes one"


def require_awareness(comm: MPI.Comm) -> None:
    """With MPICOLL_GPU=direct, require that MPI takes device pointers on each host. Collective.

    Raises LaunchError on all ranks otherwise. Where neither the library nor an earlier trial says
    so, one rank of the host makes a trial.
    """
    if os.environ.get(settings.GPU) != DIRECT:  # an invalid value raises later, on all ranks
        return
    for host, result in on_each_host(comm, _settled):
        if not result.passed:
            raise LaunchError(
                f"{settings.GPU}={DIRECT}: MPI cannot be given device pointers on {host}: "
                f"{result.said}. "
                f"Set {settings.GPU}={AUTO}, or give MPI a transport that knows CUDA"
            )


@lru_cache(maxsize=None)
def _settled() -> Result:
    """The library's answer, the earlier trial that passed, or a new trial."""
    aware, source = cuda_awareness()
    if aware:
        return Result(True, source, "")
    trial = last_trial()
    return trial if trial is not None and trial.passed else make_trial()


def trials(comm: MPI.Comm) -> list[Result]:
    """The result, for each rank, of a new trial that a rank of its host makes. Collective."""
    results = [result for _, result in on_each_host(comm, make_trial)]
    last_trial.cache_clear()
    _settled.cache_clear()
    return results


def make_trial() -> Result:
    """Let two ranks of a separate job exchange and reduce device memory; store the result.

    Never raises.
    """
    from ..support import child_job  # starts processes: imported only for a trial
    from .pointer_trial import LIMIT

    when = datetime.now().astimezone().isoformat(timespec="seconds")
    mpiexec = child_job.own_launcher()
    try:
        circumstances = proofs.circumstances()
    except LaunchError as error:  # says nothing about MPI: not stored
        return Result(False, str(error), when)
    if mpiexec is None:
        places = f"beside the MPI library, {sys.executable} or on PATH"
        return Result(False, f"no mpiexec {places} to start a trial with", when)
    ended = child_job.run(mpiexec, 2, f"{__package__}.pointer_trial", LIMIT)
    result = Result(ended.status == 0, _summary(ended), when)
    if problem := proofs.keep(circumstances, result):
        result = result._replace(said=f"{result.said} (not kept for other programs: {problem})")
    return result


def _summary(ended: Ended) -> str:
    """The outcome of a trial in a line: its own messages, its crash, or else its first output."""
    from .pointer_trial import LIMIT, SAID

    lines = [" ".join(line.split()) for line in ended.output.splitlines() if line.strip("-= ")]
    said = [line.partition(SAID)[2] for line in lines if SAID in line]
    if "Fatal Python error: " in ended.output:
        said += [f"it crashed: {crash}" for crash in _CRASHES if crash in ended.output]
    words = "; ".join(dict.fromkeys(said))
    if ended.status is None:
        return f"not done after {LIMIT:g} s{words and ': '}{words}"
    return words or f"exit status {ended.status}: {'; '.join(lines[:_FIRST]) or 'it said nothing'}"
