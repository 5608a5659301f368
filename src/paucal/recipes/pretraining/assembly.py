"""Everything a pre-training run needs, put together from its settings and its images."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import timm
import torch
from torch import nn

from paucal.backbones.load_report import LoadReport
from paucal.backbones.spec import BackboneSpec
from paucal.data.cache import cache_images
from paucal.data.images import ImageSet
from paucal.data.multi_crop import BLUR, crop_views
from paucal.data.normalisation import Normalisation
from paucal.data.sources import open_images
from paucal.data.splits import Split
from paucal.evaluation.deployed import Card, Preprocessing
from paucal.objectives import SelfDistillation, SelfDistillationOptions
from paucal.objectives.self_distillation import crop_size
from paucal.recipes.auto import origins
from paucal.recipes.facts import Facts
from paucal.recipes.loaders import normalisation
from paucal.recipes.model import backbone_spec, image_size
from paucal.recipes.plans import check_plan, training_plan
from paucal.recipes.prepare import Advance, Prepared
from paucal.recipes.pretraining.monitor import Monitor, knn_monitor
from paucal.recipes.pretraining.rules import resolve
from paucal.recipes.pretraining.settings import PretrainSettings
from paucal.recipes.pretraining.stages import tasks_at
from paucal.recipes.resuming import stored_split
from paucal.recipes.rules_model import SMALL
from paucal.recipes.starting import find_start, load_start
from paucal.recipes.voice import Voice
from paucal.runs import RunFolder
from paucal.training import Optimization, Plan, WarmupThenCosine
from paucal.types import Crops, UserError

OWN = "esvit_"  # before timm's names


@dataclass(frozen=True)
class AssembledPretraining:
    """Everything a pre-training run needs, checked, with nothing written yet."""

    settings: PretrainSettings
    origin: Mapping[str, str]
    prepared: Prepared
    plan: Plan
    objective: SelfDistillation
    card: Card
    remarks: tuple[str, ...]
    start: LoadReport | None = None
    monitor: Monitor | None = None

    def describe(self) -> str:
        """Return one line: name, parameters, crops, grid, tasks."""
        backbone, spec = self.objective.student.backbone, self.card.backbone
        own = sum(p.numel() for p in self.objective.deployable().parameters())
        heads = sum(p.numel() for p in self.objective.student.heads.parameters())
        grid = f"grid {backbone.grid[0]}x{backbone.grid[1]}"
        weights = f"{own / 1e6:.2f} M parameters and {heads / 1e6:.2f} M in heads"
        return f"{spec.name}, {weights}, {self.describe_crops()}, {grid}; tasks: {self.settings.tasks}"

    def describe_crops(self) -> str:
        """Return the groups of crops as text."""
        groups = crop_groups(self.settings)
        return " and ".join(f"{g.count} crops of {'x'.join(map(str, crop_size(g)))}" for g in groups)


def assemble(
    settings: PretrainSettings,
    given: Mapping[str, str],
    voice: Voice,
    run: RunFolder | None = None,
) -> AssembledPretraining:
    """Open the images, choose what was left open, build the objective; write nothing.

    Args:
        settings: what was given or stored.
        given: the origin of each setting that was given.
        voice: shows progress.
        run: the run that goes on; None for a new one.

    Raises:
        UserError: the images or a setting do not do.
    """
    start = find_start(settings.as_training(), run)
    with voice.progress("reading images") as advance:
        images = load_unlabelled(settings, advance)
    prepared = Prepared(images, _split(images) if run is None else stored_split(run, images))
    facts = replace(prepared.facts(), start=start.facts)
    settings, reasons = resolve(settings, facts)
    settings, renamed = with_published_order(settings)
    check_images(settings, facts)
    check_tasks(settings)
    training = settings.as_training()
    groups = crop_groups(settings)
    # Weights drawn here must not depend on what was drawn before, nor disturb what is drawn after.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        spec, notes = backbone_spec(training, 0)
        objective = build_objective(replace(settings, tasks=tasks_at(settings, run)), spec, groups)
    statistics = normalisation(training, prepared)
    ratio = 1.0 if min(image_size(training)) <= SMALL else 224 / 256
    card = Card(spec, (), Preprocessing(image_size(training), ratio, "bicubic", statistics.mean, statistics.std))
    views(settings, statistics)  # raises if the settings do not fit
    monitor = open_monitor(settings, card)
    # timm knows the weights of a Swin under its own name.
    loaded = load_start(start, replace(training, model=timm_name(settings.model or "")), objective, ())
    plan = training_plan(training, facts)
    remarks = [*images.notes, *renamed, *check_plan(training, facts), *(loaded.lines() if loaded else ()), *notes]
    return AssembledPretraining(
        settings, origins(settings, given, reasons), prepared, plan, objective, card, tuple(remarks), loaded, monitor
    )


def open_monitor(settings: PretrainSettings, card: Card) -> Monitor | None:
    """Return the function that tries nearest neighbours on labelled images; None where none are given.

    Raises:
        UserError: the images do not do.
    """
    if settings.monitor is None:
        return None
    return knn_monitor(
        settings.monitor,
        card.preprocessing,
        most=settings.monitor_images,
        seed=settings.seed,
        workers=settings.workers or 0,
        device=settings.device or "cpu",
        data_root=settings.data_root,
    )


def load_unlabelled(settings: PretrainSettings, advance: Advance | None = None) -> ImageSet:
    """Open the images of any nesting of folders without their labels, and decode each once.

    Raises:
        UserError: there are none, or some cannot be read.
    """
    images = open_images(settings.data, labelled=False, root=settings.data_root, download=settings.download)
    return cache_images(images, on_bad=settings.on_bad_image, progress=advance)[0]


def _split(images: ImageSet) -> Split:
    """Take all images but those that the data declares as its test part."""
    parts = np.where(np.asarray(images.declared) == "test", "unused", "train").astype("<U6")
    left = int((parts == "unused").sum())
    words = f"the {left} images of the data's own test part are left out" if left else "all images are used"
    return Split(parts, f"{words}; labels are not used")


def with_published_order(settings: PretrainSettings) -> tuple[PretrainSettings, list[str]]:
    """Build Swin as EsViT does, whose windows are padded before they are shifted: crops of 96 pixels need it.

    The weights have timm's names and shapes, and timm's own Swin loads them strictly.
    """
    name = f"{OWN}{settings.model}"
    if timm_name(name) == name:
        return settings, []
    text = (
        f"{settings.model} is built as {name}, which pads before it shifts; timm's {settings.model} loads its weights"
    )
    return replace(settings, model=name), [text]


def timm_name(name: str) -> str:
    """Return the name under which timm has a Swin that is built in EsViT's order; other names stay.

    Example:
        >>> timm_name("esvit_swin_tiny_patch4_window7_224"), timm_name("esvit_cvt_tiny")
        ('swin_tiny_patch4_window7_224', 'esvit_cvt_tiny')
    """
    return name.removeprefix(OWN) if name.startswith(f"{OWN}swin_") and name in timm.list_models() else name


def crop_groups(settings: PretrainSettings) -> list[Crops]:
    """Return the groups of crops, the global one first.

    Raises:
        UserError: numbers and sizes of the local crops do not belong together, or there is only one crop.
    """
    counts, sizes = settings.local_crops or [], settings.local_size or []
    if len(counts) != len(sizes) and sum(counts):
        raise UserError(
            f"--local-crops has {len(counts)} numbers and --local-size {len(sizes)}: give one number for each size."
        )
    scale, near = _range("global_scale", settings.global_scale), _range("local_scale", settings.local_scale)
    groups = [Crops(settings.global_crops, image_size(settings.as_training()), scale)]
    groups += [Crops(count, size, near) for count, size in zip(counts, sizes, strict=False) if count]
    if settings.global_crops < 1 or sum(group.count for group in groups) < 2:
        raise UserError(
            f"--global-crops {settings.global_crops} and --local-crops {sum(counts)} make no pair of crops to compare: "
            "ask for 2 crops or more, one of them global."
        )
    return groups


def _range(name: str, values: list[float] | None) -> tuple[float, float]:
    flag = "--" + name.replace("_", "-")
    if values is None or len(values) != 2 or not 0 < values[0] <= values[1] <= 1:
        raise UserError(f"{flag} is {values}; expected two shares of the area, such as 0.4 1.0.")
    return values[0], values[1]


def _blur(values: list[float] | None) -> tuple[float, float]:
    if values is None:
        return BLUR
    if len(values) != 2 or not 0 <= values[0] <= values[1]:
        raise UserError(f"--blur is {values}; expected the smallest and the largest radius in pixels, such as 0.1 2.0.")
    return values[0], values[1]


def views(settings: PretrainSettings, statistics: Normalisation):
    """Return the transforms of the crops and how many each makes."""
    low, high = _blur(settings.blur)
    size = image_size(settings.as_training())
    return crop_views(settings.pipeline, crop_groups(settings), statistics, size, (low, high), settings.hflip or 0.0)


def check_tasks(settings: PretrainSettings) -> None:
    """Refuse tasks that contradict each other.

    Raises:
        UserError: the region task shall join a run of the view task alone, or after the run's end.
    """
    if settings.region_after is None:
        return
    if settings.tasks == "view":
        raise UserError("--region-after lets the region task join, and --tasks view leaves it out: give one of them.")
    if settings.region_after >= (settings.epochs or 1):
        raise UserError(
            f"--region-after {settings.region_after} leaves none of the {settings.epochs} epochs to the region task: "
            "give fewer, or more --epochs."
        )


def check_images(settings: PretrainSettings, facts: Facts) -> None:
    """Refuse sets that are too small.

    Raises:
        UserError: there are fewer images than a step takes.
    """
    if facts.n_train < 2:
        raise UserError(f"there is {facts.n_train} image, and self-distillation compares several: give more images.")
    wanted = (settings.batch_size or 1) * settings.accumulate * (settings.devices or 1) * (settings.nodes or 1)
    if facts.n_train < wanted:
        raise UserError(
            f"a step takes {wanted} images and there are {facts.n_train}: give a smaller --batch-size, or more images."
        )


def build_objective(settings: PretrainSettings, spec: BackboneSpec, groups: list[Crops]) -> SelfDistillation:
    """Build the objective.

    Raises:
        UserError: the backbone cannot take the crops, or options do not go together.
    """
    if settings.mixup and settings.tasks != "view":
        raise UserError(
            "--mixup mixes crops, and a mixed cell has no one counterpart: give --tasks view, or leave it out."
        )
    options = SelfDistillationOptions(
        tasks=settings.tasks or "view+region",
        similarity=settings.similarity,
        out_dim=settings.out_dim or 65536,
        hidden_dim=settings.hidden_dim or 2048,
        bottleneck_dim=settings.bottleneck_dim or 256,
        head_layers=settings.head_layers,
        head_batch_norm=settings.head_norm == "batch",
        norm_last_layer=not settings.learn_lengths,
        freeze_last_layer=settings.freeze_last_layer,
        student_temperature=settings.student_temperature,
        teacher_temperature=settings.teacher_temperature or 0.07,
        warmup_teacher_temperature=settings.warmup_teacher_temperature,
        warmup_teacher_epochs=settings.warmup_teacher_epochs or 0,
        momentum=0.996 if settings.momentum is None else settings.momentum,
        centre_momentum=settings.centre_momentum,
        weight_decay=settings.weight_decay,
        weight_decay_end=settings.weight_decay_end,
        clip=settings.clip,
        teacher_norm=settings.teacher_norm,
        mixup=settings.mixup,
    )
    objective = SelfDistillation(spec, groups, options, settings.drop_path)
    several = (settings.devices or 1) * (settings.nodes or 1) > 1
    if several and settings.device == "cuda":  # as published; torch has no such norm for processors
        for network in (objective.student, objective.teacher):
            network.backbone.model = nn.SyncBatchNorm.convert_sync_batchnorm(network.backbone.model)
            network.heads = nn.SyncBatchNorm.convert_sync_batchnorm(network.heads)  # type: ignore[assignment]
    return objective


def optimization(settings: PretrainSettings, plan: Plan) -> Optimization:
    """Return the optimizer's settings in steps; clipping and the decay's schedule are the objective's."""
    warmup = round((settings.warmup_epochs or 0) * plan.steps_per_epoch)
    schedule = WarmupThenCosine(settings.lr or 0.0, plan.total_steps, warmup, settings.min_lr or 0.0)
    # AdamW's own decay is that of the end; the objective scales it down to that of the step.
    return Optimization(schedule, weight_decay=settings.weight_decay_end, clip=None)
