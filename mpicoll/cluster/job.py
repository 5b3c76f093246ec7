"""Launch commands of Open MPI, MPICH and Intel MPI for the cluster's hosts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ..errors import ArgumentError
from .installation import NAMES, SOURCE_TREE, find

PLACEMENTS = ("node", "round-robin")
#: how MPICH is told to use TCP and nothing else between hosts
NETMODS = {
    "ofi": {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"},
    "ucx": {"MPIR_CVAR_CH4_NETMOD": "ucx", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"},
}
#: the same for Intel MPI. quirk: binds-and-spins
INTEL = {
    "I_MPI_FABRICS": "shm:ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
    "I_MPI_PIN": "0",
    "I_MPI_WAIT_MODE": "1",
}
#: ranks send each other heartbeats, and tell all others whose have ceased: nothing else tells them
#: that a host was cut off. quirk: heartbeat-tells-one, first-message-to-the-lost
DETECTOR = {
    "mpi_ft_detector": "true",
    "mpi_ft_detector_thread": "true",
    "mpi_ft_detector_period": "0.3",
    "mpi_ft_propagator_with_rbcast": "true",
    "mpi_preconnect_mpi": "true",
}
#: the default of OMPI_MCA_mpi_ft_detector_timeout, in seconds: at least, and for each process that
#: shares a core, for which MPI_Init takes longer (measured with 6 of them: 3 s is enough, 1 s is
#: not). quirk: no-heartbeat-in-init
SILENCE = 1.0
SILENCE_PER_PROCESS = 0.5
#: and collectives that notice that ranks died. quirk: han-ignores-deaths
NOTICING = {"coll": "^han"}
#: a file with the topology of the host: where it is set MPICH's hydra writes none, and each rank,
#: where it is unset again, looks for itself. quirk: topology-file
TOPOLOGY = "HWLOC_XMLFILE"


def silence(ranks: int, load: float, cores: int) -> float:
    """Seconds without a heartbeat after which a rank counts as lost.

    load: the number of other processes that compete for the cores.

    >>> silence(4, 0.0, 8), silence(6, 6.0, 2)
    (1.0, 3.0)
    """
    return max(SILENCE, SILENCE_PER_PROCESS * (ranks + load) / cores)


@dataclass
class Job:
    """One way to launch: which MPI and interpreter, how many ranks a host has, and which.

    Parameters
    ----------
    mpi : "openmpi", "mpich" or "intelmpi"
    python : path of an interpreter whose mpi4py uses that MPI. By default this one if it will do,
        else that of a virtual environment `.venv-MPI` in the current directory or the source tree.
    ranks_per_host : int
    placement : "node" fills hosts in order, "round-robin" puts rank r on host r modulo their
    number.
    netmod : of MPICH, "ofi" or "ucx".
    survive : of Open MPI, whether the ranks that live may go on when others die (``--with-ft
    ulfm``).

    Raises
    ------
    ArgumentError
        for a value that cannot be used.
    LaunchError
        where no interpreter has that MPI.
    """

    mpi: str
    python: str | None = None
    ranks_per_host: int = 1
    placement: str = "node"
    netmod: str = "ofi"
    survive: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("mpi", NAMES), ("placement", PLACEMENTS), ("netmod", NETMODS)):
            if getattr(self, name) not in allowed:
                raise ArgumentError(
                    f"{name}: expected {' or '.join(allowed)}, got {getattr(self, name)!r}"
                )
        if self.ranks_per_host < 1:
            raise ArgumentError(f"ranks_per_host: expected 1 or more, got {self.ranks_per_host}")
        if self.survive and self.mpi != "openmpi":  # quirk: death-ends-the-job
            raise ArgumentError(
                f"survive: expected mpi openmpi, got {self.mpi}, which ends the job when a rank"
                " dies"
            )
        self._interpreter, self._mpiexec = find(self.mpi, self.python)

    def environment(self, environ: Mapping[str, str], hosts: int) -> dict[str, str]:
        """The environment of launcher and ranks: one BLAS thread, and a source tree on PYTHONPATH.

        Heartbeats may be as late as it takes beside what the cores of this machine have to do now.
        """
        path = os.pathsep.join(filter(None, [str(SOURCE_TREE or ""), environ.get("PYTHONPATH")]))
        mpich = {TOPOLOGY: os.devnull, **NETMODS[self.netmod]}
        more = {"openmpi": {}, "mpich": mpich, "intelmpi": INTEL}[self.mpi]
        defaults = {"OMP_NUM_THREADS": "1"}
        if self.survive:
            late = silence(hosts * self.ranks_per_host, os.getloadavg()[0], os.cpu_count() or 1)
            settings = DETECTOR | NOTICING | {"mpi_ft_detector_timeout": f"{late:.1f}"}
            defaults |= {f"OMPI_MCA_{name}": value for name, value in settings.items()}
        return {**defaults, **environ, **({"PYTHONPATH": path} if path else {}), **more}

    def command(self, command: Sequence[str], hosts: Sequence[str], agent: str) -> list[str]:
        """The words of the launcher that runs `command`, reaching `hosts` by the script `agent`."""
        program = [self._interpreter, *command[1:]] if command[0] == "python" else list(command)
        ranks = ["-n", str(len(hosts) * self.ranks_per_host)]
        if self.mpi == "openmpi":
            return [self._mpiexec, *self._openmpi(hosts, agent), *ranks, *program]
        unset = ["env", "-u", TOPOLOGY] if self.mpi == "mpich" else []
        return [self._mpiexec, *self._hydra(hosts, agent), *ranks, *unset, *program]

    def _openmpi(self, hosts: Sequence[str], agent: str) -> list[str]:
        # Unbound and yielding: otherwise ranks spin away whole ticks of the scheduler
        # (quirk: binds-and-spins). `sm` only where ranks share a host: no other two see the same
        # memory. And not with heartbeats (quirk: heartbeat-crashes-init).
        settings = {
            "pml": "ob1",
            "btl": "tcp,self,sm" if self.ranks_per_host > 1 and not self.survive else "tcp,self",
            "btl_tcp_if_include": "eth0",
            "mpi_yield_when_idle": "1",
        }
        slots = ",".join(f"{host}:{self.ranks_per_host}" for host in hosts)
        order = "slot" if self.placement == "node" else "node"
        # the login host starts all daemons: hosts have no way into each other, and no agent
        daemons = {
            "plm_ssh_agent": agent,
            "plm_ssh_no_tree_spawn": "1",
            "oob_tcp_if_include": "eth0",
        }
        survive = ["--with-ft", "ulfm"] if self.survive else []
        words = [
            *survive,
            "--allow-run-as-root",
            "--host",
            slots,
            "--map-by",
            f"{order}:oversubscribe",
            "--bind-to",
            "none",
        ]
        for kind, values in (("--prtemca", daemons), ("--mca", settings)):
            words += [word for name, value in values.items() for word in (kind, name, value)]
        return words

    def _hydra(self, hosts: Sequence[str], agent: str) -> list[str]:
        # with one rank a host and turn, it goes round the hosts until all ranks have a place
        each = self.ranks_per_host if self.placement == "node" else 1
        place = ["-hosts", ",".join(hosts), "-ppn", str(each)]
        return ["-launcher", "ssh", "-launcher-exec", agent, "-iface", "eth0", *place]


OPTIONS = tuple(field.name for field in fields(Job) if field.name != "mpi")
