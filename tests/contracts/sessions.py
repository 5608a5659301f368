"""A training session in a process of its own, which a test can kill."""

import multiprocessing
from pathlib import Path

import torch
from lightning.pytorch import Callback

from contracts import toys


class Counted(Callback):
    """Counts the steps of a session where another process can see them."""

    def __init__(self, steps):
        self.steps = steps

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps.value += 1


def session(name: str, folder: Path, workers: int, steps) -> None:
    torch.set_num_threads(1)
    # Loader processes would inherit the way this one was started, which imports everything anew.
    multiprocessing.set_start_method("fork", force=True)
    objective = toys.make(name)
    toys.train(objective, folder, epochs=60, workers=workers, save_every=3, callbacks=[Counted(steps)])
