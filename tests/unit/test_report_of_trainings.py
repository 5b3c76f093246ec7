"""Tables of trainings with compressed gradients: both workloads, and losses that were not reached."""

from benchmarks.report.trained import compressed, time_to_loss

FACTS = {"mpi": "MPICH 5.0.2", "size": 7, "nodes": 7, "link": "200mbit", "machine": "a processor",
         "date": "2026-01-02T03:04:05", "torch": "2.13.0"}  # fmt: skip


def test_the_measure_of_the_workload():
    for measure, title in (("test_accuracy", "test accuracy"), ("held_out_loss", "held-out loss")):
        values = {name: 0.5 for name in ("loss", measure)}
        values |= {f"{name}_spread": 0.25 for name in ("loss", measure)}
        values |= {f"{name}_difference": -0.00001 for name in ("loss", measure)}
        row = {"name": "int8", "bytes_sent_per_step": 1234, **values}
        document = {"environment": FACTS, "strategy": "allreduce", "epochs": 3, "results": [row],
                    "runs": [{"seed": seed, "parameters": 5678} for seed in (0, 1)]}  # fmt: skip
        text = compressed(document)
        assert f"| loss | spread | to float32 | {title} | spread | to float32 |" in text
        assert "| int8 | 1,234 | 0.5000 | 0.2500 | +0.0000 | 0.5000 | 0.2500 | +0.0000 |" in text
        assert "5,678 parameters, 3 epochs, 2 seeds" in text


def training(name, seconds):
    return {"name": name, "step_s": 0.25, "steps_to_loss": seconds and 40, "seconds_to_loss": seconds, "loss": 2.5}


def test_seconds_to_a_loss():
    facts = {**FACTS, "rows": 2, "length": 64, "steps": 50, "target_loss": 2.6, "window": 20, "parameters": 5678,
             "computing_s": 0.1, "links_s": 0.2}  # fmt: skip
    rows = [training("mpicoll, exact", 30.0), training("mpicoll, int8", 10.0), training("DDP, gloo", None)]
    text = time_to_loss({"environment": facts, "results": rows})
    assert "14 pieces of 64 characters a step, 50 steps, loss 2.6 (mean of 20 steps)" in text
    assert "| mpicoll, int8 | 250 | 40 | 10.0 | 3.00 | - | 2.500 |" in text
    assert "| DDP, gloo | 250 | - | not reached | - | - | 2.500 |" in text
