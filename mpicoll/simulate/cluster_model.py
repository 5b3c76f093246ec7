"""Models of measured clusters: files of `mpicoll doctor --output`, as networks of any size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

from ..errors import ArgumentError
from .network import Level, Network

SCHEMA = 1
#: what the file says it is
KIND = "model of a cluster"
#: the levels, from inside
LEVELS = ("socket", "node", "switch")


@dataclass(frozen=True)
class ModelLevel:
    """Links inside groups of ranks or of nodes."""

    #: of `LEVELS`
    name: str
    #: members of a group: ranks of a node, nodes of a switch
    group: int
    #: seconds per message
    alpha: float
    #: bytes per second
    bandwidth: float


@dataclass(frozen=True)
class ClusterModel:
    """What is known of a cluster's network."""

    mpi: str
    transport: str
    #: seconds per message, and bytes per second, between nodes of different groups
    alpha: float
    bandwidth: float
    #: how many times longer messages take when all nodes send at once
    contention: float = 1.0
    #: seconds per byte reduced and copied
    gamma: float = 0.0
    copying: float = 0.0
    levels: tuple[ModelLevel, ...] = ()
    #: bytes of the longest message that is sent before its receiver is there
    eager: int = 0

    def network(self, size: int, ranks_per_node: int | None = None) -> Network:
        """The network of `size` ranks.

        Parameters
        ----------
        size : int
            Ranks, which fill nodes in turn.
        ranks_per_node : int, optional
            By default as many as when it was measured.

        Returns
        -------
        Network
            With a level for the nodes, where they have several ranks, and one for the switches.
        """
        by_name = {level.name: level for level in self.levels}
        node = by_name.get("node")
        each = ranks_per_node or (node.group if node else 1)
        if each < 1:
            raise ArgumentError(f"--ranks-per-node: expected 1 or more, got {each}")
        if each > 1 and node is None:
            raise ArgumentError(
                f"--ranks-per-node {each}: the model knows no node with several ranks; make one"
                " with `mpicoll doctor --output` on nodes with two ranks or more"
            )
        levels = []
        if each > 1 and node:
            levels.append(Level(each, node.alpha, node.bandwidth, shared_port=True))
        switch = by_name.get("switch")
        if switch and switch.group * each < size:
            levels.append(Level(switch.group * each, switch.alpha, switch.bandwidth))
        bandwidth = self.bandwidth / self.contention
        return Network(
            self.alpha, bandwidth, self.gamma, self.copying, tuple(levels), eager=self.eager
        )

    def as_json(self) -> dict[str, Any]:
        """The document of the file."""
        return {"schema": SCHEMA, "kind": KIND, **asdict(self)}


def model_from(document: Any) -> ClusterModel:
    """The model that a document of `ClusterModel.as_json` says. Raises ArgumentError."""
    try:
        if document["kind"] != KIND or document["schema"] != SCHEMA:
            raise ValueError(f"expected {KIND!r} of schema {SCHEMA}")
        document = {"eager": 0, **document}  # which older doctors did not measure
        figures = {name: document[name] for name in ClusterModel.__dataclass_fields__}
        levels = tuple(ModelLevel(**level) for level in figures.pop("levels"))
        model = ClusterModel(**figures, levels=levels)
        _check(model)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ArgumentError(
            f"not a model of a cluster, which `mpicoll doctor --output` writes ({error})"
        ) from None
    return model


def _check(model: ClusterModel) -> None:
    """Raise ValueError for figures that no network has."""
    links: list[ClusterModel | ModelLevel] = [model, *model.levels]
    for link in links:
        if not (0 <= link.alpha < inf and 0 < link.bandwidth < inf):
            raise ValueError(f"alpha {link.alpha}, bandwidth {link.bandwidth}")
    for level in model.levels:
        if level.name not in LEVELS or level.group < 1 or int(level.group) != level.group:
            raise ValueError(f"level {level.name} of {level.group}")
    if int(model.eager) != model.eager or model.eager < 0:
        raise ValueError(f"eager {model.eager}")
    if not (1 <= model.contention < inf):
        raise ValueError(f"contention {model.contention}")
    if not all(isfinite(seconds) and seconds >= 0 for seconds in (model.gamma, model.copying)):
        raise ValueError(f"gamma {model.gamma}, copying {model.copying}")
