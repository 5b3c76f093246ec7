"""How messages travel: through MPI on private communicators, or in a node; who shares one."""

from .channel import (
    ACCOUNT,
    CALL,
    COMPARE,
    NOTICE,
    WATCH,
    Channel,
    Share,
    Wire,
    node_of,
    places_in,
)
from .near import Ends, Near
from .topology import Topology, discover, inherited

__all__ = [
    "ACCOUNT", "CALL", "COMPARE", "NOTICE", "WATCH", "Channel", "Ends", "Near", "Share", "Topology",
    "Wire", "discover", "inherited", "node_of", "places_in",
]  # fmt: skip
