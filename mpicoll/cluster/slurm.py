"""SLURM on a cluster: munged and slurmctld on `login`, a slurmd and a private /tmp per host.

Everything SLURM writes is below /run, which is memory that login and hosts share and that ends with
them.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ArgumentError, LaunchError
from .installation import HOME
from .links import LOGIN, SUBNET, address
from .namespaces import Namespaces, missing

CONF = "/run/slurm/slurm.conf"
#: a directory on the PATH of commands on the cluster
COMMANDS = "/run/bin"
#: programs, and the Debian package that has them
PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
#: seconds after which slurmctld gives up a silent slurmd; and that a requeued job waits, as long as
#: its old credentials live (with less than 20 what is left of its old steps, on a host that was cut
#: off, ended the new ones)
PATIENCE = 5
CREDENTIALS = 20
#: seconds within which all of it must be up
LIMIT = 30

# Hosts inherit these mounts. The link to libpmix.so is added here, since a cluster where Open MPI
# starts under srun has it. quirk: libpmix-of-the-package
_LOGIN = """set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/slurm/state /run/munge /run/tmp /run/bin
mount --bind /tmp /run/tmp
library=/usr/lib/$(uname -m)-linux-gnu/pmix2/lib
if [ -e $library/libpmix.so.2 ] && [ ! -e $library/libpmix.so ]; then
    cp -a $library /run/pmix
    ln -s libpmix.so.2 /run/pmix/libpmix.so
    mount --bind /run/pmix $library
fi
(umask 377; head -c 128 /dev/urandom > /run/munge/key)
cat > /run/slurm/slurm.conf
number=0
while [ $number -lt $1 ]; do mknod /run/slurm/gpu$number c 1 3; number=$((number + 1)); done
if [ $1 -gt 0 ]; then
    echo "NodeName=$0 Name=gpu File=/run/slurm/gpu[0-$(($1 - 1))]" > /run/slurm/gres.conf
fi
munged --key-file=/run/munge/key --socket=/run/munge/socket --pid-file=/run/munge/pid \\
    --seed-file=/run/munge/seed --log-file=/run/munge/log
SLURM_CONF=/run/slurm/slurm.conf slurmctld
"""
# A host has a /tmp of its own; directories below the machine's that all hosts need are put back
# into it. A host that was started again has neither old files nor an old slurmd.
_HOST = """set -e
mount -t tmpfs -o mode=1777 tmpfs /tmp
for directory; do
    mkdir -p "$directory"
    mount --bind "/run/tmp/${directory#/tmp/}" "$directory"
done
rm -rf "/run/slurm/$0"
mkdir -p "/run/slurm/$0"
SLURM_CONF=/run/slurm/slurm.conf slurmd -N "$0"
"""


@dataclass
class Slurm:
    """What SLURM says of each host of a `Cluster`.

    Parameters
    ----------
    cpus : int
    gpus : int
        clones of /dev/null.
    memory : int
        in MB.
    shared : sequence of paths
        directories below /tmp that hosts see (the current one, mpicoll's and this Python's always
        are).
    settings : sequence of str
        more lines of slurm.conf.

    Raises
    ------
    ArgumentError
        for a number that no host can have.
    """

    cpus: int = 4
    gpus: int = 0
    memory: int = 16000
    shared: Sequence[str | os.PathLike[str]] = ()
    settings: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, least in (("cpus", 1), ("gpus", 0), ("memory", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name}: expected {least} or more, got {getattr(self, name)}")

    def prepare(self, login: Namespaces, hosts: Sequence[str]) -> None:
        """Start what runs on login; before hosts are made, so that they inherit its mounts."""
        names = f"host[0-{len(hosts) - 1}]"
        login.run(["sh", "-c", _LOGIN, names, str(self.gpus)], self._conf(len(hosts), names))

    def start(self, host: Namespaces) -> None:
        """Start a host's slurmd."""
        places = {os.path.realpath(place) for place in (os.curdir, HOME, sys.prefix, *self.shared)}
        host.run(
            [
                "sh",
                "-c",
                _HOST,
                host.name,
                *sorted(place for place in places if place.startswith("/tmp/")),
            ]
        )

    def wait(self, login: Namespaces, hosts: Sequence[str]) -> None:
        """Return when all these hosts are idle."""
        command = [
            *login.entrance(),
            "env",
            f"SLURM_CONF={CONF}",
            "sinfo",
            "--noheader",
            "--Node",
            "--states=idle",
            "--format=%N",
        ]
        end = time.monotonic() + LIMIT
        idle = set[str]()
        while not idle >= set(hosts):
            if time.monotonic() > end:
                raise LaunchError(
                    f"SLURM: after {LIMIT} s only these hosts are idle:"
                    f" {' '.join(sorted(idle)) or 'none'}; expected {' '.join(hosts)}. slurmctld"
                    f" says:\n{self._log(login)}"
                )
            done = subprocess.run(command, capture_output=True, text=True)
            idle = set(done.stdout.split())
            time.sleep(0.05)

    def _log(self, login: Namespaces) -> str:
        return subprocess.run(
            [*login.entrance(), "tail", "/run/slurm/slurmctld.log"], capture_output=True, text=True
        ).stdout

    def _conf(self, count: int, names: str) -> str:
        """The text of slurm.conf."""
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        settings = {
            "ClusterName": "virtual",
            "SlurmctldHost": f"login({SUBNET}.{LOGIN})",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthInfo": f"socket=/run/munge/socket,cred_expire={CREDENTIALS}",
            "StateSaveLocation": "/run/slurm/state",
            "SlurmdSpoolDir": "/run/slurm/%n",
            "SlurmctldPidFile": "/run/slurm/slurmctld.pid",
            "SlurmdPidFile": "/run/slurm/%n/slurmd.pid",
            "SlurmctldLogFile": "/run/slurm/slurmctld.log",
            "SlurmdLogFile": "/run/slurm/%n/slurmd.log",
            # hosts have the processors we say, not those of this machine
            "SlurmdParameters": "config_overrides",
            "ProctrackType": "proctrack/linuxproc",  # neither control groups nor accounting
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "SwitchType": "switch/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "ReturnToService": "2",
            "SlurmdTimeout": str(PATIENCE),
            "KillWait": "5",
            "EnforcePartLimits": "ALL",  # what no node can have is refused at once
            "MessageTimeout": "5",
            "SchedulerParameters": "batch_sched_delay=0,sched_interval=2",
            **({"GresTypes": "gpu"} if self.gpus else {}),
        }
        nodes = (
            f"NodeName={names} NodeAddr={SUBNET}.[{address(0).rpartition('.')[2]}-{count}]"
            f" CPUs={self.cpus} RealMemory={self.memory}{gres} State=UNKNOWN"
        )
        partition = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
        return "\n".join(
            [
                *(f"{name}={value}" for name, value in settings.items()),
                *self.settings,
                nodes,
                partition,
                "",
            ]
        )


def unavailable() -> str | None:
    """Why SLURM cannot run here, and what to do; None if it can."""
    return missing(PACKAGES, "libpmix2")
