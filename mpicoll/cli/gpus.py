"""What `mpicoll info` reports about GPUs: devices, their ranks, and how device memory is sent."""

from collections.abc import Iterator
from typing import Any

from ..support.checks import ranks_text
from ..support.units import many
from .screen import folded

#: of a host, as its lowest rank sees it
_OF_A_HOST = (
    "problem",
    "driver",
    "cuda_driver",
    "cuda_runtime",
    "cupy",
    "nccl",
    "cuda_aware",
    "cuda_aware_by",
    "gpu_mode",
    "gpu_mode_because",
    "trial",
)


def gather(comm: Any, trial: bool) -> list[dict[str, Any]]:
    """The facts of each host, ordered by their lowest ranks, the same on all ranks. Collective.

    trial: whether one rank of each host first lets a job of its own try device pointers.
    """
    from mpi4py import MPI

    from ..gpu import cuda_awareness, gpu_mode_and_why, trials
    from ..support.gpus import facts, place_among

    result = trials(comm)[comm.Get_rank()]._asdict() if trial else None
    place = place_among(comm)
    own_facts = facts()
    aware, how = cuda_awareness()
    mode, why = gpu_mode_and_why()
    seen = own_facts["devices"]
    own_facts |= {
        "host": MPI.Get_processor_name(),
        "uses": seen[place % len(seen)]["uuid"] if seen else None,
        "trial": result,
        "cuda_aware": aware,
        "cuda_aware_by": how,
        "gpu_mode": mode,
        "gpu_mode_because": why,
    }
    return merge(comm.allgather(own_facts))


def merge(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts of hosts from those of ranks, which may each see other devices."""
    hosts: dict[str, dict[str, Any]] = {}
    for rank, seen in enumerate(ranks):
        facts = {
            "host": seen["host"],
            **{name: seen[name] for name in _OF_A_HOST},
            "devices": [],
            "ranks": 0,
        }
        host = hosts.setdefault(seen["host"], facts)
        host["ranks"] += 1
        known = {device["uuid"]: device for device in host["devices"]}
        for device in seen["devices"]:
            known.setdefault(device["uuid"], {**device, "ranks": []})
        if seen["uses"]:
            known[seen["uses"]]["ranks"].append(rank)
        host["devices"] = list(known.values())
    return list(hosts.values())


def describe(hosts: list[dict[str, Any]]) -> Iterator[str]:
    """The facts as text; facts that are equal on all hosts are printed once."""
    yield from _said("CUDA-aware", hosts, _awareness)
    yield from _said(
        "device memory", hosts, lambda host: f"{host['gpu_mode']}: {host['gpu_mode_because']}"
    )
    yield from _said("trial", hosts, _trial)
    yield from _said("GPU software", hosts, _software)
    yield from _said("GPUs", hosts, lambda host: host["problem"] and f"none: {host['problem']}")
    for host in hosts:
        for device in host["devices"]:
            users = f"for {ranks_text(device['ranks'])}" if device["ranks"] else "for nobody"
            yield (
                f"  {host['host']}: {device['name']}, {device['bytes'] / 2**30:.1f} GiB,"
                f" {device['uuid']}, {users}"
            )


def _said(name: str, hosts: list[dict[str, Any]], about: Any) -> Iterator[str]:
    """One line where all hosts are alike, else one for each of them."""
    texts = [about(host) for host in hosts]
    alike = len(set(texts)) == 1
    for host, text in list(zip(hosts, texts))[: 1 if alike else None]:
        if text:
            yield folded(f"{'' if alike else host['host'] + ': '}{text}", f"{name:<15} ", " " * 16)


def _awareness(host: dict[str, Any]) -> str:
    return (
        f"{ {True: 'yes', False: 'no', None: 'unknown'}[host['cuda_aware']]}"
        f" ({host['cuda_aware_by']})"
    )


def _trial(host: dict[str, Any]) -> str:
    if not host["trial"] or host["problem"]:
        return ""
    return ("passed: " if host["trial"]["passed"] else "failed: ") + str(host["trial"]["said"])


def _software(host: dict[str, Any]) -> str:
    names = {
        "driver": "driver",
        "cuda_driver": "for CUDA",
        "cuda_runtime": "CUDA runtime",
        "cupy": "CuPy",
        "nccl": "NCCL",
    }
    return ", ".join(f"{text} {host[name]}" for name, text in names.items() if host[name])


def warnings(hosts: list[dict[str, Any]]) -> Iterator[str]:
    """What is allowed, and slow or suspicious."""
    for host in hosts:
        count = len(host["devices"])
        if 0 < count < host["ranks"]:
            yield (
                f"{host['host']} has {host['ranks']} ranks on {many(count, 'GPU')}: they share, and"
                " wait for each other"
            )
        if host["cuda_aware"] and host["trial"] and host["devices"] and not host["trial"]["passed"]:
            yield f"{host['host']}: MPI says that it takes device pointers, but the trial failed"
