"""Registration of the backend in PyTorch, and the functions of PyTorch that are replaced for it.

The replacements let programs use the backend by its name alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..errors import LaunchError
from ..support import settings
from ..support.optional import require

torch = require("torch", "the backend of torch.distributed")

#: the backend
NAME = "mpicoll"
#: of the URL by which process groups find each other without MASTER_ADDR
SCHEME = "mpi"
#: the devices that it serves; CUDA tensors by way of CuPy
DEVICES = ("cpu", "cuda")
_OLDEST = (2, 4)
#: process groups that were not shut down, in the order of their creation: PyTorch's C++ half does
#: not keep the Python half
ALIVE: list[Any] = []
#: names of other backends under which mpicoll serves
_SERVED = settings.torch_as()


def register() -> None:
    """Register the backend; MPI is not started. Later calls do nothing.

    ``import torch`` calls it too, by an entry point. So a PyTorch that was built without
    torch.distributed is no error here, but in `init`.
    """
    dist = torch.distributed
    if not dist.is_available():
        return
    _check_version(torch.__version__)
    if NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=list(DEVICES))
    dist.register_rendezvous_handler(SCHEME, _rendezvous)
    _replace("init_process_group", _with_ranks_from_mpi)
    _replace("new_group", _with_served_names)
    _replace("monitored_barrier", _with_our_barrier)
    _replace("destroy_process_group", _with_shutdown)
    _replace("_set_pg_timeout", _with_our_timeout)
    _replace("_create_shrunk_process_group", _without_wrapping_ours)
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel._register_builtin_comm_hook = _with_hook_in_python(
        parallel._register_builtin_comm_hook
    )


def init(backend: str = NAME, **options: Any) -> None:
    """``torch.distributed.init_process_group``, with ranks and store from MPI.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set in the
    environment where they are missing.

    Parameters
    ----------
    backend : str, default "mpicoll"
        Any backend of PyTorch: "cpu:mpicoll,cuda:nccl", or "gloo" for a comparison.
    **options
        The options of ``init_process_group``, such as timeout.

    Raises
    ------
    LaunchError
        The ranks were not started by MPI's launcher, but by torchrun, for example.

    Examples
    --------
    >>> import mpicoll.torch
    >>> mpicoll.torch.init()
    """
    if not torch.distributed.is_available():
        raise LaunchError(
            f"PyTorch {torch.__version__} was built without torch.distributed: "
            "install another build of it"
        )
    torch.distributed.init_process_group(backend, init_method=f"{SCHEME}://", **options)


def serve_as(*names: str) -> None:
    """Let mpicoll serve under the names of other backends, for frameworks that fix the name.

    From then on ``init_process_group`` and ``new_group`` create groups of mpicoll where a program
    passes one of these names, such as "gloo". The group's own name is still "mpicoll".
    MPICOLL_TORCH_AS does the same for programs that cannot be changed.

    Parameters
    ----------
    *names : str
        Names of backends; without any, each backend is itself again.

    Examples
    --------
    >>> import mpicoll.torch
    >>> mpicoll.torch.serve_as("gloo")
    """
    _SERVED[:] = [name.lower() for name in names]


def _served(backend: Any) -> Any:
    """The backend that serves: mpicoll in the place of each name of `serve_as`."""
    if not isinstance(backend, str):
        return backend
    parts = [part.rpartition(":") for part in backend.lower().split(",")]
    if not any(name in _SERVED for _, _, name in parts):
        return backend
    return ",".join(
        f"{device}{colon}{NAME if name in _SERVED else name}" for device, colon, name in parts
    )


def _check_version(text: str) -> None:
    digits = ["".join(filter(str.isdigit, part)) for part in text.split(".")[:2]]
    if tuple(int(number or 0) for number in digits) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise LaunchError(
            f"the backend {NAME} needs PyTorch {oldest} or later, this is {text}: "
            "pip install --upgrade torch"
        )


def _create(options: Any, backend_options: Any) -> Any:
    """Create a process group; PyTorch calls it on the ranks of the group alone."""
    others = _other_devices()
    from .mixed import Mixed
    from .process_group import ProcessGroup
    from .rendezvous import communicator_of

    comm = communicator_of(options)
    return Mixed(comm, options, others) if others else ProcessGroup(comm, options)


def _other_devices() -> dict[str, str]:
    """{device: backend} of the other backends in the group: "cpu:mpicoll,cuda:nccl".

    PyTorch does not pass this text on: it is a local variable of the function that calls `_create`.
    """
    frame: Any = sys._getframe(2)
    backends = str(frame.f_locals.get("backend", NAME)).lower()
    pairs = [pair.split(":") for pair in backends.split(",") if ":" in pair]
    return {device: backend for device, backend in pairs if backend != NAME}


def _rendezvous(url: str, **options: Any) -> Any:
    from .rendezvous import meet

    return meet(url, **options)


# Functions of PyTorch that decide by the names of its own backends.


def _replace(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function of torch.distributed in both modules that have it."""
    for module in (torch.distributed, torch.distributed.distributed_c10d):
        if hasattr(module, name):
            setattr(module, name, make(getattr(module, name)))


