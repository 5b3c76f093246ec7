"""Transports: the settings of the MPI library, and the interfaces that carry its messages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..support.files import kernel_setting

#: settings that decide how messages travel and how ranks wait
NAMES = (
    "FI_PROVIDER",
    "FI_TCP_IFACE",
    "FI_SOCKETS_IFACE",
    "I_MPI_FABRICS",
    "I_MPI_OFI_PROVIDER",
    "I_MPI_PIN",
    "I_MPI_WAIT_MODE",
    "MPIR_CVAR_CH4_NETMOD",
    "MPIR_CVAR_NOLOCAL",
    "OMPI_MCA_btl",
    "OMPI_MCA_btl_tcp_eager_limit",
    "OMPI_MCA_btl_tcp_if_exclude",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_mpi_yield_when_idle",
    "OMPI_MCA_pml",
    "OMP_NUM_THREADS",
    "UCX_NET_DEVICES",
    "UCX_RNDV_THRESH",
    "UCX_TLS",
)
#: a setting of the kernel, by its name for `sysctl`: 1: a connection that was idle begins slowly
IDLE_RESTART = "net.ipv4.tcp_slow_start_after_idle"
_NET = Path("/sys/class/net")
_INFINIBAND = Path("/sys/class/infiniband")


def chosen(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings of `NAMES` that are set."""
    return {name: environ[name] for name in NAMES if name in environ}


def slow_restarts() -> bool:
    """Whether the kernel lets a TCP connection that was idle begin slowly again."""
    return _text(kernel_setting(IDLE_RESTART)) == "1"


def counters() -> dict[str, int]:
    """{interface: bytes sent and received so far}, as far as the system tells."""
    counted = {}
    try:
        # of this process' network namespace, unlike /sys
        lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    except OSError:
        lines = []
    for line in lines:
        name, _, figures = line.partition(":")
        words = figures.split()
        counted[name.strip()] = int(words[0]) + int(words[8])
    for port in _INFINIBAND.glob("*/ports/*/counters"):
        words = [_text(port / name) for name in ("port_xmit_data", "port_rcv_data")]
        if all(word.isdecimal() for word in words):
            device = port.parts[-4]
            # counted in words of four bytes
            counted[device] = counted.get(device, 0) + 4 * sum(map(int, words))
    return counted


def speeds() -> dict[str, float]:
    """{interface that is up: bits per second, 0 where unknown}."""
    found = {}
    for name in counters():
        if (_INFINIBAND / name).exists():
            ports = list((_INFINIBAND / name).glob("ports/*"))
            if any("ACTIVE" in _text(port / "state") for port in ports):
                rates = [_text(port / "rate").split(" ")[0] for port in ports]
                found[name] = max(
                    (float(rate) * 1e9 for rate in rates if _number(rate)), default=0.0
                )
        elif name != "lo" and _text(_NET / name / "operstate") in ("up", "unknown", ""):
            speed = _text(_NET / name / "speed")
            found[name] = max(0.0, float(speed) * 1e6) if _number(speed) else 0.0
    return found


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(path: Path) -> str:
    """The stripped text of a file of the kernel; "" where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def kernel() -> str:
    """A text that two containers or namespaces of one machine share, and two machines do not."""
    return _text(Path("/proc/sys/kernel/random/boot_id"))
