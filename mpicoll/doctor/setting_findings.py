"""Findings about interfaces, and settings of the MPI library and the kernel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ..support.quirks import is_open_mpi
from ..support.units import format_bytes, many
from .finding import NOTE, SLOW, Finding, node_text, ranks_text, rate_text
from .records import Measured
from .transports import IDLE_RESTART

#: eager limits in bytes outside of which somebody chose badly
_EAGER = (1 << 12, 1 << 20)


def interfaces(measured: Measured) -> Iterator[Finding]:
    """Interfaces that carry the messages, where others would be better."""
    used = {traffic.node: traffic.used for traffic in measured.traffic if traffic.used}
    counts = Counter(used.values()).most_common()
    usual = counts[0][0] if counts and (len(counts) == 1 or counts[0][1] > counts[1][1]) else ""
    for traffic in measured.traffic:
        own = traffic.used
        if not own:
            continue
        host = measured.hosts[traffic.node]
        if usual and own != usual and usual in traffic.speeds:
            yield Finding(
                SLOW,
                "interface",
                f"messages of {host} pass through {own}, those of other nodes through {usual},"
                " which it has too",
                node_text(measured, traffic.node),
                "they may take another, slower network",
                f"set the interface on all ranks alike: {_interface_setting(measured, usual)}",
                (traffic.node,),
            )
    yield from _faster_interfaces(measured)


def _faster_interfaces(measured: Measured) -> Iterator[Finding]:
    told: dict[tuple[str, float, str, float], list[int]] = defaultdict(list)
    for traffic in measured.traffic:
        speed = traffic.speeds.get(traffic.used, 0.0)
        name = max(traffic.speeds, key=lambda name: traffic.speeds[name], default="")
        if traffic.used and speed and traffic.speeds[name] >= 4 * speed:
            told[traffic.used, speed, name, traffic.speeds[name]].append(traffic.node)
    for (used, speed, name, best), nodes in told.items():
        yield Finding(
            SLOW,
            "interface-slow",
            f"messages pass through {used} ({rate_text(speed / 8)}), though {name}"
            f" ({rate_text(best / 8)}) is up",
            ", ".join(measured.hosts[node] for node in nodes[:8]),
            f"the network carries up to {best / speed:.0f} times less than it could",
            (
                f"{_interface_setting(measured, name)}; for InfiniBand or another fabric use an MPI"
                " library built for it (UCX or libfabric), as the cluster's module is"
            ),
            tuple(nodes),
        )


def _interface_setting(measured: Measured, name: str) -> str:
    """The setting that names an interface."""
    if is_open_mpi(measured.library):
        return f"OMPI_MCA_btl_tcp_if_include={name}"
    return f"FI_TCP_IFACE={name}, with UCX UCX_NET_DEVICES={name}"


def settings(measured: Measured) -> Iterator[Finding]:
    """Settings that differ between ranks, or are known to hurt."""
    names = sorted({name for facts in measured.ranks for name in facts.settings})
    for name in names:
        values = Counter(facts.settings.get(name, "unset") for facts in measured.ranks)
        if len(values) < 2:
            continue
        usual = values.most_common(1)[0][0]
        odd = [facts for facts in measured.ranks if facts.settings.get(name, "unset") != usual]
        others = ", ".join(sorted({facts.settings.get(name, "unset") for facts in odd}))
        yield Finding(
            SLOW,
            "settings-differ",
            f"{name} is {others} on {many(len(odd), 'rank')}, and {usual} on the others",
            ranks_text(measured, [facts.rank for facts in odd]),
            "ranks may use different transports or networks, or hang",
            "set it for the whole job: in its script, or by an option of the launcher (-genv, -x)",
            tuple(sorted({facts.node for facts in odd})),
            tuple(facts.rank for facts in odd),
        )
    yield from _yielding(measured)
    yield from _slow_restarts(measured)
    for facts in measured.ranks[:1]:
        limit = facts.settings.get("OMPI_MCA_btl_tcp_eager_limit", "")
        if limit.isdecimal() and not _EAGER[0] <= int(limit) <= _EAGER[1]:
            yield Finding(
                NOTE,
                "eager-limit",
                f"OMPI_MCA_btl_tcp_eager_limit is {limit}, the default is {format_bytes(64 << 10)}",
                "all ranks",
                "a small limit costs a round trip for each short message, a large one memory",
                "unset it, and measure with `mpicoll bench` whether it helped",
            )


def _slow_restarts(measured: Measured) -> Iterator[Finding]:
    """Connections of TCP that begin slowly again whenever they were idle."""
    nodes = sorted({facts.node for facts in measured.ranks if facts.slow_restarts})
    if nodes and measured.transport == "tcp" and len(measured.hosts) > 1:
        everywhere = len(nodes) == len(measured.hosts)
        yield Finding(
            NOTE,
            "slow-restart",
            f"{IDLE_RESTART}=1: a TCP connection that was idle for 0.2 s begins slowly again",
            "all nodes" if everywhere else ", ".join(measured.hosts[node] for node in nodes[:8]),
            "algorithms that change partners (circulant, pairwise) take up to 1.5 times as long",
            f"as root on {'all' if everywhere else 'these'} nodes: sysctl -w {IDLE_RESTART}=0",
        )


def _yielding(measured: Measured) -> Iterator[Finding]:
    """Ranks that yield although each has a core."""
    name = "OMPI_MCA_mpi_yield_when_idle"
    yielding = [facts for facts in measured.ranks if facts.settings.get(name) in ("1", "true")]
    if yielding and not measured.crowded:
        yield Finding(
            NOTE,
            "yields",
            f"{name}=1, although each rank has a core",
            "all ranks",
            "small messages take longer: a waiting rank gives its core away before it looks again",
            "unset it",
        )
