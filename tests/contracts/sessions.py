"""A training session in a process of its own, which a test can kill."""

import multiprocessing
from pathlib import Path

import torch
from lightning.pytorch import Callback

from contracts import toys
from paucal.training import Validation


class Counted(Callback):
    """Counts the steps of a session where another process can see them."""

    def __init__(self, steps):
        self.steps = steps

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps.value += 1


def size_of_weights(model, device) -> dict[str, float]:
    """A score that changes with every step, so that some epochs are the best so far and others are not."""
    weights = torch.cat([value.detach().flatten() for value in model.parameters()])
    return {"val_size": float(weights.double().square().sum()), "val_loss": 0.0}


def session(name: str, folder: Path, workers: int, steps) -> None:
    torch.set_num_threads(1)
    # Loader processes would inherit the way this one was started, which imports everything anew.
    multiprocessing.set_start_method("fork", force=True)
    objective = toys.make(name)
    validation = Validation(size_of_weights, "val_size", "val_loss")
    toys.train(
        objective,
        folder,
        epochs=60,
        batch=16,
        workers=workers,
        validation=validation,
        save_every=3,
        callbacks=[Counted(steps)],
    )
