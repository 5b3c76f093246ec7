"""Frameworks that train on torch.distributed: python -m … CLIENT FILE, on ranks. The losses of the steps go to FILE, as JSON.

The backend is that of MPICOLL_TORCH_AS: nothing, and gloo is gloo; "gloo", and mpicoll serves in its place. Each client is a
job of its own, as frameworks keep what they have found out about the process group. One that is not installed is said to be so.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import mpicoll.torch  # noqa: F401 registers the backend, and tells ranks from what the launcher says

STEPS, ROWS, WIDTH = 6, 8, 12
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def rows(number=STEPS * ROWS):
    source = torch.Generator().manual_seed(1)
    features = torch.randn(number, WIDTH, generator=source)
    return torch.utils.data.TensorDataset(features, features.square().sum(1, keepdim=True) / WIDTH)


def mine():
    """Batches of this rank."""
    sampler = torch.utils.data.DistributedSampler(rows(), SIZE, RANK, shuffle=False)
    return torch.utils.data.DataLoader(rows(), ROWS // SIZE, sampler=sampler)


def mean(losses):
    """Over the ranks."""
    losses = torch.stack([loss.detach().reshape(()) for loss in losses])
    dist.all_reduce(losses)
    return (losses / SIZE).tolist()


def train(model, optimizer, batches, backward=torch.Tensor.backward):
    losses = []
    for features, labels in batches:
        optimizer.zero_grad()
        losses.append(torch.nn.functional.mse_loss(model(features), labels))
        backward(losses[-1])
        optimizer.step()
    return mean(losses)


def accelerate():
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), network()
    loader = torch.utils.data.DataLoader(rows(), ROWS // SIZE)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 0.01), loader)
    return train(model, optimizer, loader, accelerator.backward)


def transformers():
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
                                       embd_pdrop=0.0, attn_pdrop=0.0))  # fmt: skip
    source = torch.Generator().manual_seed(2)
    texts = [{"input_ids": text, "labels": text} for text in torch.randint(0, 64, (48, 16), generator=source)]
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(folder, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=2, logging_steps=1,
                                    max_steps=STEPS, report_to=[], save_strategy="no", disable_tqdm=True)  # fmt: skip
        trainer = Trainer(model, options, train_dataset=texts)
        trainer.train()
    flat = torch.cat([one.detach().flatten() for one in model.parameters()]).double()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line] + mean([flat.sum(), flat.abs().sum()])


def lightning():
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = network(), []

        def training_step(self, batch, number):
            self.losses.append(torch.nn.functional.mse_loss(self.model(batch[0]), batch[1]))
            self.log("loss", self.losses[-1], sync_dist=True)
            return self.losses[-1]

        def configure_optimizers(self):
            return torch.optim.Adam(self.model.parameters(), 0.01)

    module = Module()
    trainer = lightning.Trainer(accelerator="cpu", devices=SIZE, strategy=DDPStrategy(process_group_backend="gloo"),
                                max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                use_distributed_sampler=False)  # fmt: skip
    trainer.fit(module, mine())
    return mean(module.losses)


def torchmetrics():
    import torchmetrics

    dist.init_process_group("gloo")
    metric, average = torchmetrics.MeanSquaredError(), torchmetrics.MeanMetric()
    kept = torchmetrics.CatMetric()
    for features, labels in mine():
        metric.update(features[:, :1].contiguous(), labels)
        average.update(labels)
        kept.update(labels[: RANK + 1])  # blocks of different sizes
    return [metric.compute().item(), average.compute().item(), kept.compute().sum().item(), float(len(kept.compute()))]


def deepspeed(stage=1):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    options = {"train_micro_batch_size_per_gpu": ROWS // SIZE, "zero_optimization": {"stage": stage},
               "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}}  # fmt: skip
    model = network()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=options)
    losses = []
    for features, labels in mine():
        losses.append(torch.nn.functional.mse_loss(engine(features), labels))
        engine.backward(losses[-1])
        engine.step()
    return mean(losses)


def deepspeed3():
    return deepspeed(3)


def fsdp():
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("gloo")
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)
    return train(model, torch.optim.Adam(model.parameters(), 0.01), mine())


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh, model = dist.device_mesh.init_device_mesh("cpu", (SIZE,)), network()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return train(model, torch.optim.Adam(model.parameters(), 0.01), mine())


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    model = parallelize_module(network(), dist.device_mesh.init_device_mesh("cpu", (SIZE,)),
                               {"0": ColwiseParallel(), "2": RowwiseParallel()})  # fmt: skip
    return train(model, torch.optim.Adam(model.parameters(), 0.01), torch.utils.data.DataLoader(rows(), ROWS))


def pipelining():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(SIZE)]
    stage = PipelineStage(layers[RANK], RANK, SIZE, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, torch.nn.functional.mse_loss)
    optimizer, found = torch.optim.SGD(layers[RANK].parameters(), 0.1), []
    for features, _ in torch.utils.data.DataLoader(rows(), ROWS):
        optimizer.zero_grad()
        losses = []
        given = (features,) if RANK == 0 else ()
        more = {"target": features.tanh(), "losses": losses} if RANK == SIZE - 1 else {}
        schedule.step(*given, **more)
        optimizer.step()
        found.append(sum(losses, torch.zeros(())))
    return mean(found)


def checkpoints():
    """Saved while training goes on; loaded by all, and broadcast from rank 0."""
    import torch.distributed.checkpoint as saved
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    dist.init_process_group("gloo")
    place = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(place)
    model = torch.nn.parallel.DistributedDataParallel(network())
    losses = train(model, torch.optim.Adam(model.parameters(), 0.01), mine())
    saved.async_save(model.module.state_dict(), checkpoint_id=place[0]).result()
    other = network()
    state = other.state_dict()
    saved.load(state, checkpoint_id=place[0])
    full = get_model_state_dict(model.module) if RANK == 0 else {}
    set_model_state_dict(other, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    assert all(torch.equal(one, state[name]) for name, one in other.state_dict().items())
    return losses


def join():
    """Ranks with other numbers of batches."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    losses = []
    with Join([model, optimizer]):
        for features, labels in list(mine())[: STEPS - RANK]:
            optimizer.zero_grad()
            losses.append(torch.nn.functional.mse_loss(model(features), labels))
            losses[-1].backward()
            optimizer.step()
    return mean([torch.stack(losses).sum().detach(), *(one.detach().sum() for one in model.parameters())])


ALL = [accelerate, transformers, lightning, torchmetrics, deepspeed, deepspeed3, fsdp, fsdp2, tensor_parallel, pipelining,
       checkpoints, join]  # fmt: skip


def main(name, path):
    torch.set_num_threads(1)
    client = next(one for one in ALL if one.__name__ == name)
    try:
        losses, missing = client(), ""
    except ModuleNotFoundError as error:
        losses, missing = [], str(error)
    if RANK == 0:
        ours = dist.is_initialized() and dist.get_backend() == "mpicoll"
        Path(path).write_text(json.dumps({"losses": losses, "missing": missing, "backend": "mpicoll" if ours else "gloo"}))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
