"""Three small objectives that together use every part of the contract, and a way to train any objective.

They stand for what later methods need: two networks and several crops; geometry and dense targets; per-block grids.
"""

import copy
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from paucal.backbones import BackboneSpec
from paucal.data.dataset import ViewDataset
from paucal.data.images import ImageSet
from paucal.data.loader import make_train_loader
from paucal.data.sampler import StepSampler
from paucal.data.sources.opening import open_digits
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import TrainTransform
from paucal.distributed import all_reduce_mean, rank, world_size
from paucal.losses.visreg import WEIGHT
from paucal.objectives import Objective, SelfDistillation, SelfDistillationOptions
from paucal.objectives.one_network import Diet, LeJepa, LeJepaOptions, VisReg
from paucal.runs import RunFolder
from paucal.training import (
    CosineWarmup,
    Hardware,
    Optimization,
    Outcome,
    Plan,
    RunHooks,
    TimePlan,
    Validation,
    checkpoint_step,
    fit,
)
from paucal.training.plan import OptimizerName
from paucal.types import Crops, DataRequest, FeatureRequest, GroupScale, LossTerms

SIZE = 16
TINY = {"patch_size": 4, "embed_dim": 32, "num_heads": 2}


def spec(num_classes: int = 10, depth: int = 1) -> BackboneSpec:
    """A ViT without batch statistics, so that several processes can equal one."""
    return BackboneSpec(
        "vit_tiny_patch16_224", num_classes, image_size=(SIZE, SIZE), arguments={**TINY, "depth": depth}
    )


class TwoNetworks(Objective):
    """A student on small crops follows a moving-average teacher on large ones; a centre is kept beside them."""

    data_request = DataRequest(views=(Crops(1, SIZE), Crops(2, 8)), labels=False, mixing=False, smallest_batch=2)

    def __init__(self):
        super().__init__()
        self.student = spec(0).build(image_sizes=[(SIZE, SIZE), (8, 8)])
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.head = nn.Linear(32, 8)
        self.frozen_head = nn.Linear(8, 8)
        self.register_buffer("centre", torch.zeros(32))

    def forward(self, batch, progress):
        with torch.no_grad():
            target = self.teacher(batch.views[0]).pooled
            self.latest = target.mean(0)
            target = F.layer_norm(target, (32,))
        small = [self.student(view).pooled for view in batch.views[1:]]
        match = torch.stack([F.mse_loss(view, target) for view in small]).mean()
        outputs = [self.frozen_head(self.head(view)) for view in small]
        spread = torch.stack([(output - 1).square().mean() for output in outputs]).mean()
        return LossTerms({"match": match, "spread": spread}, {"spread": 0.5})

    def backbones(self):
        return [self.teacher, self.student]

    def deployable(self):
        return self.teacher.model

    def parameter_group(self, name):
        return "head" if "head" in name else "main"

    def group_scales(self, progress):
        return {"head": GroupScale(lr=2.0, weight_decay=progress.step / progress.total_steps)}

    def before_step(self, progress):
        if progress.epoch == 0:  # as EsViT holds its last layer still in the first epoch
            for parameter in self.frozen_head.parameters():
                parameter.grad = None

    @torch.no_grad()
    def after_step(self, progress):
        for teacher, student in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            teacher.lerp_(student, 0.1)
        self.centre.lerp_(all_reduce_mean(self.latest), 0.5)

    def diagnostics(self):
        return {"centre_norm": self.centre.norm()}


class Geometry(Objective):
    """Tells for every cell where in the source image it lies, and what a dense target of the image is."""

    data_request = DataRequest(geometry=True, label_maps=True, mixing=False)

    def __init__(self):
        super().__init__()
        self.backbone = spec().build()
        self.where = nn.Conv2d(self.backbone.dim, 2, 1)
        self.what = nn.Conv2d(self.backbone.dim, 1, 1)

    def forward(self, batch, progress):
        features = self.backbone(batch.views[0])
        grid = features.grids[0]
        sampling = F.affine_grid(batch.geometry[0], [*batch.views[0].shape[:2], *grid.shape[-2:]], align_corners=False)
        ink = F.grid_sample(batch.label_maps["ink"][:, None], sampling, align_corners=False)
        return LossTerms(
            {
                "class": F.cross_entropy(features.logits, batch.labels),
                "where": F.l1_loss(self.where(grid), sampling.permute(0, 3, 1, 2)),
                "what": F.mse_loss(self.what(grid), ink),
            },
            {"where": 0.5},
        )

    def backbones(self):
        return [self.backbone]

    def deployable(self):
        return self.backbone.model


