"""Settings chosen from the data and the machine, each with the reason that is printed beside it.

Every rule is a small function of the facts and of the settings resolved before it; the order of `RULES` is the order
of resolution.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import timm

from paucal.objectives import default_weight
from paucal.recipes.facts import Facts
from paucal.recipes.model import backbone_shape
from paucal.recipes.published import recipe_rate
from paucal.recipes.settings import TrainSettings

Choice = tuple[Any, str]
Rule = Callable[[Facts, TrainSettings], Choice]

SMALL = 64  # pixels up to which an image is "small": CIFAR-like recipes apply
PAPER = "the paper's value"


def model(facts: Facts, settings: TrainSettings) -> Choice:
    """A small backbone for small images, else the paper's."""
    if facts.start is not None and facts.start.model is not None:
        return facts.start.model, f"the model of {facts.start.where}"
    if facts.start is not None:
        return "swin_tiny_patch4_window7_224", "the DrLoc paper's backbone for fine-tuning"
    size = settings.img_size[0] if settings.img_size else facts.hinted_size or facts.median_side
    if size <= SMALL:
        return "vit_mini", f"images of {size} pixels: a small transformer with a convolutional stem"
    return "swin_tiny_patch4_window7_224", "the DrLoc paper's main backbone"


def model_args(facts: Facts, settings: TrainSettings) -> Choice:
    """Those of the start, so that its weights fit."""
    start = facts.start
    if start is None or not start.model_args or settings.model != start.model:
        return None, ""
    return list(start.model_args), f"those of {start.where}"


def img_size(facts: Facts, settings: TrainSettings) -> Choice:
    """The start's; else the images' own where they are small, else the size the backbone was designed for."""
    if facts.start is not None:
        size = facts.start.image_size
        return _sides(size or _native(settings)), f"what suits {facts.start.where}"
    if facts.hinted_size:
        return [facts.hinted_size], "what suits this data set"
    for side in (32, 64, 96):
        if facts.median_side <= side * 1.25:
            return [side], f"the images' shorter side is {facts.median_side} pixels (median)"
    return _sides(_native(settings)), "the size this backbone was designed for"


def _native(settings: TrainSettings) -> tuple[int, int]:
    config = timm.get_pretrained_cfg(settings.model or "", allow_unregistered=True)
    return (config.input_size[1], config.input_size[2]) if config else (224, 224)


def _sides(size: tuple[int, int]) -> list[int]:
    return [size[0]] if size[0] == size[1] else list(size)


