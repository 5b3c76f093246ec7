"""Whether MPI takes device pointers: the library says so, a trial in a job of its own has shown it, or nobody knows."""

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

#: how MPICH's MPIX_GPU_query_support numbers CUDA
_MPICH_CUDA = 0
#: how Python's fault handler begins
_CRASH = "Fatal Python error: "
#: lines of a trial's output that are shown where it died without a word; launchers add theirs at the end
_FIRST = 6


@lru_cache(maxsize=None)
def cuda_awareness() -> tuple[bool | None, str]:
    """(answer, how it was found): whether the loaded MPI library says that it takes CUDA device pointers.

    None where the library offers no way to ask. What is asked is the library, never an option or a file name.
    """
    handle = ctypes.CDLL(MPI.__file__)  # a symbol is looked up in the MPI library it is linked to as well
    # this one first. quirk: cuda-query-ends-the-process
    if hasattr(handle, "MPIX_GPU_query_support"):
        answer = ctypes.c_int(0)
        if handle.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(answer)) == 0:
            return bool(answer.value), "MPIX_GPU_query_support"
        return None, "MPIX_GPU_query_support failed"
    if hasattr(handle, "MPIX_Query_cuda_support"):
        return bool(handle.MPIX_Query_cuda_support()), "MPIX_Query_cuda_support"
    return None, "not offered: the library has neither MPIX_Query_cuda_support nor MPIX_GPU_query_support"


@lru_cache(maxsize=None)
def last_trial() -> Result | None:
    """What the last trial showed here, with this MPI, driver, CuPy and transport; None where there was none."""
    try:
        return proofs.read(proofs.circumstances())
    except LaunchError:  # no GPU
        return None


def gpu_mode() -> str:
    """How device memory travels: "direct" (its pointers go to MPI) or "staged" through host memory. Local."""
    return gpu_mode_and_why()[0]


def gpu_mode_and_why() -> tuple[str, str]:
    """The mode, and why it is this one."""
    asked = settings.gpu()
    return _chosen() if asked == AUTO else (asked, f"{settings.GPU}={asked}")


def _chosen() -> tuple[str, str]:
    """What is safe: a trial that failed counts more than the library's word."""
    (known, how), trial = cuda_awareness(), last_trial()
    if trial is not None and not trial.passed:
        return STAGED, f"the trial of {trial.when} failed: {trial.said}"
    if known:
        return DIRECT, f"{how} says that MPI takes device pointers"
    if trial is not None:
        return DIRECT, f"the trial of {trial.when} passed: {trial.said}"
    return STAGED, f"MPI is not known to take device pointers ({how}), and no trial has shown it: mpicoll info --gpu makes one"


def require_awareness(comm: MPI.Comm) -> None:
    """Where MPICOLL_GPU=direct: raise LaunchError on all ranks unless MPI takes device pointers on each host. Collective.

    One rank of a host makes a trial where nothing is known and none has passed.
    """
    if os.environ.get(settings.GPU) != DIRECT:  # a word that is none is refused later, on all ranks
        return
    for host, result in on_each_host(comm, _settled):
        if not result.passed:
            raise LaunchError(f"{settings.GPU}={DIRECT}: MPI cannot be given device pointers on {host}: {result.said}. "
                              f"Set {settings.GPU}={AUTO}, or give MPI a transport that knows CUDA")  # fmt: skip


@lru_cache(maxsize=None)
def _settled() -> Result:
    """What the library says, what a trial has shown before, or what one shows now."""
    (known, how), trial = cuda_awareness(), last_trial()
    if known:
        return Result(True, how, "")
    return trial if trial is not None and trial.passed else make_trial()


def trials(comm: MPI.Comm) -> list[Result]:
    """For each rank the result of a new trial on its host, made by one rank there. Collective."""
    results = [result for _, result in on_each_host(comm, make_trial)]
    last_trial.cache_clear()
    _settled.cache_clear()
    return results


def make_trial() -> Result:
    """Let two ranks of a job of their own exchange and reduce device memory, and keep what it shows. Never raises."""
    from ..support import child_job  # what starts processes is loaded for a trial alone
    from .pointer_trial import LIMIT

    when = datetime.now().astimezone().isoformat(timespec="seconds")
    mpiexec = child_job.own_launcher()
    try:
        of = proofs.circumstances()
    except LaunchError as error:  # nothing was learned about MPI
        return Result(False, str(error), when)
    if mpiexec is None:
        return Result(False, f"no mpiexec beside the MPI library, {sys.executable} or on PATH to start a trial with", when)
    ended = child_job.run(mpiexec, 2, f"{__package__}.pointer_trial", LIMIT)
    result = Result(ended.status == 0, _words(ended), when)
    if problem := proofs.keep(of, result):
        result = result._replace(said=f"{result.said} (not kept for other programs: {problem})")
    return result


def _words(ended: Ended) -> str:
    """What a trial said, in a line: its own words, how it crashed, or else the beginning of its output."""
    from .pointer_trial import LIMIT, SAID

    lines = [" ".join(line.split()) for line in ended.output.splitlines() if line.strip("-= ")]
    said = [line.partition(SAID)[2] for line in lines if SAID in line]
    said += [f"it crashed: {line.rpartition(_CRASH)[2]}" for line in lines if _CRASH in line]
    words = "; ".join(dict.fromkeys(said))
    if ended.status is None:
        return f"not done after {LIMIT:g} s{words and ': '}{words}"
    return words or f"exit status {ended.status}: {'; '.join(lines[:_FIRST]) or 'it said nothing'}"
