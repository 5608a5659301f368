"""Pre-training runs of seconds, and what they leave."""

import json

import torch
from lightning.pytorch import Callback

from paucal.methods.pretraining_settings import PretrainSettings
from paucal.runner.console import SilentConsole
from paucal.runner.life import begin
from paucal.runs import RunFolder
from paucal.tasks.pretraining.job import PretrainingJob

SMALL = {
    "model": "swin_tiny_patch4_window7_224",
    "model_args": ["patch_size=4", "embed_dim=16", "depths=[1, 1]", "num_heads=[2, 2]", "window_size=4"],
    "img_size": [32],
    "local_crops": [2],
    "local_size": [16],
    "out_dim": 32,
    "hidden_dim": 24,
    "bottleneck_dim": 8,
    "epochs": 4,
    "batch_size": 8,
    "drop_path": 0.1,
    "tasks": "view+region",
    "device": "cpu",
}


class StopAfter(Callback):
    """Asks for a stop, as a signal would, before a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step >= self.step - 1:
            next(c for c in trainer.callbacks if type(c).__name__ == "StopSignal").received = True


def start(pictures, output, callbacks=(), **changes):
    settings = PretrainSettings(data=str(pictures), output=str(output), **{**SMALL, **changes})
    return begin(
        PretrainingJob(),
        settings,
        dict.fromkeys([*SMALL, *changes, "data", "output"], "flag"),
        SilentConsole(),
        callbacks,
    )


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def state(run):
    return torch.load(RunFolder(run).last, weights_only=True)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
