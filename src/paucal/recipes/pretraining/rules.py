"""Settings of pre-training chosen from the data and the machine, each with the reason that is printed beside it.

Published values (EsViT, sections 4 and A; its program's runs) hold for a million images and batches of 512. Where the
data or the machine is smaller, a value is scaled by a rule that is named.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paucal.data.multi_crop import BLUR, GLOBAL_SCALE, LOCAL_SCALE
from paucal.recipes import rules_machine
from paucal.recipes.facts import Facts
from paucal.recipes.model import backbone_shape
from paucal.recipes.pretraining.published import RECIPES
from paucal.recipes.pretraining.settings import PretrainSettings
from paucal.recipes.rules_length import effective_batch, steps_per_epoch
from paucal.recipes.rules_model import SMALL

Choice = tuple[Any, str]
Rule = Callable[[Facts, PretrainSettings], Choice]

PAPER = "EsViT's value"
PAPER_BATCH, PAPER_SIDE, PAPER_LOCAL = 512, 224, 96
PAPER_IMAGES, PAPER_EPOCHS = 1_281_167, 300
PAPER_MOMENTUM, PAPER_PROTOTYPES = 0.996, 65536
NARROW = 256  # channels below which a backbone counts as small
LONG = 100  # epochs from which a run's settings are the published ones
MANY = 100_000  # images from which the published heads are left as they are
QUICK_MODEL, QUICK_EPOCHS = ("embed_dim=64", "depth=3", "num_heads=2"), 12
QUICKEST = 0.98  # teachers that follow faster let small runs collapse
CPU_VIEWS = 150_000  # images seen in a run on a processor: an hour or so with a small model


def model(facts: Facts, settings: PretrainSettings) -> Choice:
    """A small backbone for small images, else the paper's."""
    if facts.start is not None and facts.start.model is not None:
        return facts.start.model, f"the model of {facts.start.where}"
    side = settings.img_size[0] if settings.img_size else facts.hinted_size or facts.median_side
    if side <= SMALL:
        return "vit_mini", f"images of {side} pixels: a small transformer with a convolutional stem"
    return "swin_tiny_patch4_window7_224", "EsViT's main backbone"


def model_args(facts: Facts, settings: PretrainSettings) -> Choice:
    """Those of the start, so that its weights fit; for the built-in images on a processor, a quick model's."""
    start = facts.start
    if start is None and settings.model == "vit_mini" and facts.hinted_epochs and settings.device == "cpu":
        return list(QUICK_MODEL), "a first look at this data set in about two minutes"
    if start is None or not start.model_args or settings.model != start.model:
        return None, ""
    return list(start.model_args), f"those of {start.where}"


def img_size(facts: Facts, settings: PretrainSettings) -> Choice:
    """The images' own size where they are small, else the paper's."""
    if facts.hinted_size:
        return [facts.hinted_size], "what suits this data set"
    for side in (32, 64, 96):
        if facts.median_side <= side * 1.25:
            return [side], f"the images' shorter side is {facts.median_side} pixels (median)"
    return [PAPER_SIDE], PAPER


