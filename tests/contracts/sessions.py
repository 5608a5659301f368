"""A training session in a process of its own, which a test can kill."""

from pathlib import Path

import torch
from lightning.pytorch import Callback

from contracts import toys


class Begun(Callback):
    """Says when the first step of a session begins."""

    def __init__(self, event):
        self.event = event

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.event.set()


def session(name: str, folder: Path, workers: int, event) -> None:
    torch.set_num_threads(1)
    objective = toys.make(name)
    toys.train(objective, folder, epochs=60, workers=workers, save_every=3, callbacks=[Begun(event)])
