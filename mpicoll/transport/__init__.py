"""Messages between ranks through MPI: our own communicators, tags, and which ranks share a node."""

from .channel import ACCOUNT, CALL, COMPARE, WATCH, Channel, Share, Wire, node_of, places_in
from .topology import Topology, discover, inherited

__all__ = [
    "ACCOUNT", "CALL", "COMPARE", "WATCH", "Channel", "Share", "Topology", "Wire", "discover",
    "inherited", "node_of", "places_in",
]  # fmt: skip
