"""NCCL's communicator beside an MPI one: all ranks make it together, or all learn why not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from mpi4py import MPI

from ..errors import MpicollError
from ..execute import Context, everyone_says
from ..support.checks import groups, ranks_text
from ..support.gpus import nccl_text

#: the first NCCL that can put two ranks on one GPU, and the variable that allows it
SHARES_GPUS = 23000
SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
#: the first NCCL with bfloat16
HAS_BFLOAT16 = 21000
#: characters of what a rank may say is missing
_SHORT = 250
#: the number that NCCL's ranks find each other by: bytes since CuPy 14, signed integers before
UniqueId = bytes | tuple[int, ...]


def missing(cupy: ModuleType) -> str:
    """Why there is no NCCL in this process; empty where there is."""
    try:
        if import_module("cupy.cuda.nccl").available:
            return ""
    except ImportError:
        pass
    return (
        "CuPy finds no NCCL: install nvidia-nccl-cu12 or nvidia-nccl-cu13, for the CUDA of CuPy"
    )


class NcclComm:
    """NCCL's communicator on one device of this rank, and the stream that its calls run on."""

    def __init__(self, context: Context, cupy: Any) -> None:
        self.context = context
        #: why there is no communicator, the same on all ranks; empty where there is
        self.refusal = "not made yet"
        #: NCCL's, the same on all ranks
        self.version = 0
        self._cuda = cupy.cuda
        self._device = cupy.cuda.runtime.getDevice()
        self._missing = missing(cupy)
        self._nccl: Any = None if self._missing else import_module("cupy.cuda.nccl")
        self._comm: Any = None

    @property
    def device(self) -> Any:
        """A new object each time: each remembers the device that was current before."""
        return self._cuda.Device(self._device)

    # Making it.

    def make(self) -> Iterator[MPI.Request]:
        """Requests to be awaited. Collective; an obstacle of one rank is the `refusal` of all."""
        context = self.context
        numbers = context.next_call(), context.next_call()
        texts = yield from everyone_says(context, self._introduction(), numbers[0])
        said = [json.loads(text) for text in texts]
        self.refusal = _obstacle(said)
        self.version = said[0]["version"]
        if not self.refusal:
            error = self._open(_from_json(said[0]["id"]))
            errors = yield from everyone_says(context, error, numbers[1])
            failed = [f"rank {rank}: {text}" for rank, text in enumerate(errors) if text]
            self.refusal = failed[0] if failed else ""

    def _introduction(self) -> str:
        """What the other ranks must know of this rank."""
        said: dict[str, Any] = {
            "missing": self._missing, "gpu": "", "version": 0, "shares": False, "id": "",
        }  # fmt: skip
        try:
            if not self._missing:
                said |= self._here()
        except RuntimeError as error:  # CuPy's errors of CUDA and of NCCL
            said["missing"] = str(error)[:_SHORT]
        return json.dumps(said, separators=(",", ":"))

    def _here(self) -> dict[str, Any]:
        version = self._nccl.get_version()
        runtime = self._cuda.runtime
        # both: CuPy cuts a UUID at its first zero byte, and parts of a GPU have one bus address
        uuid = runtime.getDeviceProperties(self._device).get("uuid", b"")
        gpu = f"{uuid.hex()} {runtime.deviceGetPCIBusId(self._device)}"
        is_first = self.context.channel.rank == 0
        return {
            "gpu": gpu,
            "version": version,
            "shares": version >= SHARES_GPUS and os.environ.get(SHARING) == "1",
            "id": _for_json(self._nccl.get_unique_id()) if is_first else "",
        }

    def _open(self, unique: UniqueId) -> str:
        """Make NCCL's communicator; returns the error, or ""."""
        channel = self.context.channel
        try:
            with self.device:
                self._comm = self._nccl.NcclCommunicator(len(channel.ranks), unique, channel.rank)
                self.stream = self._cuda.Stream(non_blocking=True)
        except RuntimeError as error:
            return str(error)[:_SHORT]
        return ""

    # Using it.

    def launch(
        self, work: Callable[[Any, int], object], callers: Callable[[], Iterable[Any]]
    ) -> Any:
        """Enqueue work(NCCL's communicator, stream) behind the callers' streams; returns an event.

        The event is the end of the work.
        """
        with self.device:
            if self._comm is None:
                freed = RuntimeError("a call of NCCL's whose communicator was freed")
                raise self.context.queue.error or freed  # another rank may have given it up
            streams = {stream.ptr: stream for stream in callers()}
            with self.stream:
                for stream in streams.values():
                    self.stream.wait_event(self._event(stream))
                try:
                    work(self._comm, self.stream.ptr)
                except RuntimeError as error:
                    raise self._failed(error) from error
            return self._event(self.stream)

    def _event(self, stream: Any) -> Any:
        event = self._cuda.Event(disable_timing=True)
        event.record(stream)
        return event

    def check(self) -> None:
        """Raise MpicollError where NCCL has met an error, or was ended, since."""
        if self._comm is None:
            freed = MpicollError("NCCL's communicator was freed while a call was under way")
            raise self.context.queue.error or freed
        try:
            self._comm.check_async_error()
        except RuntimeError as error:
            raise self._failed(error) from error

    def _failed(self, error: RuntimeError) -> MpicollError:
        rank = self.context.channel.rank
        return self.context.in_disorder(
            MpicollError(
                f"rank {rank}: NCCL failed: {error}; NCCL_DEBUG=WARN in the environment makes it "
                "say more"
            )
        )

    def abort(self) -> None:
        """End what is under way: its kernels would wait for other ranks for ever."""
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.abort()

    def close(self) -> None:
        """Free it. All ranks of a node do."""
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.destroy()


def _for_json(unique: UniqueId) -> str | tuple[int, ...]:
    return unique.hex() if isinstance(unique, bytes) else unique


def _from_json(value: str | list[int]) -> UniqueId:
    return bytes.fromhex(value) if isinstance(value, str) else tuple(value)


def _obstacle(said: Sequence[dict[str, Any]]) -> str:
    """Why NCCL cannot serve these ranks, from their introductions; empty where it can."""
    for rank, facts in enumerate(said):
        if facts["missing"]:
            return f"rank {rank}: {facts['missing']}"
    versions = groups([facts["version"] for facts in said])
    if len(versions) > 1:
        texts = [f"{ranks_text(ranks)}: {nccl_text(version)}" for version, ranks in versions]
        return (
            f"ranks have different versions of NCCL ({'; '.join(texts)}): install the same on all "
            "nodes"
        )
    gpus = groups([facts["gpu"] for facts in said])
    together = next((ranks for _, ranks in gpus if len(ranks) > 1), [])
    if not together or all(said[rank]["shares"] for rank in together):
        return ""
    version: int = said[0]["version"]
    allowed = f", or set {SHARING}=1 on all ranks" if version >= SHARES_GPUS else ""
    return (
        f"{ranks_text(together)} are on one GPU, which NCCL {nccl_text(version)} refuses: start "
        "one rank per GPU and give each its own, with CUDA_VISIBLE_DEVICES or "
        f"cupy.cuda.Device(local_rank).use(){allowed}"
    )
