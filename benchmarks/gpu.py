"""Allreduce of arrays in GPU memory: ours, by hand, NCCL's, and the machine's copies, in one run.

    mpiexec -n 2 python -m benchmarks.gpu --json benchmarks/results/gpu-mpich-2.json

`staged`: through host memory. `direct`: device pointers go to MPI, where MPICOLL_GPU says so. `by
hand`: as a good user writes it: pinned memory, one copy down, MPI_Allreduce, one copy up; float16,
which MPI has not, as float32. `nccl`: where it can serve. `host`: the same call on arrays in host
memory. Candidates alternate in shuffled order; each call's input is new and each result is looked
at; times are the maximum over ranks, and end when the result is in device memory.
"""

import argparse
import json
import os
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator, MpicollError, install_abort_hook
from mpicoll.bench import Workload
from mpicoll.cli.options import parse_sizes
from mpicoll.gpu import gpu_mode
from mpicoll.measure import alternate, collect, how_often, measured_on, statistics
from mpicoll.support.arrays import synchronize
from mpicoll.support.gpus import DEVICES, device_module
from mpicoll.support.units import format_bytes

DTYPES = ("float32", "float16")
#: bytes of the copies that show what the machine can do
COPIES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)


def main(arguments=None):
    """Measure, print, write."""
    options = _options(arguments)
    install_abort_hook()
    comm = Communicator(MPI.COMM_WORLD)
    module = device_module(options.device, comm)
    facts = measured_on(comm) | devices(comm, module)
    sizes = parse_sizes(options.sizes, 4)
    document = {
        "schema": 1,
        "environment": facts,
        "limits": limits(comm, module, sizes[-1]),
        "results": [],
        "left_out": {},
    }
    for dtype in DTYPES:
        for nbytes in sizes:
            rows, document["left_out"] = compare(
                comm, module, np.dtype(dtype), nbytes, options.min_time
            )
            document["results"] += rows
            if comm.rank == 0:
                print(*map(_line, rows), sep="\n", flush=True)
    if comm.rank == 0:
        print(
            *(f"not {name}: {reason}" for name, reason in document["left_out"].items()),
            sep="\n",
            flush=True,
        )
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)


def _options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--device",
        default="cuda",
        choices=DEVICES,
        help="cuda (default): GPU = local rank modulo their number; cpu: a trial",
    )
    add(
        "--sizes",
        default="4K:1G",
        help="bytes of the vector, each four times the one before (default 4K:1G)",
    )
    add("--min-time", type=float, default=2.0, help="seconds per size (default 2)")
    add("--json")
    return parser.parse_args(arguments)


def devices(comm, module):
    """What a figure on devices is worth nothing without."""
    if module is np:
        return {"devices": []}
    runtime = module.cuda.runtime
    number = runtime.getDevice()
    name = runtime.getDeviceProperties(number)["name"].decode()
    mine = {"rank": comm.rank, "host": MPI.Get_processor_name(), "device": number, "name": name}
    return {
        "cupy": module.__version__,
        "cuda_driver": runtime.driverGetVersion(),
        "cuda_runtime": runtime.runtimeGetVersion(),
        "devices": comm.allgather(mine),
    }


# ---- the candidates


class Ours:
    """Our call. On a communicator of its own, so that no plan of another mode serves it."""

    def __init__(self, case, mode, algorithm=None):
        self.comm = case.comm.Dup()
        self.case = case
        self.mode = mode
        self.algorithm = algorithm

    def __call__(self):
        self.comm.Allreduce(*self.case.arguments, algorithm=self.algorithm)
        synchronize(self.case.module)

    def close(self):
        self.comm.Free()


class Hand:
    """What one writes without mpicoll: a copy down, MPI_Allreduce, a copy up."""

    mode = "staged"

    def __init__(self, case):
        self.comm = MPI.Intracomm(case.comm)
        self.case = case
        self.module = case.module
        self.dtype = np.dtype(np.float32) if case.dtype == np.float16 else case.dtype
        self.host = pinned(self.module, case.count * self.dtype.itemsize).view(self.dtype)

    def __call__(self):
        data = self.case.memory
        wide = data if data.dtype == self.dtype else data.astype(self.dtype)
        copy(self.module, self.host, wide)
        self.comm.Allreduce(MPI.IN_PLACE, self.host)
        copy(self.module, wide, self.host)
        if wide is not data:
            data[...] = wide
            synchronize(self.module)

    def close(self):
        pass


def refusal(candidate):
    """Why this call cannot be made; "" where it can. Collective."""
    error = ""
    candidate.case.prepare(poison=True)
    try:
        candidate()
    except MpicollError as reason:
        error = str(reason)
    return next(filter(None, candidate.case.comm.allgather(error)), "")


