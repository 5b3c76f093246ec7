"""The cluster: made, used, removed."""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..errors import ArgumentError, LaunchError
from ..support.units import parse_rate
from . import links, slurm
from .job import OPTIONS, Job
from .namespaces import Namespaces, entrance, unavailable, with_tools
from .slurm import Slurm

AGENT = "/dev/shm/agent"


class Cluster:
    """Virtual hosts, each with a network link. A context manager.

    Parameters
    ----------
    hosts : int
        how many; they are called host0, host1, …
    rate : str, optional
        of each link in both directions at once, in bits per second: "500mbit" or "1Gb/s". None: no
        limit.
    slurm : Slurm, optional
        the hosts are nodes of a SLURM that is started on them.
    sysctl : mapping, optional
        settings of the kernel's network for all hosts, such as
        `{"net.ipv4.tcp_slow_start_after_idle": 0}`.

    Raises
    ------
    ArgumentError
        for a value that cannot be used.
    LaunchError
        on entry, where this machine cannot make a cluster; it says what is missing.

    Examples
    --------
    ::

        with Cluster(hosts=7, rate="500mbit") as cluster:
            cluster.run(["python", "-m", "mpicoll", "info"], mpi="mpich", ranks_per_host=2)
    """

    def __init__(
        self,
        hosts: int,
        rate: str | None = None,
        slurm: Slurm | None = None,
        sysctl: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        if not 1 <= hosts <= links.MOST_HOSTS:
            raise ArgumentError(f"hosts: expected 1 to {links.MOST_HOSTS}, got {hosts}")
        self.rate: float | None = None if rate is None else parse_rate(rate)
        if self.rate and not links.LEAST_RATE <= self.rate <= links.MOST_RATE:
            raise ArgumentError(f"rate: expected 100kbit to 1tbit, got {rate}")
        for name in sysctl:
            if not name.startswith("net."):
                belongs = f"{name} belongs to the whole machine, not to a host"
                raise ArgumentError(f"sysctl: expected a setting of the network, net.…: {belongs}")
        self.sysctl = dict(sysctl)
        self.hosts = tuple(f"host{number}" for number in range(hosts))
        self.slurm = slurm
        self._computers: dict[str, Namespaces] = {}

    @property
    def goodput(self) -> float:
        """TCP goodput of a link in each direction in bytes per second; infinite without a limit."""
        return float("inf") if self.rate is None else links.goodput(self.rate)

    @property
    def burst(self) -> int:
        """Bytes by which an idle link may exceed its rate: the error of short measurements."""
        return 0 if self.rate is None else links.lead(self.rate)

    @property
    def login(self) -> Namespaces:
        """The `Namespaces` of the host that launches."""
        return self._computers["login"]

    def computer(self, host: str) -> Namespaces:
        """The `Namespaces` of a host, by its name."""
        return self._computers[host]

    def __enter__(self) -> "Cluster":
        reason = unavailable() or (self.slurm and slurm.unavailable())
        if reason:
            raise LaunchError(reason)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything; processes still running are killed."""
        for computer in self._computers.values():  # login first, which takes the others along
            computer.close()
        self._computers = {}

    def _make(self) -> None:
        login = self._computers["login"] = Namespaces("login", hosts=links.names(len(self.hosts)))
        login.wait()
        login.feed("ip", links.switch())
        if self.slurm:
            self.slurm.prepare(login, self.hosts)
        self._start(self.hosts)

    def _start(self, names: Sequence[str]) -> None:
        """Make hosts, lay their links, shaped at both ends, and tell launchers of them."""
        login = self.login
        for name in names:
            self._computers[name] = Namespaces(name, inside=login)
        hosts = [self._computers[name] for name in names]
        for host in hosts:
            host.wait()
        number = self.hosts.index
        login.feed(
            "ip",
            [
                line
                for host in hosts
                for line in links.link(host.name, number(host.name), host.pid, self.rate)
            ],
        )
        for host in hosts:
            host.feed("ip", links.interface(number(host.name)))
            for setting, value in self.sysctl.items():
                host.set(setting, value)
        if self.rate:
            login.feed("tc", [line for host in hosts for line in links.shape(host.name, self.rate)])
            for host in hosts:
                host.feed("tc", links.shape("eth0", self.rate))
        login.write(AGENT, self._agent())
        if self.slurm:
            for host in hosts:
                self.slurm.start(host)
            self.slurm.wait(login, names)

    def crash(self, host: str) -> None:
        """A host loses power: its processes, memory and link are gone. `boot` starts it again."""
        self._computers[host].kill()

    def boot(self, host: str) -> None:
        """Start a host that crashed; it comes back empty, under its old name and address."""
        # its end of the link dies with its namespaces, but the kernel may take its time
        self.login.run(["sh", "-c", 'while ip link delete "$0" 2> /dev/null; do :; done', host])
        self._start([host])

    def cut(self, host: str) -> None:
        """Disconnect a host from the network, silently. `mend` connects it again."""
        self.login.feed("ip", [f"link set {host} down"])

    def mend(self, host: str) -> None:
        """Plug in a host that was cut off."""
        self.login.feed("ip", [f"link set {host} up"])

    def _agent(self) -> str:
        """A script that launchers take for ssh: `agent [options] HOST COMMAND…`."""
        computers = [self._computers[name] for name in self.hosts]
        choices = "".join(f"  {computer.name}) pid={computer.pid} ;;\n" for computer in computers)
        return (
            "#!/bin/sh\n"
            "while case $1 in -*) shift ;; *) false ;; esac; do :; done\n"
            f'case $1 in\n{choices}  *) echo "no such host: $1" >&2; exit 255 ;;\nesac\n'
            "shift\n"
            f'exec {" ".join(entrance("$pid"))} sh -c "$*"\n'
        )

    def enter(
        self, host: str, command: Iterable[object], cwd: str | os.PathLike[str] | None = None
    ) -> list[str]:
        """The arguments of `subprocess` functions that run `command` on a host, by name or "login".

        cwd: by default the current directory.

        For the functions of `subprocess`. When the process started so is killed, so is the command.
        """
        there = ["sh", "-c", 'cd "$0" && exec "$@"', os.path.abspath(cwd or os.curdir)]
        return [*self._computers[host].entrance(), *there, *map(str, command)]

    def call(
        self,
        command: Iterable[object],
        host: str = "login",
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command once, with what SLURM's commands need.

        Parameters
        ----------
        command : sequence of words
        host : its name, or "login"
        cwd, env : by default those of this process
        **options : those of `subprocess.run`

        Returns
        -------
        subprocess.CompletedProcess
        """
        settings = dict(os.environ if env is None else env)
        settings["PATH"] = with_tools(settings)
        if self.slurm:
            settings["SLURM_CONF"] = slurm.CONF
            settings["PATH"] += f":{slurm.COMMANDS}"
        return subprocess.run(self.enter(host, command, cwd), env=settings, **options)

    def run(
        self,
        command: Sequence[str],
        mpi: str = "openmpi",
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command on all ranks.

        Parameters
        ----------
        command : sequence of words
            a leading `python` means the interpreter of that MPI.
        mpi : "openmpi", "mpich" or "intelmpi"
        cwd, env : by default those of this process
        **options : those of `Job` say how it is launched, all others go to `subprocess.run`

        Returns
        -------
        subprocess.CompletedProcess

        Raises
        ------
        ArgumentError, LaunchError
            as `Job` does.
        """
        named = {name: options.pop(name) for name in OPTIONS if name in options}
        job = Job(mpi, **named)
        environ = job.environment(os.environ if env is None else env, len(self.hosts))
        settings = {**environ, "PATH": with_tools(environ), "TMPDIR": "/dev/shm"}
        words = job.command(command, self.hosts, AGENT)
        return subprocess.run(self.enter("login", words, cwd), env=settings, **options)

    def traffic(self) -> dict[str, int]:
        """Bytes of TCP payload that each host has sent over its link so far, by name.

        What the launcher and its daemons tell `login` counts too, so measure many calls, and as a
        difference.
        """
        counted = links.payload(self.login.entrance())
        return {name: counted[name] for name in self.hosts}
