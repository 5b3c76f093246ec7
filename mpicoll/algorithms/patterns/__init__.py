"""What algorithms share: trees, spreads, the circulant graph, lanes, prefixes, operands."""

from .canonical import fold_tree, in_rank_order, one_block, others
from .circulant import broadcast_blocks, circulant_steps
from .lanes import Lanes, LanesOfRanks, NodeMap, Nodes, lane_blocks, node_members
from .multiplying import fitting, groups
from .prefix import Runs, sum_before
from .spreads import both_ways, even, gathered, near_last, reduced, swing_pairs, swing_peers
from .trees import Tree, bine_tree, binomial_tree

__all__ = [
    "Lanes", "LanesOfRanks", "NodeMap", "Nodes", "Runs", "Tree", "bine_tree", "binomial_tree",
    "both_ways", "broadcast_blocks", "circulant_steps", "even", "fitting", "fold_tree", "gathered",
    "groups", "in_rank_order", "lane_blocks", "near_last", "node_members", "one_block", "others",
    "reduced", "sum_before", "swing_pairs", "swing_peers",
]
