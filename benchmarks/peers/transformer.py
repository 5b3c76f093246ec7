"""A small transformer learns to continue text (Python's own help pages), on MPI ranks.

    mpiexec -n 2 python -m benchmarks.peers.transformer --strategy zero2 --steps 50

Prints the mean loss over the ranks, and at the end how much of the communication was hidden behind
the computation.
"""

import argparse
from pydoc_data.topics import topics

import torch
from mpi4py import MPI

from mpicoll import Communicator, install_abort_hook
from mpicoll.support.node import share_cores
from mpicoll.support.units import parse_bytes
from mpicoll.train.torch import wrap

from .sizes import add_size


class Text:
    """Pieces of a text as numbers of its characters, drawn at random, others on every rank."""

    def __init__(self, text, rank, length):
        self.letters, codes = numbered(text)
        self.length = length
        self.codes = torch.tensor(codes)
        self.generator = torch.Generator().manual_seed(rank)

    def batch(self, rows):
        """(rows, length) characters, and the ones that follow them."""
        starts = torch.randint(len(self.codes) - self.length, (rows, 1), generator=self.generator)
        pieces = self.codes[starts + torch.arange(self.length + 1)]
        return pieces[:, :-1], pieces[:, 1:]


class Transformer(torch.nn.Module):
    """Predicts the next character, from up to `length` before it."""

    def __init__(self, letters, length, width=128, layers=4, heads=4):
        super().__init__()
        self.letter = torch.nn.Embedding(letters, width)
        self.place = torch.nn.Embedding(length, width)
        block = torch.nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.blocks = torch.nn.TransformerEncoder(
            block, layers, torch.nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.out = torch.nn.Linear(width, letters)

    def forward(self, text):
        """(rows, length) numbers of characters to (rows, length, letters) logits."""
        length = text.shape[1]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.letter(text) + self.place(torch.arange(length))
        return self.out(self.blocks(hidden, mask, is_causal=True))


def loss_of(model, inputs, outputs):
    """Mean cross entropy per character, in nats."""
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), outputs.flatten())


def numbered(text):
    """The characters that occur in a text, and the number of each character of the text."""
    letters = sorted(set(text))
    numbers = {letter: index for index, letter in enumerate(letters)}
    return letters, [numbers[letter] for letter in text]


def help_pages():
    """Half a million characters that come with Python."""
    return "".join(topics[name] for name in sorted(topics))


def main():
    """Train, print."""
    install_abort_hook()
    options = _options()
    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = Text(help_pages(), comm.Get_rank(), options.length)
    model = wrap(
        Transformer(len(text.letters), options.length, options.width, options.layers),
        comm,
        options.strategy,
        optimizer=torch.optim.AdamW,
        overlap=options.overlap,
        bucket_bytes=options.bucket_bytes,
        lr=1e-3,
    )
    for step in range(1, options.steps + 1):
        with model.step():
            loss = loss_of(model, *text.batch(options.rows))
            model.optimizer.zero_grad()
            loss.backward()
            model.optimizer.step()
        if step % options.every == 0 or step == options.steps:
            mean = comm.allreduce(loss.item()) / comm.Get_size()
            if comm.Get_rank() == 0:
                print(f"step {step:4}  loss {mean:.4f}", flush=True)
    model.settle()
    if comm.Get_rank() == 0:
        _print_costs(model)


def _print_costs(model):
    meter = model.meter
    hidden = model.meter.hidden(1)
    for name in ("step_s", "compute_s", "communication_s", "exposed_s"):
        print(f"{name[:-2]:>13} {meter.typical(name, 1) * 1e3:8.1f} ms")
    print(
        "hidden: "
        + (
            "nothing to hide"
            if hidden is None
            else f"{hidden:.0%} of the communication that could be"
        )
    )
    print(
        f"sent per step: {meter.typical('bytes') / 1e6:.2f} MB; optimizer state"
        f" {model.optimizer_bytes / 1e6:.2f} MB"
    )


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--strategy", default="zero2", choices=("allreduce", "zero1", "zero2"))
    add("--overlap", default="all", choices=("none", "gradients", "all"))
    add("--steps", type=int, default=50)
    add("--every", type=int, default=10, help="steps between two printed losses (default 10)")
    add("--rows", type=int, default=8, help="pieces of text per rank and step (default 8)")
    add_size(parser, width=128, layers=4)
    add("--bucket-bytes", type=parse_bytes, default=1 << 20)
    options = parser.parse_args()
    if (
        options.steps < 2
        or min(options.every, options.rows, options.length, options.layers) < 1
        or options.width % 4
    ):
        parser.error("expected at least 2 steps, a width that 4 divides, and positive numbers")
    return options


if __name__ == "__main__":
    main()
