"""The command `cluster crash|boot|cut|mend HOST` on the cluster's login host."""

import threading

from ..errors import MpicollError
from . import slurm
from .cluster import Cluster

SWITCHES = ("crash", "boot", "cut", "mend")
_ORDERS = "/run/orders"
_ANSWERS = "/run/answers"
#: hands its words to the owner of the cluster, and says what that answers
_COMMAND = f"""#!/bin/sh
echo "$*" > {_ORDERS}
read -r answer < {_ANSWERS}
[ -z "$answer" ] || {{ echo "$answer" >&2; exit 1; }}
"""


class Console:
    """Provides the command on a cluster with SLURM. It ends with the process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._root = f"/proc/{cluster.login.pid}/root"

    def __enter__(self) -> "Console":
        self._cluster.login.write(f"{slurm.COMMANDS}/cluster", _COMMAND)
        self._cluster.login.run(["mkfifo", _ORDERS, _ANSWERS])
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to do: the thread waits for orders until the process ends."""

    def _serve(self) -> None:
        while True:
            with open(self._root + _ORDERS) as orders:
                words = orders.read().split()
            with open(self._root + _ANSWERS, "w") as answers:
                print(self._obey(*words), file=answers)

    def _obey(self, switch: str = "", host: str = "", *_: str) -> str:
        if switch not in SWITCHES or host not in self._cluster.hosts:
            return (
                f"expected cluster {'|'.join(SWITCHES)} {'|'.join(self._cluster.hosts)}, got:"
                f" {switch} {host}"
            )
        try:
            getattr(self._cluster, switch)(host)
        except MpicollError as error:
            return f"{switch} {host}: {error}"
        return ""
