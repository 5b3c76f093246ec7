"""A virtual cluster on one Linux machine: hosts with links of a chosen rate, for MPI jobs.

    mpicoll cluster --hosts 7 --rate 500mbit --mpi openmpi -- python -m mpicoll bench --sizes 64K

or, from Python:

    with Cluster(hosts=7, rate="500mbit") as cluster:
        cluster.run(["python", "-m", "mpicoll", "info"], mpi="mpich", ranks_per_host=2)

It needs root, util-linux and iproute2. Each host has its own name, address, link, processes, System
V and POSIX shared memory, and TMPDIR, so ranks of two hosts can only meet over the network; the
command is launched from one more host, `login`, whose link has no limit. Files are the machine's
own, so a command finds its program and leaves its results where it would without the cluster: only
/dev/shm (with TMPDIR in it) is private to a host, and /etc/hosts to the cluster. There is no way
out to other networks.

All of it lives in namespaces under one process, which ends when the pipe from its owner closes.
However the owner goes, even by kill -9, the kernel then removes processes, links and mounts, and as
nothing ever had a name outside, clusters may run side by side and no setting of the machine is
touched.
"""

from .cluster import Cluster
from .console import Console
from .installation import NAMES
from .job import NETMODS, OPTIONS, PLACEMENTS, Job
from .links import goodput, lead
from .slurm import Slurm

__all__ = [
    "NAMES",
    "NETMODS",
    "OPTIONS",
    "PLACEMENTS",
    "Cluster",
    "Console",
    "Job",
    "Slurm",
    "goodput",
    "lead",
]
