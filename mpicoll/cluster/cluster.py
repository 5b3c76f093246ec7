"""The cluster: made, used, removed."""

import os
import subprocess

from ..errors import ArgumentError, LaunchError
from ..support.units import parse_rate
from . import launch, network, slurm
from .namespaces import PATH, Namespaces, entrance, unavailable

AGENT = "/dev/shm/agent"


class Cluster:
    """`hosts` hosts on one machine, each with a link of `rate`: a text such as "500mbit" or "1Gb/s", or None for no limit.

    slurm: a `Slurm`, and the hosts are its nodes. A context manager: everything is made on entry and gone on exit.
    ArgumentError where a value cannot be used, LaunchError where this machine cannot make a cluster.
    """

    def __init__(self, hosts, rate=None, slurm=None):
        if not 1 <= hosts <= network.MOST_HOSTS:
            raise ArgumentError(f"hosts: expected 1 to {network.MOST_HOSTS}, got {hosts}")
        self.rate = None if rate is None else parse_rate(rate)
        if self.rate and not network.LEAST_RATE <= self.rate <= network.MOST_RATE:
            raise ArgumentError(f"rate: expected 100kbit to 1tbit, got {rate}")
        self.hosts = tuple(f"host{number}" for number in range(hosts))
        self.slurm = slurm
        self._computers = {}

    @property
    def goodput(self):
        """Bytes per second that TCP can carry over a link in each direction; infinite where it has no limit."""
        return float("inf") if self.rate is None else self.rate / 8 * network.PAYLOAD / network.FRAME

    @property
    def burst(self):
        """Bytes by which a link that was idle may be ahead of its rate: what short runs owe to the shaper."""
        return 0 if self.rate is None else network.burst(self.rate) + network.PACKET

    @property
    def login(self):
        """The `Namespaces` of the host that launches."""
        return self._computers["login"]

    def __enter__(self):
        reason = unavailable() or (self.slurm and slurm.unavailable())
        if reason:
            raise LaunchError(reason)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Remove everything; processes still running are killed."""
        for computer in self._computers.values():  # login first, which takes the others along
            computer.close()
        self._computers = {}

    def _make(self):
        login = self._computers["login"] = Namespaces("login", hosts=network.names(len(self.hosts)))
        login.wait()
        login.feed("ip", network.switch())
        if self.slurm:
            self.slurm.prepare(login, self.hosts)
        self._start(self.hosts)

    def _start(self, names):
        """Make hosts, lay their links, shaped at both ends, and tell launchers of them."""
        login = self.login
        for name in names:
            self._computers[name] = Namespaces(name, inside=login)
        hosts = [self._computers[name] for name in names]
        for host in hosts:
            host.wait()
        number = self.hosts.index
        login.feed("ip", [line for host in hosts for line in network.link(host.name, number(host.name), host.pid, self.rate)])
        for host in hosts:
            host.feed("ip", network.interface(number(host.name)))
        if self.rate:
            login.feed("tc", [line for host in hosts for line in network.shape(host.name, self.rate)])
            for host in hosts:
                host.feed("tc", network.shape("eth0", self.rate))
        login.write(AGENT, self._agent())
        if self.slurm:
            for host in hosts:
                self.slurm.start(host)
            self.slurm.wait(login, names)

    def crash(self, host):
        """A host loses power: its processes, memory and link are gone. `boot` starts it again."""
        self._computers[host].kill()

    def boot(self, host):
        """Start a host that crashed; it comes back empty, under its old name and address."""
        # its end of the link dies with its namespaces, but the kernel may take its time
        self.login.run(["sh", "-c", 'while ip link delete "$0" 2> /dev/null; do :; done', host])
        self._start([host])

    def cut(self, host):
        """Unplug a host from the network; nobody is told. `mend` plugs it in again."""
        self.login.feed("ip", [f"link set {host} down"])

    def mend(self, host):
        """Plug in a host that was cut off."""
        self.login.feed("ip", [f"link set {host} up"])

    def _agent(self):
        """A script that launchers take for ssh: `agent [options] HOST COMMAND…`."""
        computers = [self._computers[name] for name in self.hosts]
        choices = "".join(f"  {computer.name}) pid={computer.pid} ;;\n" for computer in computers)
        return (
            "#!/bin/sh\n"
            'while case $1 in -*) shift ;; *) false ;; esac; do :; done\n'
            f'case $1 in\n{choices}  *) echo "no such host: $1" >&2; exit 255 ;;\nesac\n'
            "shift\n"
            f'exec {" ".join(entrance("$pid"))} sh -c "$*"\n'
        )

    def enter(self, host, command, cwd=None):
        """The words that run `command` on a host (by name, or "login") in a directory, by default the current one.

        For the functions of `subprocess`. When the process started so is killed, so is the command.
        """
        there = ["sh", "-c", 'cd "$0" && exec "$@"', os.path.abspath(cwd or os.curdir)]
        return [*self._computers[host].entrance(), *there, *map(str, command)]

    def call(self, command, host="login", *, cwd=None, env=None, **options):
        """Run a command once, on `login` or a host, with what SLURM's commands need; returns a subprocess.CompletedProcess.

        Other options go to `subprocess.run`. env: os.environ by default.
        """
        more = {"SLURM_CONF": slurm.CONF, "PATH": f"{PATH}:{slurm.COMMANDS}"} if self.slurm else {"PATH": PATH}
        settings = {**(os.environ if env is None else env), **more}
        return subprocess.run(self.enter(host, command, cwd), env=settings, **options)

    def run(self, command, mpi="openmpi", *, cwd=None, env=None, **options):
        """Run a command on all ranks; returns a subprocess.CompletedProcess.

        Options of `launch.Job` (ranks_per_host, placement, netmod, python) say how it is launched, all others go to
        `subprocess.run`. A leading word `python` means the interpreter of that MPI. env: os.environ by default.
        """
        named = {name: options.pop(name) for name in launch.OPTIONS if name in options}
        job = launch.Job(mpi, **named)
        settings = {**job.environment(os.environ if env is None else env), "PATH": PATH, "TMPDIR": "/dev/shm"}
        words = job.command(command, self.hosts, AGENT)
        return subprocess.run(self.enter("login", words, cwd), env=settings, **options)

    def traffic(self):
        """Bytes of TCP payload that each host has sent over its link so far, by name.

        What the launcher and its daemons tell `login` counts too, so measure many calls, and as a difference.
        """
        counted = network.payload(self.login.entrance())
        return {name: counted[name] for name in self.hosts}
