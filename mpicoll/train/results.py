"""What a finished training looks like, for programs and for people."""

import math


def document(trainer, config):
    """The JSON document of a run (schema 1), of this rank. Collective.

    A loss that is not finite, because the training diverged, is null: JSON has no infinity.
    """
    from ..environment import environment

    return {
        "schema": 1,
        "environment": environment(trainer.comm),
        "config": config,
        "epochs": [epoch | {"loss": _finite(epoch["loss"])} for epoch in trainer.epochs],
        "losses": [_finite(loss) for loss in trainer.losses],
        "test_accuracy": trainer.test_accuracy,
        "report": trainer.report(),
    }


def _finite(number):
    return number if math.isfinite(number) else None


def summary(trainer):
    """The same in a few lines for a person."""
    report, meter = trainer.report(), trainer.strategy.meter
    ranks, accuracy = trainer.comm.Get_size(), trainer.test_accuracy
    tested = "no test data" if accuracy is None else f"test accuracy {accuracy:.4f}"
    estimated = " (lower bound, not counted)" if report["bytes_estimated"] else ""
    return "\n".join((
        f"{tested}, loss {trainer.epochs[-1]['loss']:.4g} after {len(trainer.losses)} steps",
        f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {trainer.strategy.describe()}, "
        f"{trainer.model.parameters.size:,} parameters of {trainer.precision}",
        f"{meter.total('step_s'):.2f} s training: {meter.total('compute_s'):.2f} s computing, "
        f"{meter.total('communication_s'):.2f} s communicating ({meter.total('exposed_s'):.2f} s of it exposed)",
        f"bytes sent per step: {report['bytes_sent_per_step']:,} gradients/parameters{estimated}, "
        f"{report['data_bytes_sent_per_step']:,} data",
        f"bytes held: {report['parameter_bytes']:,} parameters, {report['gradient_bytes']:,} gradients, "
        f"{report['optimizer_bytes']:,} optimizer",
    ))