def local_crops(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's eight; four where a processor trains."""
    if settings.local_size:
        return [8 // len(settings.local_size)] * len(settings.local_size), "eight in all, as in the paper"
    if settings.device == "cpu":
        return [4], "half of the paper's eight: a processor trains"
    return [8], PAPER


def local_size(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's 96 for 224; half of a small side."""
    side = min(settings.img_size or [PAPER_SIDE])
    if side == PAPER_SIDE:
        return [PAPER_LOCAL] * len(settings.local_crops or [0]), PAPER
    step = 16 if side > SMALL else 4
    chosen = max(step, round(side * (0.5 if side <= SMALL else PAPER_LOCAL / PAPER_SIDE) / step) * step)
    return [chosen] * len(settings.local_crops or [0]), f"about half of the global crops' {side} pixels"


def global_scale(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's areas; wider without local crops, as its program advises."""
    if not sum(settings.local_crops or []):
        return [0.14, 1.0], "what EsViT's program advises without local crops"
    return list(GLOBAL_SCALE), PAPER


def local_scale(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's areas; larger in small images, of which a twentieth shows nothing."""
    if min(settings.img_size or [PAPER_SIDE]) <= SMALL:
        return [0.2, 0.5], "a twentieth of a small image shows nothing"
    return list(LOCAL_SCALE), PAPER


def blur(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's radii at its size, in proportion at others."""
    share = min(settings.img_size or [PAPER_SIDE]) / PAPER_SIDE
    return [
        round(radius * share, 3) for radius in BLUR
    ], f"EsViT's {BLUR[0]:g} to {BLUR[1]:g} at 224 pixels, in proportion"


def hflip(facts: Facts, settings: PretrainSettings) -> Choice:
    """Half of the crops, unless a mirrored image means something else."""
    return (0.5, PAPER) if facts.flip else (0.0, "a mirrored image of this data set means something else")


def normalise(facts: Facts, settings: PretrainSettings) -> Choice:
    """The data's own statistics, unless the run starts from weights that had others."""
    if facts.start is not None:
        return facts.start.normalise, f"as for {facts.start.where}"
    return "computed", "mean and deviation of these images"


def batch_size(facts: Facts, settings: PretrainSettings) -> Choice:
    """At least ten steps an epoch, and no more than the paper's images per device."""
    training = settings.as_training()
    share = facts.n_train // (rules_machine.processes(training) * settings.accumulate)
    size = max(2, min(2 ** int(math.log2(max(share / 10, 16))), 64, share))
    return size, f"{facts.n_train} images: at least 10 steps an epoch where that is possible, at most 64 a device"


def epochs(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's views for larger sets, its 300 epochs for smaller ones, and what a processor can do."""
    if facts.n_train > PAPER_IMAGES:
        return max(1, round(PAPER_EPOCHS * PAPER_IMAGES / facts.n_train)), "as many images seen as EsViT's 300 epochs"
    if facts.hinted_epochs:
        return QUICK_EPOCHS, "a first look at this data set"
    if settings.device == "cpu":
        chosen = max(10, min(PAPER_EPOCHS, round(CPU_VIEWS / facts.n_train)))
        return chosen, f"what a processor can do; the paper's {PAPER_EPOCHS} are better"
    return PAPER_EPOCHS, PAPER


def lr(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's rate, in proportion to the batch; by the square root for small batches, as suits AdamW."""
    training = settings.as_training()
    batch, dim = effective_batch(training), backbone_shape(training).dim
    recipe = RECIPES.get(settings.recipe or "")
    published = None if recipe is None else recipe.rate(settings.recipe or "", batch)
    if published is not None:
        return published
    if batch >= PAPER_BATCH:
        return round(5e-4 * batch / 256, 8), f"EsViT's 5e-4 for 256 images, here {batch}"
    anchor, source = (64, "tried for small backbones") if dim < NARROW else (PAPER_BATCH, "EsViT's")
    return round(
        1e-3 * math.sqrt(batch / anchor), 8
    ), f"1e-3 at batch {anchor} ({source}), times sqrt({batch}/{anchor})"


def head_norm(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's none for many images; batch statistics keep the answers to few images apart."""
    if facts.n_train < MANY:
        return "batch", "few images: without it small runs ended with the same answer to all of them"
    return "none", PAPER


def min_lr(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's floor, but never above a hundredth of the peak."""
    return min(1e-6, (settings.lr or 1e-4) / 100), PAPER


def warmup_epochs(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's 10 of 300, and a tenth of a short run."""
    return min(10.0, 0.1 * (settings.epochs or 1)), "a tenth of the epochs, and at most EsViT's 10"


def tasks(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's two tasks for long runs; in short ones the region task was tried and found to harm."""
    if settings.region_after or (settings.epochs or 0) >= LONG:
        return "view+region", PAPER
    return "view", f"under {LONG} epochs the region task made features worse where it was tried (docs/lab_notes.md)"


def out_dim(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's prototypes for a million images, fewer for fewer."""
    chosen = 2 ** round(math.log2(max(facts.n_train / 4, 1)))
    chosen = max(256, min(PAPER_PROTOTYPES, chosen))
    return chosen, f"{facts.n_train} images: about one for 4 of them, at most EsViT's {PAPER_PROTOTYPES}"


def hidden_dim(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's width, narrower for a narrow backbone."""
    dim = backbone_shape(settings.as_training()).dim
    if 4 * dim >= 2048:
        return 2048, PAPER
    return 4 * dim, f"four times the {dim} channels of the backbone"


def bottleneck_dim(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's width, narrower for a narrow backbone."""
    dim = backbone_shape(settings.as_training()).dim
    return min(256, dim), PAPER if dim >= 256 else f"the {dim} channels of the backbone"


def teacher_temperature(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's for long runs; a short one keeps the cooler beginning."""
    if (settings.epochs or 0) >= LONG:
        return 0.07, PAPER
    return settings.warmup_teacher_temperature, "a short run keeps the teacher as sharp as at its beginning"


def warmup_teacher_epochs(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's 30 of 300, and a tenth of a short run."""
    return min(30, math.ceil(0.1 * (settings.epochs or 1))), "a tenth of the epochs, as in EsViT's 300"


def momentum(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's for 512 images; the same average over images for other batches; quicker in a short run."""
    batch = effective_batch(settings.as_training())
    steps = (settings.epochs or 1) * steps_per_epoch(facts, settings.as_training())
    scaled, quick = PAPER_MOMENTUM ** (batch / PAPER_BATCH), max(QUICKEST, 1 - 20 / max(steps, 20))
    if quick < scaled:
        return round(quick, 6), f"a run of {steps} steps: the teacher averages over {round(1 / (1 - quick))} of them"
    return round(scaled, 6), f"EsViT's {PAPER_MOMENTUM} for {PAPER_BATCH} images, the same over images for {batch}"


def drop_path(facts: Facts, settings: PretrainSettings) -> Choice:
    """The paper's rates for long runs of its backbones; none for small ones."""
    name = settings.model or ""
    if "swin_small" in name or "swin_base" in name or "swin_large" in name:
        return 0.2, PAPER
    return (0.1, PAPER) if name.startswith(("swin", "esvit", "cvt", "vil")) else (0.0, "a small backbone")


def _machine(rule: Callable) -> Rule:
    def choose(facts: Facts, settings: PretrainSettings) -> Choice:
        return rule(facts, settings.as_training())

    choose.__name__ = rule.__name__
    return choose


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        *map(_machine, (rules_machine.device, rules_machine.devices, rules_machine.nodes, rules_machine.strategy)),
        *(model, model_args, img_size, local_crops, local_size, global_scale, local_scale, blur, hflip, normalise),
        *(batch_size, epochs, lr, min_lr, warmup_epochs, tasks, out_dim, hidden_dim, bottleneck_dim, head_norm),
        *(teacher_temperature, warmup_teacher_epochs, momentum, drop_path),
        *map(_machine, (rules_machine.precision, rules_machine.workers)),
    )
}


def resolve(settings: PretrainSettings, facts: Facts) -> tuple[PretrainSettings, dict[str, str]]:
    """Fill in every setting that is None and has a rule.

    Returns:
        The settings, and the reason of each value that was chosen.
    """
    reasons: dict[str, str] = {}
    for name, rule in RULES.items():
        if getattr(settings, name) is None:
            value, reason = rule(facts, settings)
            if value is not None:
                reasons[name], settings = reason, replace(settings, **{name: value})
    return settings, reasons