def epochs(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's 100, and more where a pass has few steps."""
    if facts.hinted_epochs:
        return facts.hinted_epochs, "enough for this data set"
    if settings.init is not None:
        return PAPER_EPOCHS, "the paper's fine-tuning schedule"
    steps = steps_per_epoch(facts, settings)
    wanted = math.ceil(MIN_STEPS / steps)
    if wanted <= PAPER_EPOCHS:
        return PAPER_EPOCHS, "the paper's from-scratch schedule"
    chosen = min(wanted, MAX_EPOCHS)
    return chosen, f"{steps} steps an epoch: about {chosen * steps} steps in all"


PAPER_EPOCHS, MAX_EPOCHS, MIN_STEPS = 100, 300, 2500


def batch_size(facts: Facts, settings: TrainSettings) -> Choice:
    """A tenth of the images for all devices together, at most the paper's 128 for each."""
    share = facts.n_train // (processes(settings) * settings.accumulate)
    size = 2 ** int(math.log2(max(share / 10, 16)))
    size = max(1, min(size, 128, share))
    if size == 128:
        return size, "the paper's images per device"
    return size, f"{facts.n_train} training images: at least 10 steps an epoch where that is possible"


def lr(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's rate, scaled by the square root of the batch, as suits AdamW; a small network takes more."""
    batch = effective_batch(settings)
    published = recipe_rate(settings, batch)
    if published is not None:
        return published
    anchor, source = (64, "tried for this small model") if settings.model == "vit_mini" else (1024, "the paper's")
    peak = 1e-3
    if settings.init is not None:
        peak, source = 5e-4, "half of from scratch, as in the paper's fine-tuning"
    chosen = round(peak * math.sqrt(batch / anchor), 8)
    return chosen, f"{peak:g} at batch {anchor} ({source}), times sqrt({batch}/{anchor})"


def min_lr(facts: Facts, settings: TrainSettings) -> Choice:
    """A hundredth of the peak."""
    return (settings.lr or 0.0) / 100, "a hundredth of the peak, as in the paper"


def warmup_epochs(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's 20 of 100 epochs, as a share, but never longer than 20."""
    if settings.init is not None:
        chosen = min(10.0, 0.1 * (settings.epochs or 1))
        return chosen, "a tenth of the epochs and at most 10, as in the paper's fine-tuning"
    chosen = min(20.0, 0.2 * (settings.epochs or 1))
    return chosen, "a fifth of the epochs and at most 20, as in the paper"


def schedule_epochs(facts: Facts, settings: TrainSettings) -> Choice:
    """The epochs that are run."""
    return settings.epochs, "the cosine ends with the run"


def average(facts: Facts, settings: TrainSettings) -> Choice:
    """An average over about the last twentieth of the run."""
    steps = (settings.epochs or 1) * steps_per_epoch(facts, settings)
    decay = round(min(0.9999, 1 - 1 / max(20.0, steps / 20)), 6)
    return decay, f"averages over about {round(1 / (1 - decay))} of {steps} steps"


def drop_path(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's 0.2 for Swin; its other backbones have none."""
    if (settings.model or "").startswith("swin"):
        return 0.2, "the paper's value for Swin"
    return 0.0, "the paper's value for backbones other than Swin"


def crop(facts: Facts, settings: TrainSettings) -> Choice:
    """Padded crops keep small images whole."""
    if _side(settings) <= SMALL:
        return "padded", "small images stay whole: shifted by up to an eighth"
    return "random-resized", "the paper's crop"


def crop_scale(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's smallest crop, where crops have a scale."""
    return (0.08, PAPER) if settings.crop == "random-resized" else (None, "")


def hflip(facts: Facts, settings: TrainSettings) -> Choice:
    """Half of the images, unless a mirrored one means something else."""
    return (0.5, PAPER) if facts.flip else (0.0, "a mirrored image of this data set means something else")


def rand_augment(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's policy; nothing for tiny images, which it makes unreadable."""
    if _side(settings) < 32:
        return "none", "images under 32 pixels become unreadable"
    return "rand-m9-mstd0.5-inc1", "the paper's policy"


def erase(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's probability."""
    return (0.0, "images under 32 pixels become unreadable") if _side(settings) < 32 else (0.25, PAPER)


def mixup(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's alpha; off for tiny images."""
    return (0.0, "images under 32 pixels become unreadable") if _side(settings) < 32 else (0.8, PAPER)


def cutmix(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's alpha; off for tiny images."""
    return (0.0, "images under 32 pixels become unreadable") if _side(settings) < 32 else (1.0, PAPER)


def normalise(facts: Facts, settings: TrainSettings) -> Choice:
    """Trained from scratch, the data's own statistics are the natural ones."""
    if facts.start is not None:
        return facts.start.normalise, f"as for {facts.start.where}"
    return "computed", "trained from scratch: mean and deviation of the training images"


def drloc_weight(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's weight of the backbone's family, or its safest one."""
    return default_weight(settings.model or "")


def drloc_pairs(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's number of pairs, fewer on a grid that has few to offer."""
    rows, columns = backbone_shape(settings).grid
    cells = rows * columns
    if 2 * cells >= PAPER_PAIRS:
        return PAPER_PAIRS, PAPER
    return 2 * cells, f"two for each of the {cells} cells; the paper has {PAPER_PAIRS} on 49"


def drloc_hidden(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's width, narrower for a narrow backbone."""
    dim = backbone_shape(settings).dim
    if 2 * dim >= PAPER_HIDDEN:
        return PAPER_HIDDEN, PAPER
    return 2 * dim, f"twice the {dim} channels of the grid; the paper has {PAPER_HIDDEN} for 384 and more"


PAPER_PAIRS, PAPER_HIDDEN = 64, 512


def device(facts: Facts, settings: TrainSettings) -> Choice:
    """The best there is."""
    return facts.device, "the best device of this machine"


def devices(facts: Facts, settings: TrainSettings) -> Choice:
    """All of a kind that work together; one process where the processor trains."""
    if facts.launched is not None:
        return facts.launched[0], "as the launcher has started"
    if settings.device == "cuda":
        return facts.devices, "all of this machine's"
    return 1, "one process uses all cores"


def nodes(facts: Facts, settings: TrainSettings) -> Choice:
    """As many as a launcher says."""
    return (facts.launched[1], "as the launcher has started") if facts.launched else (1, "this machine")


def precision(facts: Facts, settings: TrainSettings) -> Choice:
    """bfloat16 where it is native; float16 is never chosen, since it overflows on some small-data runs."""
    if settings.device == "cuda" and facts.bf16:
        return "bf16-mixed", "the GPU computes in bfloat16"
    return "32-true", "float32: safe everywhere"


def workers(facts: Facts, settings: TrainSettings) -> Choice:
    """One less than the cores beside an accelerator; none beside a processor that trains."""
    if settings.device == "cpu":
        return 0, "the processor is busy with training: loader processes would only slow it"
    chosen = min(8, facts.cores - 1)
    return chosen, f"{facts.cores} processor cores"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        *(
            device,
            devices,
            nodes,
            model,
            model_args,
            img_size,
            batch_size,
            epochs,
            schedule_epochs,
            lr,
            min_lr,
            warmup_epochs,
            average,
        ),
        *(drop_path, crop, crop_scale, hflip, rand_augment, erase, mixup, cutmix, normalise),
        *(drloc_weight, drloc_pairs, drloc_hidden, precision, workers),
    )
}


def resolve(settings: TrainSettings, facts: Facts) -> tuple[TrainSettings, dict[str, str]]:
    """Fill in every setting that is None and has a rule.

    Returns:
        The settings, and the reason of each value that was chosen.
    """
    reasons: dict[str, str] = {}
    for name, rule in RULES.items():
        if name.startswith("drloc") and "drloc" not in (settings.method, *(settings.add or ())):
            continue
        if getattr(settings, name) in (None, "auto"):
            value, reason = rule(facts, settings)
            if value is not None:
                reasons[name] = reason
                settings = replace(settings, **{name: value})
    return settings, reasons


def steps_per_epoch(facts: Facts, settings: TrainSettings) -> int:
    """Return the optimizer steps of one pass; an incomplete last batch is left out."""
    return max(1, facts.n_train // effective_batch(settings))


def processes(settings: TrainSettings) -> int:
    """Return the processes that train together."""
    return (settings.devices or 1) * (settings.nodes or 1)


def effective_batch(settings: TrainSettings) -> int:
    """Return the images of one optimizer step, over all devices and forward passes."""
    return settings.images_per_pass * settings.accumulate * processes(settings)


def origins(settings: TrainSettings, given: Mapping[str, str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return where each value comes from: "flag", "config", "auto: reason" or "default"."""
    return {
        name: given.get(name) or (f"auto: {reasons[name]}" if name in reasons else "default") for name in vars(settings)
    }


def _side(settings: TrainSettings) -> int:
    return min(settings.img_size or [224])
