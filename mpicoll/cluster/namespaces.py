"""Namespaces of a virtual host: the process that keeps them, and how to enter them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence

from ..errors import LaunchError
from ..support.files import kernel_setting

#: programs, and the Debian package that has them
PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
#: every kind but users and control groups
UNSHARE = ("unshare", "--mount-proc", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child")


def with_tools(environ: Mapping[str, str] = os.environ) -> str:
    """The PATH of an environment, and where ip and tc are, which a user's often leaves out."""
    return f"{environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


# Says its process id, which `nsenter` inside the same process namespace needs, before it becomes
# `unshare`.
_OUTSIDE = 'echo $$; exec "$@"'
# The first process: names the computer, then waits for the end of its input, with which all inside
# it ends. It ignores CHLD, so that the kernel itself buries the orphans it inherits.
_INSIDE = """set -e
echo "$0" > /proc/sys/kernel/hostname
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
if [ -n "$1" ]; then printf %s "$1" > /dev/shm/hosts; mount --bind /dev/shm/hosts /etc/hosts; fi
echo ready
exec env --ignore-signal=CHLD cat
"""


class Namespaces:
    """A virtual host: its own network, processes, mounts and shared memory. Ready after `wait`.

    inside: the Namespaces it is made in, and ends with. hosts: text that /etc/hosts has here and in
    all made inside.
    """

    def __init__(self, name: str, inside: "Namespaces | None" = None, hosts: str = "") -> None:
        self.name = name
        self._inside = inside
        command = ["sh", "-c", _OUTSIDE, "sh", *UNSHARE, "sh", "-c", _INSIDE, name, hosts]
        # a session of its own: Ctrl-C is for the owner, which then takes leave in order
        self._first = subprocess.Popen(
            [*(inside.entrance() if inside else ()), *command],
            env={**os.environ, "PATH": with_tools()},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._first.stdin and self._first.stdout
        self._life = self._first.stdin
        self._said = self._first.stdout
        self.pid = ""

    def wait(self) -> None:
        """Return when everything is in place; LaunchError where the kernel or a program refuses."""
        self.pid = self._said.readline().strip()
        said = self._said.readline()
        if said != "ready\n":
            said += self._said.read()
            raise LaunchError(f"{self.name}: no namespaces of its own: {said.strip()}. {ADVICE}")

    def entrance(self) -> list[str]:
        """The command prefix that runs a command here, in /, with the caller's environment."""
        return [*(self._inside.entrance() if self._inside else ()), *entrance(self.pid)]

    def run(self, command: Sequence[str], text: str = "", advice: str = "") -> None:
        """Run a command here, on this input; LaunchError, with this advice, where it fails."""
        # its output is a file: a daemon that it leaves behind would keep a pipe open
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.run(
                [*self.entrance(), *command],
                input=text,
                text=True,
                env={**os.environ, "PATH": with_tools()},
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            said.seek(0)
            if done.returncode:
                raise LaunchError(
                    f"{self.name}: {command[0]} refused: {said.read().strip()}. {advice}"
                )

    def feed(self, program: str, lines: Iterable[str]) -> None:
        """Run `ip` or `tc` here on a batch of lines."""
        advice = "The kernel needs veth, bridge and sch_htb, as any distribution's has."
        self.run([program, "-batch", "-"], "\n".join(lines), advice)

    def write(self, path: str, text: str) -> None:
        """Make an executable file, in a file system that only this computer sees."""
        self.run(["sh", "-c", 'cat > "$0" && chmod +x "$0"', path], text)

    def set(self, name: str, value: object) -> None:
        """Change a setting of the kernel, as `sysctl -w` does."""
        path = str(kernel_setting(name))
        advice = f"Expected the name and a value of a setting that hosts may have: {name}={value}"
        self.run(["sh", "-c", 'echo "$1" > "$0"', path, str(value)], advice=advice)

    def close(self) -> None:
        """End it; returns when all its processes are gone."""
        self._life.close()
        try:
            self._first.wait(10)
        # a process of it whose parent, outside, never asks for its exit status
        except subprocess.TimeoutExpired:
            self._first.kill()
            self._first.wait()
        self._said.close()

    def kill(self) -> None:
        """End it as a loss of power does: all its processes at once, without a word."""
        self._first.kill()
        self.close()


def entrance(pid: str) -> list[str]:
    """The command prefix that enters the namespaces held by process `pid`.

    To enter that one `nsenter` forks: what it runs is killed when `nsenter` is.
    """
    kinds = ("--mount", "--net", "--uts", "--ipc", f"--pid=/proc/{pid}/ns/pid_for_children")
    return ["nsenter", "--target", pid, *kinds, "setpriv", "--pdeathsig", "KILL"]


ADVICE = (
    "In a container, start that one with the right to make namespaces and mounts (--privileged)."
)


def unavailable() -> str | None:
    """Why this machine cannot make a cluster, and what to do; None if it can."""
    if os.geteuid():
        return "the virtual cluster makes network namespaces and mounts: run it as root"
    if absent := missing(PACKAGES):
        return absent
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
    return (
        f"no namespaces of its own: {tried.stderr.strip()}. {ADVICE}" if tried.returncode else None
    )


def missing(programs: Mapping[str, str], *more: str) -> str | None:
    """Which programs are missing and which packages to install; None if all are there.

    programs: {program: package}; more: further packages to name.
    """
    absent = [name for name in programs if not shutil.which(name, path=with_tools())]
    packages = " ".join(sorted({*(programs[name] for name in absent), *more}))
    return (
        f"{', '.join(absent)} not found: install {packages} (Debian: apt-get install {packages})"
        if absent
        else None
    )
