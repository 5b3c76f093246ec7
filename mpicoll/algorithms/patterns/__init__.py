"""What algorithms share: trees, the circulant graph, lanes over nodes, prefix sums, the order of operands."""

from .binomial import children, parent
from .canonical import fold_tree, in_rank_order, one_block, others
from .circulant import broadcast_blocks, circulant_steps
from .lanes import Lanes, LanesOfRanks, NodeMap, Nodes, lane_blocks, node_members
from .prefix import Runs, sum_before

__all__ = [
    "Lanes", "LanesOfRanks", "NodeMap", "Nodes", "Runs", "broadcast_blocks", "children",
    "circulant_steps", "fold_tree", "in_rank_order", "lane_blocks", "node_members", "one_block",
    "others", "parent", "sum_before",
]
