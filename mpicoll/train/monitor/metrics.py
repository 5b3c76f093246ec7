"""Metrics of each step and each epoch, on rank 0, as they come.

They are lines of JSON in a file, or what other tools read: see `_KINDS`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ContextManager, TypeAlias

from ...errors import ArgumentError, LaunchError
from ...support.checks import check, ranks_text, together
from ...support.optional import require

if TYPE_CHECKING:
    from mpi4py import MPI

#: log(name=value, …): a step where there is a `step` among the names, else an epoch
Log: TypeAlias = Callable[..., None]
#: `Log` without what stops it
_Write: TypeAlias = Callable[[dict[str, Any]], object]


@contextmanager
def metrics_log(target: str | os.PathLike[str] | None, comm: MPI.Intracomm) -> Iterator[Log]:
    """Yield `log(**fields)`, which on rank 0 writes to the target, if there is one.

    target: a file, or "tensorboard:DIRECTORY" or "wandb:PROJECT". Collective; the targets of other
    ranks do not count. Raises ArgumentError on all ranks where rank 0 cannot write, or has no
    target and others have, and LaunchError where it lacks a package. Where it no longer can, `log`
    says so once, and writes no more: the training is worth more than its metrics.
    """
    with ExitStack() as stack:

        def begin() -> _Write | None:
            if target is None or comm.Get_rank():
                return None
            try:
                return stack.enter_context(_opened(os.fspath(target)))
            except LaunchError:
                raise
            except Exception as error:  # of other packages, too, or other ranks would wait
                raise ArgumentError(f"metrics: cannot write {target} ({_why(error)})") from None

        write = together(comm, begin)
        having = [rank for rank, has in enumerate(comm.allgather(target is not None)) if has]
        check(
            "metrics",
            None,
            not having or having[0] == 0,
            f"a file on rank 0, which writes it, as on {ranks_text(having)}",
        )
        yield _until_it_fails(write, target) if write else lambda **fields: None


def _why(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def _opened(target: str) -> ContextManager[_Write]:
    kind, colon, place = target.partition(":")
    return _KINDS[kind](place) if colon and kind in _KINDS else _lines(target)


def _until_it_fails(write: _Write, target: object) -> Log:
    problem: Exception | None = None

    def log(**fields: object) -> None:
        nonlocal problem
        if problem:
            return
        try:
            write(fields)
        except Exception as error:
            problem = error
            reason = f"cannot write {target} any more ({_why(error)})"
            print(f"mpicoll: metrics: {reason}; the training goes on", file=sys.stderr, flush=True)

    return log


@contextmanager
def _lines(path: str) -> Iterator[_Write]:
    with open(path, "ab", buffering=0) as file:  # nothing is left to be written when it is closed
        yield lambda fields: file.write(json.dumps(fields).encode() + b"\n")


@contextmanager
def _tensorboard(directory: str) -> Iterator[_Write]:
    writer = require("tensorboardX", "metrics for TensorBoard").SummaryWriter(directory)

    def write(fields: dict[str, Any]) -> None:
        for name, value in _curves(fields).items():
            writer.add_scalar(name, value, fields[_kind(fields)])

    with writer:
        yield write


@contextmanager
def _wandb(project: str) -> Iterator[_Write]:
    """Without a network, unless WANDB_MODE says otherwise: `wandb sync` sends it later."""
    mode = os.environ.get("WANDB_MODE", "offline")
    with require("wandb", "metrics for W&B").init(project=project, mode=mode) as run:
        for kind in ("step", "epoch"):
            run.define_metric(f"{kind}/*", step_metric=kind)
        yield lambda fields: run.log(
            _curves(fields) | {name: fields[name] for name in ("step", "epoch") if name in fields}
        )


def _kind(fields: dict[str, Any]) -> str:
    return "step" if "step" in fields else "epoch"


def _curves(fields: dict[str, Any]) -> dict[str, float]:
    """The numbers among the fields but for the number of the step and the epoch, by their names."""
    return {
        f"{_kind(fields)}/{name}": value
        for name, value in fields.items()
        if name not in ("step", "epoch") and isinstance(value, (int, float))
    }


_KINDS = {"tensorboard": _tensorboard, "wandb": _wandb}
