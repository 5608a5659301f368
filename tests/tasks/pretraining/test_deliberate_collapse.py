"""Self-distillation of digits that is made to collapse, and named by what it writes about itself."""

import numpy as np
import pytest
import torch

from paucal.backbones import BackboneSpec
from paucal.data.dataset import SampleKey, ViewDataset, collate
from paucal.data.sources.opening import open_digits
from paucal.data.views.multi_crop import build_crop_transforms
from paucal.data.views.normalisation import Normalisation
from paucal.evaluation.collapse import PATIENCE, find_collapse
from paucal.objectives import SelfDistillation, SelfDistillationOptions
from paucal.tasks.pretraining.stage_watch import CollapseWatcher
from paucal.training.meters import Meters
from paucal.types import Crops, Progress

TINY = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
CROPS = [Crops(2, 16, (0.4, 1.0)), Crops(2, 8, (0.2, 0.5))]
K, BATCH, STEPS = 64, 32, 12  # steps in an epoch
SCHEDULED = 14 * STEPS  # of which the first ones are made: the teacher's momentum rises to 1 at the end
HEALTHY = {
    "out_dim": K,
    "hidden_dim": 64,
    "bottleneck_dim": 32,
    "tasks": "view",
    "teacher_temperature": 0.04,
    "warmup_teacher_temperature": 0.04,
    "momentum": 0.98,
    "freeze_last_layer": 0,
    "weight_decay_end": 0.04,
}


def watched_run(epochs: int, **options) -> tuple[CollapseWatcher, list[str], list[dict[str, float]]]:
    """Train a two-block ViT as the trainer does, and let the watcher look after each epoch."""
    torch.manual_seed(0)
    spec = BackboneSpec("vit_tiny_patch16_224", 0, image_size=(16, 16), arguments=TINY)
    numbers = SelfDistillationOptions(**{**HEALTHY, **options})
    objective = SelfDistillation(spec, CROPS, numbers, drop_path_rate=0.0).train()
    optimizer = torch.optim.AdamW([p for p in objective.parameters() if p.requires_grad], lr=2e-3)
    images = open_digits(labelled=False)
    views = build_crop_transforms("dino", CROPS, Normalisation((0.3,) * 3, (0.35,) * 3), blur=(0.01, 0.15), hflip=0.0)
    dataset = ViewDataset(images, views, seed=0, with_labels=False)
    said: list[str] = []

    def judged(rows, patience):
        scale = {"batch": BATCH, "grace_steps": 2 * STEPS, "patience": patience or PATIENCE}
        return find_collapse(rows, K, objective.student.backbone.dim, **scale)

    watcher = CollapseWatcher("warn", judged, said.append)
    rows, order = [], np.random.default_rng(0)
    for epoch in range(epochs):
        meters = Meters()
        for step in range(epoch * STEPS, (epoch + 1) * STEPS):
            keys = [SampleKey(step, int(index)) for index in order.choice(len(images), BATCH, replace=False)]
            terms = objective(collate(dataset.__getitems__(keys)), Progress(step, SCHEDULED, STEPS))
            optimizer.zero_grad()
            terms.total.backward()
            objective.before_step(Progress(step, SCHEDULED, STEPS))
            optimizer.step()
            objective.after_step(Progress(step + 1, SCHEDULED, STEPS))
            meters.add(terms, terms.total)
            meters.add_diagnostics(objective.diagnostics())
        rows.append({"epoch": epoch + 1.0, "step": (epoch + 1.0) * STEPS, **meters.read()})
        watcher.assess(rows[-1])
    return watcher, said, rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kind", "cause"),
    [
        ({"teacher_temperature": 1.0, "warmup_teacher_temperature": 1.0}, "uniform output", "temperature is 1;"),
        ({"centre_momentum": 1.0}, "constant output", "switch centring on"),
        ({"momentum": 0.0}, "constant output", "give the teacher a momentum"),
    ],
    ids=["teacher too hot", "no centring", "momentum 0"],
)
def test_watcher__names_a_collapse_that_was_asked_for(options, kind, cause):
    watcher, said, rows = watched_run(5, **options)
    assert watcher.verdict is not None, rows[-1]
    assert watcher.verdict.kind == kind
    assert cause in watcher.verdict.advice.split(". ")[0]
    assert kind in said[0]