@contextmanager
def mode_kept():
    """MPICOLL_GPU is afterwards what it was."""
    before = os.environ.get("MPICOLL_GPU")
    try:
        yield
    finally:
        os.environ.pop("MPICOLL_GPU", None)
        if before is not None:
            os.environ["MPICOLL_GPU"] = before


# ---- measuring


def compare(comm, module, dtype, nbytes, seconds):
    """(a row for each candidate at one size, {name: why it was left out}). Collective."""
    own = comm.Dup()
    direct = gpu_mode() == "direct"
    left_out = {}
    device, host = (
        Workload(own, "allreduce", nbytes // dtype.itemsize, dtype, in_place=True, module=one)
        for one in (module, np)
    )
    calls = {
        "staged": Ours(device, "staged"),
        "by hand": Hand(device),
        "host": Ours(host, "staged"),
        "nccl": Ours(device, "staged", "nccl"),
    }
    if direct:
        calls["direct"] = Ours(device, "direct")
    else:
        left_out["direct"] = "MPI is not known to take device pointers (mpicoll info says more)"
    with mode_kept():
        for name, call in calls.items():
            os.environ["MPICOLL_GPU"] = call.mode
            if reason := refusal(call):
                left_out[name] = reason
        times, wrong = _measured(
            own, {name: call for name, call in calls.items() if name not in left_out}, seconds
        )
    for call in calls.values():
        call.close()
    own.Free()
    return [
        {
            "dtype": dtype.name,
            "bytes": device.nbytes,
            "name": name,
            **statistics(times[name]),
            "wrong": int(count),
            "repeats": len(times[name]),
        }
        for name, count in zip(times, wrong)
    ], left_out


def _measured(comm, calls, seconds):
    """Times, and how many elements were wrong; every call has new input, and its result is looked
    at.
    """
    wrong = dict.fromkeys(calls, 0)

    def before(name, repetition):
        os.environ["MPICOLL_GPU"] = calls[name].mode
        calls[name].case.prepare(poison=True)

    def after(name, repetition):
        wrong[name] += calls[name].case.wrong()

    trial = alternate(comm, calls, 2, before, after)
    times = alternate(
        comm,
        calls,
        how_often({name: one[1] for name, one in trial.items()}, seconds),
        before,
        after,
    )
    counts = np.array(list(wrong.values()))
    collect(comm, counts, MPI.SUM)
    return times, counts


# ---- what the machine can do


def limits(comm, module, largest):
    """GB/s of plain copies, of all ranks at once: down, up, both at a time, within the device;
    pinned memory. Collective.
    """
    return (
        []
        if module is np
        else [_copies(comm, module, nbytes) for nbytes in COPIES if nbytes <= largest]
    )


def _copies(comm, module, nbytes):
    device = module.empty(nbytes, np.uint8)
    other = module.empty(nbytes, np.uint8)
    here = pinned(module, nbytes)
    there = pinned(module, nbytes)
    streams = [module.cuda.Stream(non_blocking=True) for _ in range(2)]

    def both():
        for stream, target, source in zip(streams, (here, other), (device, there)):
            start_copy(module, target, source, stream)
        for stream in streams:
            stream.synchronize()

    ways = {
        "down": lambda: copy(module, here, device),
        "up": lambda: copy(module, other, there),
        "both": both,
        "within": lambda: copy(module, other, device),
    }
    times = alternate(comm, ways, 10)
    return {
        "bytes": nbytes,
        **{way: round(nbytes / float(np.median(one)) / 1e9, 3) for way, one in times.items()},
    }


def pinned(module, nbytes):
    """Bytes of host memory, page-locked where there is a device."""
    if module is np:
        return np.empty(nbytes, np.uint8)
    return np.frombuffer(module.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def start_copy(module, target, source, stream):
    """Begin a copy between host and device, or within the device."""
    runtime = module.cuda.runtime
    runtime.memcpyAsync(
        _address(target), _address(source), source.nbytes, runtime.memcpyDefault, stream.ptr
    )


def copy(module, target, source):
    """Copy, and wait for it."""
    if module is np:
        np.copyto(target, source)
    else:
        start_copy(module, target, source, module.cuda.get_current_stream())
        synchronize(module)


def _address(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def _line(row):
    times = f"{row['median_us']:12.1f} us (least {row['min_us']:.1f})"
    return (
        f"{row['dtype']:>8} {format_bytes(row['bytes']):>6} {row['name']:>8} {times} wrong"
        f" {row['wrong']} n {row['repeats']}"
    )


if __name__ == "__main__":
    main()
