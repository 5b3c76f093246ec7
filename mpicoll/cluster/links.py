"""Hosts, addresses and shaped links, as lines for `ip -batch` and `tc -batch`.

Every host's eth0 is one end of a veth pair; the other, with the host's name, is a port of the
bridge `eth0` on the login host. Both ends are shaped, so that a host sends and receives at the
rate, in both directions at once.
"""

import json
import subprocess
from collections.abc import Iterable

#: a subnet that is invisible outside, so that all clusters may use it
SUBNET = "10.78.0"
MOST_HOSTS = 250
LOGIN = 254
#: bits per second that make sense: below, not even a launcher gets through; above, tc's own numbers
#: end
LEAST_RATE = 1e5
MOST_RATE = 1e12
#: payload of a TCP segment with timestamps, and the bytes of its frame that the shaper counts
PAYLOAD = 1448
FRAME = 1514
# htb lets a packet pass as long as any credit is left, so an idle link beats its rate by the credit
# and one packet. Linux hands TCP data down in packets of up to 64 KiB: uncut, a vector of 64 KiB
# over 7 hosts would cross at once at any rate. Less than 32 KiB costs processor time, which all
# hosts share: links were then 4 % less busy. Results mark short calls.
PACKET = 32 << 10
#: seconds by which the shaper's timer may be late without loss of rate; the credit is what the link
#: carries in them
LATE = 125e-6


def burst(rate: float) -> int:
    """Credit of an idle link in bytes, kept small: 32 KiB up to 2 Gb/s.

    >>> burst(200e6), burst(10e9)
    (32768, 156250)
    """
    return max(PACKET, int(rate / 8 * LATE))


def lead(rate: float) -> int:
    """Bytes by which an idle link may exceed its rate: the error of short measurements."""
    return burst(rate) + PACKET


def goodput(rate: float) -> float:
    """Bytes per second that TCP can carry over a link of `rate` bits per second, in each direction.

    >>> round(goodput(500e6))
    59775429
    """
    return rate / 8 * PAYLOAD / FRAME


def address(number: int) -> str:
    """The address of a host.

    >>> address(0), address(6)
    ('10.78.0.1', '10.78.0.7')
    """
    return f"{SUBNET}.{number + 1}"


def names(hosts: int) -> str:
    """The text of /etc/hosts for the names of `hosts` hosts."""
    lines = [f"{address(number)} host{number}" for number in range(hosts)]
    return "\n".join(["127.0.0.1 localhost", f"{SUBNET}.{LOGIN} login", *lines, ""])


def switch() -> list[str]:
    """`ip` commands for the login host: the bridge, named like the hosts' interfaces."""
    return [
        "link set lo up",
        "link add eth0 type bridge",
        f"addr add {SUBNET}.{LOGIN}/24 dev eth0",
        "link set eth0 up",
    ]


def link(name: str, number: int, pid: str, rate: float | None) -> list[str]:
    """`ip` commands for the login host: a veth pair to a host, without IPv6.

    pid: of the process that holds the host's namespaces.

    A host that is started again has the network card it had, or others would send to the old one
    for a while.
    """
    cut = f" gso_max_size {PACKET}" if rate else ""
    return [
        (
            f"link add {name}{cut} type veth peer name eth0{cut} address"
            f" 02:00:00:00:00:{number:02x} netns {pid}"
        ),
        f"link set {name} master eth0 addrgenmode none up",
    ]


def interface(number: int) -> list[str]:
    """For a host: its address.

    The route names the congestion control, as the machine's own (BBR, say, which paces) may suit a
    short link badly and a namespace cannot set another for itself.
    """
    own = address(number)
    return [
        "link set lo up",
        f"addr add {own}/24 dev eth0",
        "link set eth0 addrgenmode none up",
        f"route replace {SUBNET}.0/24 dev eth0 src {own} congctl cubic",
    ]


def shape(name: str, rate: float) -> list[str]:
    """`tc` commands for either end: one class of `rate` bits per second, with the default fifo.

    Neither tbf (two directions of TCP slow each other down) nor netem (not in every kernel).
    """
    limits = (
        f"rate {rate:.0f}bit ceil {rate:.0f}bit burst {burst(rate)}b cburst {burst(rate)}b quantum"
        f" {PACKET}"
    )
    return [
        f"qdisc add dev {name} root handle 1: htb default 1",
        f"class add dev {name} parent 1: classid 1:1 htb {limits}",
    ]


def payload(entrance: Iterable[str]) -> dict[str, int]:
    """Bytes of TCP payload that came in so far at each link of the bridge, by the name of its host.

    An interface counts a packet that TCP handed down whole with one header, an acknowledgement is
    nothing but a header.
    """
    said = subprocess.run(
        [*entrance, "ip", "-json", "-statistics", "link"], capture_output=True, check=True
    )
    seen = {entry["ifname"]: entry["stats64"]["rx"] for entry in json.loads(said.stdout)}
    return {
        name: came["bytes"] - (FRAME - PAYLOAD) * came["packets"] for name, came in seen.items()
    }
