"""Time without MPI: schedules on simulated clocks, networks of levels, costs by formula."""

from .clocks import Prediction, estimate_work, predict, predict_on_graph
from .cluster_model import ClusterModel, ModelLevel, model_from
from .costs import PathCost, closed_form, least_seconds, lower_bound
from .network import Level, Network

__all__ = [
    "ClusterModel", "Level", "ModelLevel", "Network", "PathCost", "Prediction", "closed_form",
    "estimate_work", "least_seconds", "lower_bound", "model_from", "predict", "predict_on_graph",
]