def _with_ranks_from_mpi(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def init_process_group(
        backend: Any = None, init_method: str | None = None, *more: Any, **named: Any
    ) -> Any:
        backend = _served(backend)
        has_store = len(more) >= 4 or named.get("store") is not None
        from_environment = init_method in (None, "env://")
        if NAME in str(backend).lower() and from_environment and not has_store:
            init_method = f"{SCHEME}://"
        return original(backend, init_method, *more, **named)

    return init_process_group


def _with_our_barrier(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        dist = torch.distributed
        used = dist.group.WORLD if group is None else group
        is_member = used not in (None, dist.GroupMember.NON_GROUP_MEMBER)
        if is_member and NAME in dist.get_backend(group):
            return used.monitored_barrier(timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)

    return monitored_barrier


def _with_served_names(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *more: Any, **named: Any
    ) -> Any:
        return original(ranks, timeout, _served(backend), *more, **named)

    return new_group


def _with_our_timeout(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def _set_pg_timeout(timeout: Any, group: Any = None) -> None:
        used = torch.distributed.group.WORLD if group is None else group
        if used in ALIVE:
            used.set_timeout(timeout)
        else:
            original(timeout, group)

    return _set_pg_timeout


def _without_wrapping_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    """A shrunk group of mpicoll is a process group already: PyTorch need not put it in one."""

    @wraps(original)
    def _create_shrunk_process_group(
        backend: Any, ranks: Any, metadata: Any, is_default_group: bool
    ) -> Any:
        if backend not in ALIVE:
            return original(backend, ranks, metadata, is_default_group)
        backend.setGroupName(metadata["new_group_name"])
        return backend

    return _create_shrunk_process_group


def _with_hook_in_python(original: Callable[..., Any]) -> Callable[..., Any]:
    """Register PyTorch's hook in Python that sends 16 bits: it does the same as that in C++.

    The hook in C++ expects lists that no future made in Python has.
    """

    @wraps(original)
    def _register_builtin_comm_hook(self: Any, kind: Any) -> None:
        is_compression = kind == torch.distributed.BuiltinCommHookType.FP16_COMPRESS
        if self.process_group in ALIVE and is_compression:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            self.register_comm_hook(self.process_group, default_hooks.fp16_compress_hook)
        else:
            original(self, kind)

    return _register_builtin_comm_hook


def _with_shutdown(original: Callable[..., Any]) -> Callable[..., Any]:
    """Shut down groups of mpicoll: older versions of PyTorch shut down NCCL's groups alone."""

    @wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        is_all = group is None or group is torch.distributed.group.WORLD
        # a group that `shrink_group` is creating in the place of another one is not registered yet
        registered = torch.distributed.distributed_c10d._world.pg_map
        ours = [pg for pg in reversed(ALIVE) if pg in registered and (is_all or pg is group)]
        original(group)
        for process_group in ours:
            process_group.shutdown()

    return destroy_process_group
