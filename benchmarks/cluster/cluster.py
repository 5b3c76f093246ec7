"""The cluster: made, used, removed."""

import os
import subprocess

from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.units import parse_rate

from . import launch, network
from .namespaces import PATH, Namespaces, entrance, unavailable

AGENT = "/dev/shm/agent"


class Cluster:
    """`hosts` hosts on one machine, each with a link of `rate`: a text such as "500mbit" or "1Gb/s", or None for no limit.

    A context manager: everything is made on entry and gone on exit. ArgumentError where a value cannot be used,
    LaunchError where this machine cannot make a cluster.
    """

    def __init__(self, hosts, rate=None):
        if not 1 <= hosts <= network.MOST_HOSTS:
            raise ArgumentError(f"hosts: expected 1 to {network.MOST_HOSTS}, got {hosts}")
        self.rate = None if rate is None else parse_rate(rate)
        if self.rate and not network.LEAST_RATE <= self.rate <= network.MOST_RATE:
            raise ArgumentError(f"rate: expected 100kbit to 1tbit, got {rate}")
        self.hosts = tuple(f"host{number}" for number in range(hosts))
        self._computers = {}

    @property
    def goodput(self):
        """Bytes per second that TCP can carry over a link in each direction; infinite where it has no limit."""
        return float("inf") if self.rate is None else self.rate / 8 * network.PAYLOAD / network.FRAME

    @property
    def burst(self):
        """Bytes by which a link that was idle may be ahead of its rate: what short runs owe to the shaper."""
        return 0 if self.rate is None else network.burst(self.rate) + network.PACKET

    def __enter__(self):
        reason = unavailable()
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
        for name in self.hosts:
            self._computers[name] = Namespaces(name, inside=login)
        for name in self.hosts:
            self._computers[name].wait()
        self._connect(login, [self._computers[name] for name in self.hosts])
        login.write(AGENT, self._agent())

    def _connect(self, login, hosts):
        """Lay the links, shaped at both ends."""
        lines = [line for host in hosts for line in network.link(host.name, host.pid, self.rate)]
        login.feed("ip", network.switch() + lines)
        for number, host in enumerate(hosts):
            host.feed("ip", network.interface(number))
        if self.rate:
            login.feed("tc", [line for host in hosts for line in network.shape(host.name, self.rate)])
            for host in hosts:
                host.feed("tc", network.shape("eth0", self.rate))

    def _agent(self):
        """A script that launchers take for ssh: `agent [options] HOST COMMAND…`."""
        choices = "".join(f"  {name}) pid={self._computers[name].pid} ;;\n" for name in self.hosts)
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
        counted = network.payload(self._computers["login"].entrance())
        return {name: counted[name] for name in self.hosts}
