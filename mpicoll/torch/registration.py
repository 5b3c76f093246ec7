"""PyTorch is told of the backend, and what else it must be told for it to be used by its name alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..errors import LaunchError
from ..support import settings
from ..support.optional import require

torch = require("torch", "the backend of torch.distributed")

#: the backend, and how process groups find each other without MASTER_ADDR
NAME, SCHEME = "mpicoll", "mpi"
#: what it serves; CUDA tensors by way of CuPy
DEVICES = ("cpu", "cuda")
_OLDEST = (2, 4)
#: process groups that were not shut down, in the order in which they were made: PyTorch's C++ half does not keep ours
ALIVE: list[Any] = []
#: backends in whose place ours serves
_SERVED = settings.torch_as()


def register() -> None:
    """Register the backend; MPI is not started. Once done it is done.

    ``import torch`` calls it too, by an entry point: what PyTorch was built without is no error there, but in `init`.
    """
    dist = torch.distributed
    if not dist.is_available():
        return
    _check_version(torch.__version__)
    if NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=list(DEVICES))
    dist.register_rendezvous_handler(SCHEME, _rendezvous)
    _replace("init_process_group", _finding_ranks_by_mpi)
    _replace("new_group", _under_our_name)
    _replace("monitored_barrier", _also_ours)
    _replace("destroy_process_group", _shutting_down)
    _replace("_set_pg_timeout", _also_our_timeout)
    _replace("_create_shrunk_process_group", _as_it_is)
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel._register_builtin_comm_hook = _in_python(parallel._register_builtin_comm_hook)


def init(backend: str = NAME, **options: Any) -> None:
    """``torch.distributed.init_process_group``, with ranks and store from MPI, which also tells scripts what they expect.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set in the environment where they are not.

    Parameters
    ----------
    backend : str, default "mpicoll"
        Any that PyTorch knows: "cpu:mpicoll,cuda:nccl", or "gloo" for a comparison.
    **options
        As of ``init_process_group``: timeout, say.

    Raises
    ------
    LaunchError
        The ranks were not started by MPI's launcher: by torchrun, say.

    Examples
    --------
    >>> import mpicoll.torch
    >>> mpicoll.torch.init()
    """
    if not torch.distributed.is_available():
        raise LaunchError(f"PyTorch {torch.__version__} was built without torch.distributed: install another build of it")
    torch.distributed.init_process_group(backend, init_method=f"{SCHEME}://", **options)


def serve_as(*names: str) -> None:
    """Let mpicoll serve groups for which a framework asks another backend, whose name it cannot be told: "gloo", say.

    From then on ``init_process_group`` and ``new_group`` make groups of mpicoll where they are given one of these names. Their
    own name is still "mpicoll". MPICOLL_TORCH_AS does the same for programs that cannot be changed.

    Parameters
    ----------
    *names : str
        Those of the backends; none of them: all are themselves again.

    Examples
    --------
    >>> import mpicoll.torch
    >>> mpicoll.torch.serve_as("gloo")
    """
    _SERVED[:] = [name.lower() for name in names]


def _served(backend: Any) -> Any:
    """The backend that is meant: ours in the place of those that we serve."""
    if not isinstance(backend, str):
        return backend
    parts = [part.rpartition(":") for part in backend.lower().split(",")]
    if not any(name in _SERVED for _, _, name in parts):
        return backend
    return ",".join(f"{device}{colon}{NAME if name in _SERVED else name}" for device, colon, name in parts)


def _check_version(version: str) -> None:
    found = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2])
    if found < _OLDEST:
        raise LaunchError(f"the backend {NAME} needs PyTorch {'.'.join(map(str, _OLDEST))} or later, this is {version}: "
                          'pip install --upgrade torch')  # fmt: skip


def _create(options: Any, more: Any) -> Any:
    """PyTorch makes a process group, on its ranks alone."""
    others = _other_devices()
    from .mixed import Mixed
    from .process_group import ProcessGroup
    from .rendezvous import communicator_of

    comm = communicator_of(options)
    return Mixed(comm, options, others) if others else ProcessGroup(comm, options)


def _other_devices() -> dict[str, str]:
    """{device: backend} of what the group serves beside ours: "cpu:mpicoll,cuda:nccl". PyTorch tells only its own frame."""
    frame: Any = sys._getframe(2)
    asked = str(frame.f_locals.get("backend", NAME)).lower()
    pairs = [pair.split(":") for pair in asked.split(",") if ":" in pair]
    return {device: backend for device, backend in pairs if backend != NAME}


def _rendezvous(url: str, **options: Any) -> Any:
    from .rendezvous import meet

    return meet(url, **options)


# What PyTorch decides by the names of its own backends.


def _replace(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Let a function of torch.distributed be another, wherever people find it."""
    places = [place for place in (torch.distributed, torch.distributed.distributed_c10d) if hasattr(place, name)]
    for place in places:
        setattr(place, name, make(getattr(place, name)))


def _finding_ranks_by_mpi(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def init_process_group(backend: Any = None, init_method: str | None = None, *given: Any, **named: Any) -> Any:
        backend = _served(backend)
        found_by_mpi = init_method in (None, "env://") and len(given) < 4 and named.get("store") is None
        if NAME in str(backend).lower() and found_by_mpi:
            init_method = f"{SCHEME}://"
        return original(backend, init_method, *given, **named)

    return init_process_group


def _also_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        dist = torch.distributed
        found = dist.group.WORLD if group is None else group
        if found in (None, dist.GroupMember.NON_GROUP_MEMBER) or dist.get_backend(group) != NAME:
            return original(group, timeout, wait_all_ranks)
        return found.monitored_barrier(timeout, wait_all_ranks)

    return monitored_barrier


def _under_our_name(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *given: Any, **named: Any) -> Any:
        return original(ranks, timeout, _served(backend), *given, **named)

    return new_group


def _also_our_timeout(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def _set_pg_timeout(timeout: Any, group: Any = None) -> None:
        found = torch.distributed.group.WORLD if group is None else group
        if found in ALIVE:
            found.set_timeout(timeout)
        else:
            original(timeout, group)

    return _set_pg_timeout


def _as_it_is(original: Callable[..., Any]) -> Callable[..., Any]:
    """A shrunk group of ours is a process group, in which PyTorch need not put it."""

    @wraps(original)
    def _create_shrunk_process_group(backend: Any, ranks: Any, metadata: Any, is_default_group: bool) -> Any:
        if backend not in ALIVE:
            return original(backend, ranks, metadata, is_default_group)
        backend.setGroupName(metadata["new_group_name"])
        return backend

    return _create_shrunk_process_group


def _in_python(original: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's hook in C++ that sends 16 bits wants lists that no future made in Python has; that in Python does the same."""

    @wraps(original)
    def _register_builtin_comm_hook(self: Any, kind: Any) -> None:
        if self.process_group in ALIVE and kind == torch.distributed.BuiltinCommHookType.FP16_COMPRESS:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            self.register_comm_hook(self.process_group, fp16_compress_hook)
        else:
            original(self, kind)

    return _register_builtin_comm_hook


def _shutting_down(original: Callable[..., Any]) -> Callable[..., Any]:
    """Older versions shut down NCCL's groups alone."""

    @wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        is_all = group is None or group is torch.distributed.group.WORLD
        known = torch.distributed.distributed_c10d._world.pg_map  # not what is being made in its place, by `shrink_group`
        mine = [one for one in reversed(ALIVE) if one in known and (is_all or one is group)]
        original(group)
        for one in mine:
            one.shutdown()

    return destroy_process_group
