"""PyTorch's gloo as a peer: its collectives on NumPy arrays, on an MPI communicator's ranks.

    with Gloo(comm) as gloo:
        gloo.allreduce(vector)

gloo makes TCP connections of its own; MPI only tells the ranks where to meet. It has no
reduce_scatter of its own: PyTorch 2 makes an allreduce and takes the part of the rank
(pytorch/pytorch pull request 118911).
"""

import fcntl
import os
import socket
import struct
from contextlib import contextmanager

from mpicoll.errors import ArgumentError
from mpicoll.measure import nodes

VARIABLE = "GLOO_SOCKET_IFNAME"
#: Linux's request for the IPv4 address of a network interface, and where in its answer the four
#: bytes are
_SIOCGIFADDR = 0x8915
_ADDRESS = slice(20, 24)


class Gloo:
    """PyTorch's default process group with gloo on the ranks of `comm`. Collective; one at a time
    in a process.

    interface: name of the network interface that carries the traffic; by default GLOO_SOCKET_IFNAME
    where it is set, otherwise the loopback where all ranks are on one node and the first other
    interface with an address elsewhere. Arrays are contiguous, of an element type that PyTorch has,
    and nothing is copied. Raises ArgumentError where PyTorch is missing or there is no such
    interface.
    """

    def __init__(self, comm, interface=None):
        self.tensor, self.distributed = _pytorch()
        if self.distributed.is_initialized():
            raise ArgumentError(
                "expected no process group of PyTorch in this process, there is one: close it first"
            )
        self.comm = comm
        self.interface = interface or os.environ.get(VARIABLE) or _interface(len(nodes(comm)))
        with _environment(VARIABLE, self.interface):  # read while the group is made
            self.distributed.init_process_group(
                "gloo", store=self._store(), rank=comm.Get_rank(), world_size=comm.Get_size()
            )

    def _store(self):
        """Where the ranks find each other: served by rank 0, on a port that is free there."""
        server = None
        size = self.comm.Get_size()
        own = address(self.interface)
        if self.comm.Get_rank() == 0:
            server = self.distributed.TCPStore(own, 0, size, is_master=True, wait_for_workers=False)
        place = self.comm.bcast((own, server.port) if server else None)
        return server or self.distributed.TCPStore(*place, size, is_master=False)

    def allreduce(self, array):
        """Sum over all ranks, in place."""
        self.distributed.all_reduce(self.tensor(array))

    def bcast(self, array, root=0):
        """The root's array, on all ranks."""
        self.distributed.broadcast(self.tensor(array), root)

    def allgather(self, part, whole):
        """Every rank's part, in the order of ranks; whole has as many elements as all parts."""
        self._find("all_gather_single", "all_gather_into_tensor")(
            self.tensor(whole), self.tensor(part)
        )

    def reduce_scatter(self, whole, part):
        """The sum of this rank's part of the whole; part has a share of the whole's elements."""
        self._find("reduce_scatter_single", "reduce_scatter_tensor")(
            self.tensor(part), self.tensor(whole)
        )

    def close(self):
        """End the group, once all ranks are through. Collective."""
        # a rank that closes its connections early is an error to those that still use them
        self.comm.Barrier()
        self.distributed.destroy_process_group()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        else:  # the other ranks may never come
            self.distributed.destroy_process_group()

    def _find(self, *names):
        """PyTorch's function, under the first of its names, newest first, that this version has."""
        return getattr(
            self.distributed, next(name for name in names if hasattr(self.distributed, name))
        )


def on_gloo(name):
    """The name of what a way to train is compared with: "DDP, mpicoll" with "DDP, gloo"."""
    return f"{name.rpartition(', ')[0]}, gloo"


@contextmanager
def _environment(name, value):
    """An environment variable has this value inside."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _pytorch():
    """(from_numpy, torch.distributed), loaded only when it is needed, for that takes seconds.
    Raises ArgumentError.
    """
    # it warns wherever the address of a rank has no name, as on the hosts of mpicoll's cluster
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        from torch import distributed, from_numpy
    except ImportError:
        raise ArgumentError(
            'gloo is part of PyTorch; install it with: pip install "mpicoll[torch]"'
        ) from None
    return from_numpy, distributed


def address(interface):
    """The IPv4 address of a network interface. Raises ArgumentError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        except OSError as error:
            raise ArgumentError(
                f"network interface {interface!r} has no IPv4 address ({error.strerror}); there"
                f" are: {', '.join(name for _, name in socket.if_nameindex())}"
            ) from None
    return socket.inet_ntoa(answer[_ADDRESS])


def _interface(count):
    """The interface to use by default for ranks on `count` nodes."""
    if count == 1:
        return "lo"
    names = [name for _, name in socket.if_nameindex()]
    found = next((name for name in names if name != "lo" and _has_address(name)), None)
    if not found:
        raise ArgumentError(
            "expected a network interface with an IPv4 address besides the loopback; there are: "
            f"{', '.join(names)}"
        )
    return found


def _has_address(interface):
    try:
        return bool(address(interface))
    except ArgumentError:
        return False