class PerBlock(Objective):
    """Classifies from the grid of every block."""

    data_request = DataRequest(mixing=False)
    request = FeatureRequest("blocks")

    def __init__(self):
        super().__init__()
        self.backbone = spec(depth=2).build()
        self.heads = nn.ModuleList(nn.Linear(dim, 10) for dim, _, _ in self.backbone.shapes(self.request))

    def forward(self, batch, progress):
        features = self.backbone(batch.views[0], self.request)
        losses = {"class": F.cross_entropy(features.logits, batch.labels)}
        for number, (grid, head) in enumerate(zip(features.grids, self.heads, strict=True)):
            losses[f"block{number}"] = F.cross_entropy(head(grid.mean((2, 3))), batch.labels)
        return LossTerms(losses, {name: 0.5 for name in losses if name != "class"})

    def backbones(self):
        return [self.backbone]

    def deployable(self):
        return self.backbone.model


def self_distillation() -> Objective:
    """The real thing, reduced; its losses begin at chance, from which a few steps hardly move them."""
    options = SelfDistillationOptions(
        out_dim=16, hidden_dim=32, bottleneck_dim=8, freeze_last_layer=0, momentum=0.9, weight_decay_end=0.04
    )
    return SelfDistillation(spec(0), [Crops(2, SIZE), Crops(2, 8)], options)


def lejepa() -> Objective:
    """The real thing, reduced, without statistics of a batch, so that several processes can equal one."""
    options = LeJepaOptions(directions=32, projection_dim=8, hidden_dim=32, norm="layer")
    return LeJepa(spec(0), [Crops(2, SIZE), Crops(2, 8)], options)


def visreg() -> Objective:
    """The real thing, reduced, without statistics of a batch, so that several processes can equal one."""
    options = LeJepaOptions(weight=WEIGHT, directions=32, projection_dim=8, hidden_dim=32, norm="layer")
    return VisReg(spec(0), [Crops(2, SIZE), Crops(2, 8)], options)


def diet() -> Objective:
    """The real thing, with a class for each of the digits."""
    return Diet(spec(0), [Crops(2, SIZE), Crops(2, 8)], 1797)


TOYS: dict[str, Callable[[], Objective]] = {
    "self_distillation": self_distillation,
    "lejepa": lejepa,
    "visreg": visreg,
    "diet": diet,
    "two_networks": TwoNetworks,
    "geometry": Geometry,
    "per_block": PerBlock,
}


def ink_map(images) -> Callable[[int], dict[str, torch.Tensor]]:
    """A dense target: the 8x8 picture itself, in [0, 1]."""

    def read(index: int) -> dict[str, torch.Tensor]:
        return {"ink": torch.from_numpy(np.asarray(images.store.read(index))[..., 0] / np.float32(255))}

    return read


def make(name: str, seed: int = 0) -> Objective:
    torch.manual_seed(seed)
    return TOYS[name]()


@functools.cache
def digits() -> ImageSet:
    return open_digits(True)


def toy_dataset(objective) -> ViewDataset:
    """Return the digits in the views that an objective asks for."""
    request = objective.data_request
    views = [
        (
            TrainTransform(
                (crops.size or SIZE, crops.size or SIZE),
                Augmentation(crop="padded", padding=2, hflip=0.5, rand_augment=None, erase_prob=0.0),
                Normalisation(),
                request.geometry,
            ),
            crops.count,
        )
        for crops in request.views
    ]
    maps = ink_map(digits()) if request.label_maps else None
    return ViewDataset(digits(), views, 3, request.labels, request.geometry, maps)


def train(
    objective: Objective,
    folder: Path,
    *,
    epochs: int = 3,
    batch: int = 8,
    images: int | None = None,
    workers: int = 0,
    accumulate: int = 1,
    average: float | None = 0.9,
    validation: Validation | None = None,
    on_start=None,
    callbacks=(),
    hardware: Hardware | None = None,
    lr: float = 3e-3,
    save_every: int = 500,
    optimizer: OptimizerName = "adamw",
    time: TimePlan | None = None,
    on_change=None,
) -> Outcome:
    """Train an objective on some digits, from the folder's saved state where there is one.

    By default an epoch has four steps.
    """
    hardware = hardware or Hardware()
    images = images or 4 * batch * accumulate * hardware.devices
    per_epoch = images // (batch * accumulate * hardware.devices)
    plan = Plan(
        *(epochs * per_epoch, per_epoch, accumulate),
        seed=3,
        n_classes=10,
        save_every=save_every,
        hardware=hardware,
        time=time,
    )
    run = RunFolder(folder)
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    start = checkpoint_step(run.last) * accumulate if run.last.exists() else 0
    dataset = toy_dataset(objective)

    def make_loader():
        steps = plan.most_steps * accumulate
        sampler = StepSampler(np.arange(images), batch, steps, 3, start, rank(), world_size(), accumulate=accumulate)
        return make_train_loader(dataset, sampler, workers)

    schedule = CosineWarmup(lr, plan.total_steps, warmup=2, floor=lr / 100)
    return fit(
        objective,
        make_loader,
        Optimization(schedule, weight_decay=0.05, clip=5.0, average_decay=average, optimizer=optimizer),
        plan,
        RunHooks(
            *(run, lambda module: torch.save(module.state_dict(), folder / "deployed.pt"), validation, None, on_start),
            on_change,
        ),
        callbacks=callbacks,
    )
