"""Steps that are skipped because a gradient was no number, in a run from beginning to end."""

import json

import torch
from lightning.pytorch import Callback

import paucal
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import SilentConsole
from paucal.runner.life import begin
from paucal.runs import RunFolder
from paucal.tasks.classification.job import TrainingJob

SMALL = {
    "model": "vit_mini",
    "model_args": ["depth=1", "embed_dim=16", "num_heads=2"],
    "img_size": [16],
    "epochs": 3,
    "fraction": 0.097,
    "batch_size": 7,  # 17 steps an epoch, and 51 in all: one after the look at 50
    "workers": 0,
    "device": "cpu",
    "method": "supervised",
}


class Spoil(Callback):
    """Puts a NaN into a gradient in chosen steps."""

    def __init__(self, steps):
        self.steps = steps

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step in self.steps:
            next(p.grad for p in pl_module.parameters() if p.grad is not None).fill_(torch.nan)


def run(output, steps):
    settings = TrainSettings(data="digits", output=str(output), **SMALL)
    return begin(
        TrainingJob(), settings, dict.fromkeys([*SMALL, "data", "output"], "flag"), SilentConsole(), [Spoil(steps)]
    )


def test_run__whose_last_step_was_skipped_is_finished_like_any_other(tmp_path):
    result = run(tmp_path / "run", {50})
    rows = RunFolder(result.run).read_rows()
    assert [(row["step"], row["skipped_steps"]) for row in rows] == [(17, 0), (34, 0), (51, 1)]
    assert (result.run / "report.html").exists()
    assert json.loads((result.run / "summary.json").read_text())["epochs"] == 3
    assert paucal.load(result.run) is not None
    assert "the last step was skipped" in (result.run / "train.log").read_text()
