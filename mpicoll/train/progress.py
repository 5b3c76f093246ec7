"""The progress bar of rank 0."""

from contextlib import contextmanager

from .extras import require


@contextmanager
def progress_bar(samples, shown):
    """Yield `advance(count, loss)`, which moves a bar over `samples` samples where `shown`, and else does nothing."""
    if not shown:
        yield lambda count, loss: None
        return
    with require("tqdm").tqdm(total=samples, unit=" samples", unit_scale=True, dynamic_ncols=True) as bar:

        def advance(count, loss):
            bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            bar.update(count)

        yield advance
