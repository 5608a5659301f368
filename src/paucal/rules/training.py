"""The rules of `paucal train`, in the order in which they choose settings; some are also used for other tasks.

Published values ("the paper") are from the DrLoc paper. `time` is the time budget of the run as given to `--time`, such
as "15m"; None if the run has no time budget.
"""

import math
from collections.abc import Sequence
from typing import Any

from paucal.backbones.names import timm_config
from paucal.data.sampler import steps_per_epoch
from paucal.recipes.dhvt import dhvt_variant
from paucal.recipes.recipe import recipe_learning_rate
from paucal.recipes.table import RECIPES, lvvit_drop_path
from paucal.rules.resolve import Choice, DataAndMachine, Rule, makes_few_passes, rules_by_name
from paucal.settings.options import DEFAULT_SIDE
from paucal.wording import counted

IMAGE_SIDES = (32, 64, 96)  # sides in pixels; slightly larger images are resized to one of these sides
SMALL_SIDE = 64  # side in pixels up to which images are "small" and are used in training like CIFAR images
PAPER_REASON = "the DrLoc paper's value"
MEASURED_REASON = "the transformer that learned most from few images"  # benchmarks/results/small_data_*.json
QUICK_MODEL = "resnet10t"  # timm's name of the "quick model"
# In the same time, dhvt_mini at 64 pixels and resnet10t at 96 pixels were less accurate (docs/lab/: a good model in
# minutes).
QUICK_REASON = (
    "learns fastest from photographs on a CPU from scratch; at 64 pixels it makes many more epochs than at larger sizes"
)
MANY_CLASSES = 1000  # number of classes from which the quick model is too small
PAPER_EPOCHS, MAX_EPOCHS = 100, 300  # published number of epochs; upper limit if an epoch has few steps
MIN_STEPS = 2500  # minimum number of optimizer steps in a run from scratch
MIN_STEPS_PER_EPOCH = 10
HINTED_STEPS_PER_EPOCH = 30  # minimum number of steps per epoch for data sets with a recommended number of epochs
QUICK_STEPS_PER_EPOCH = 50  # approximate number of steps per epoch in short runs
# Approximate number of steps per epoch in fine-tuning without a CUDA GPU, where few epochs fit in the time budget
# (docs/lab/).
TUNING_STEPS_PER_EPOCH = 100
# The learning rate for fine-tuning if no trial chooses one. Networks with batch norms tolerated 3e-4 and more, networks
# with layer norms only 1e-4 (auto_tune/trials.py).
SHORT_TUNING_RATE = 2e-4
# Number of epochs whose weights are averaged; in Wortsman et al. (2022), the first few epochs give most of the gain.
SOUP_EPOCHS = 3
LIGHT_REASON = "light: the weights were trained on many images"
SEVERAL_LABELS_REASON = "off for images with several labels"
LIGHT_QUICK_REASON = "light: strong augmentation needs more epochs"


def device(facts: DataAndMachine) -> Choice:
    """Choose the best available device."""
    return facts.device, "the best device of this machine"


def devices(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose the launcher's number of processes per machine; without a launcher, all GPUs, or one other device."""
    if facts.launched is not None:
        return facts.launched[0], "the launcher started this many processes per machine"
    if device == "cuda":
        return facts.devices, "all GPUs of this machine"
    return 1, "one process uses all cores"


def nodes(facts: DataAndMachine) -> Choice:
    """Choose the number of machines on which a launcher started processes; without a launcher, one machine."""
    return (facts.launched[1], "the launcher uses this many machines") if facts.launched else (1, "this machine")


def strategy(processes: int) -> Choice:
    """Choose a full copy of the model on each device; sharding saves memory but is slower."""
    return ("ddp", "each device has a full copy of the model") if processes > 1 else (None, "")


def precision(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose bfloat16 if the GPU supports it natively, else float32; float16 overflowed in some runs on few images."""
    if device == "cuda" and facts.bf16:
        return "bf16-mixed", "the GPU supports bfloat16"
    return "32-true", "float32 works on every device"


def workers(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose no loader processes for training on the CPU; else the number of CPU cores minus 1, and at most 8."""
    if device == "cpu":
        return 0, "the CPU is busy with training: loader processes would slow it down"
    return min(8, facts.cores - 1), f"{facts.cores} CPU cores"


PROCESS_RULES = (device, devices, nodes, strategy)
COMPUTE_RULES = (precision, workers)


Sides = Sequence[int] | None


def model(facts: DataAndMachine, img_size: Sides, recipe: str | None, epochs: int | None) -> Choice:
    """Choose the model of the initial weights; from scratch, the best in our measurements (docs/which_model.md)."""
    if model_of_weights := model_of_initial_weights(facts):
        return model_of_weights
    if facts.initial_weights is not None:
        return "swin_tiny_patch4_window7_224", "the DrLoc paper's backbone for fine-tuning"
    size = expected_side(facts, img_size)
    if (recipe or "").startswith("dhvt"):
        return dhvt_variant(size, facts.n_classes)
    if size < 32:
        return "vit_mini", f"images of {size} pixels: a small transformer with a convolutional stem"
    if size <= SMALL_SIDE:
        return "dhvt_mini", f"images of {size} pixels, from scratch: {MEASURED_REASON}"
    suits_quick_model = facts.device == "cpu" and epochs is None and img_size is None and small_img_size(facts) is None
    if suits_quick_model and facts.n_classes < MANY_CLASSES:
        return QUICK_MODEL, QUICK_REASON
    name, reason = dhvt_variant(size, facts.n_classes)
    return name, f"{reason}; from scratch {MEASURED_REASON}"


def model_of_initial_weights(facts: DataAndMachine) -> Choice | None:
    """Choose the model of the initial weights; None if there are no initial weights or their model is unknown."""
    weights = facts.initial_weights
    return None if weights is None or weights.model is None else (weights.model, f"the model of {weights.where}")


def model_args(facts: DataAndMachine, model: str | None) -> Choice:
    """Choose the constructor arguments of the model that the initial weights are from, so that the weights fit."""
    weights = facts.initial_weights
    if weights is None or not weights.model_args or model != weights.model:
        return None, ""
    return list(weights.model_args), f"the arguments of {weights.where}"


def img_size(facts: DataAndMachine, model: str | None) -> Choice:
    """Choose the image size of the initial weights; from scratch, a size for small images, else the default size."""
    if facts.initial_weights is not None:
        size = facts.initial_weights.image_size
        return _size_as_list(size or _default_size(model)), f"the size for {facts.initial_weights.where}"
    if model == QUICK_MODEL and small_img_size(facts) is None and facts.device == "cpu":
        return [SMALL_SIDE], QUICK_REASON
    return small_img_size(facts) or (_size_as_list(_default_size(model)), "the default of this backbone")


def trains_quick_model(facts: DataAndMachine, model: str | None, img_size: Sequence[int], time: str | None) -> bool:
    """Return whether a run trains the quick model at a small size from scratch on a CPU within a time budget."""
    is_small = min(img_size) <= SMALL_SIDE
    is_from_scratch = facts.initial_weights is None
    return is_from_scratch and facts.device == "cpu" and model == QUICK_MODEL and is_small and time is not None


def small_img_size(facts: DataAndMachine) -> Choice | None:
    """Choose the recommended image size, or a size near that of small images; None if the model determines the size."""
    if facts.hinted_size:
        return [facts.hinted_size], "the recommended size for this data set"
    side = next((side for side in IMAGE_SIDES if facts.median_side <= side * 1.25), None)
    return None if side is None else ([side], f"the images' shorter side is {facts.median_side} pixels (median)")


def expected_side(facts: DataAndMachine, img_size: Sides) -> int:
    """Return the expected shorter side of the model's input in pixels, before the model is chosen."""
    size_and_reason = small_img_size(facts)
    return min(img_size or (size_and_reason[0] if size_and_reason else [facts.median_side]))


def drop_path(model: str | None) -> Choice:
    """Choose the published stochastic depth rate: 0.2 for Swin, 0.1 for DHVT, 0.1 to 0.3 for LV-ViT, otherwise 0."""
    name = model or ""
    if name.startswith(("swin", "esvit_swin", "padded_swin")):
        return 0.2, "the DrLoc paper's value for Swin"
    if name.startswith(("dhvt_tiny", "dhvt_small")):
        return 0.1, "the DHVT paper's value"
    if name.startswith("lvvit"):
        return lvvit_drop_path(name), "the LV-ViT program's value"
    return 0.0, "the DrLoc paper's value for backbones other than Swin"


def _default_size(model: str | None) -> tuple[int, int]:
    config = timm_config(model or "")
    return (config.input_size[1], config.input_size[2]) if config else (DEFAULT_SIDE, DEFAULT_SIDE)


def _size_as_list(size: tuple[int, int]) -> list[int]:
    return [size[0]] if size[0] == size[1] else list(size)


def time(facts: DataAndMachine, recipe: str | None, epochs: int | None) -> Choice:
    """Choose a time budget of half an hour on a GPU, else of a quarter of an hour.

    The budget is None if the length follows from --epochs, a recipe, the data set, or initial weights that the user
    gave.
    """
    has_given_weights = facts.initial_weights is not None and not facts.initial_weights.chosen
    if epochs is not None or recipe is not None or facts.hinted_epochs or has_given_weights:
        return None, ""
    if facts.device == "cuda":
        return "30m", "half an hour on a GPU; for longer runs give --time 2h, or --epochs"
    return "15m", "a quarter of an hour; for longer runs give --time 2h, or --epochs"


def epochs(facts: DataAndMachine, time: str | None, init: str | None, effective_batch: int) -> Choice:
    """Choose the published 100 epochs, or up to 300 if an epoch has few steps; None if --time sets the length."""
    if time is not None:
        return None, ""
    if facts.hinted_epochs:
        return facts.hinted_epochs, "enough for this data set"
    if init is not None:
        return PAPER_EPOCHS, "the DrLoc paper's fine-tuning schedule"
    steps = steps_per_epoch(facts.n_train, effective_batch)
    needed_epochs = math.ceil(MIN_STEPS / steps)
    if needed_epochs <= PAPER_EPOCHS:
        return PAPER_EPOCHS, "the DrLoc paper's from-scratch schedule"
    n_epochs = min(needed_epochs, MAX_EPOCHS)
    return n_epochs, f"{counted(steps, 'step')} per epoch: about {n_epochs * steps} steps in total"


def batch_size(
    facts: DataAndMachine,
    model: str | None,
    img_size: Sequence[int],
    time: str | None,
    accumulate: int,
    processes: int,
) -> Choice:
    """Choose a power of two, at most the published 128, that gives at least 10 steps per epoch (more in short runs).

    On the built-in digits, 16 epochs of 39 steps are as accurate as 24 epochs of 19 steps, in two thirds of the time.
    """
    is_tuned, is_quick = makes_few_passes(facts, time), trains_quick_model(facts, model, img_size, time)
    if is_tuned and facts.device != "cuda":
        steps = TUNING_STEPS_PER_EPOCH
    elif is_tuned or is_quick:
        steps = QUICK_STEPS_PER_EPOCH
    else:
        steps = HINTED_STEPS_PER_EPOCH if facts.hinted_epochs else MIN_STEPS_PER_EPOCH
    device_images = facts.n_train // (processes * accumulate)
    size = max(1, min(2 ** int(math.log2(max(device_images / steps, 16))), 128, device_images))
    if is_tuned or is_quick:
        return size, f"few epochs: about {steps} steps each, with at least 16 images per step"
    if size == 128:
        return size, "the DrLoc paper's images per device"
    return size, f"{facts.n_train} training images: at least {steps} steps per epoch if possible"


def lr(recipe: str | None, model: str | None, init: str | None, time: str | None, effective_batch: int) -> Choice:
    """Choose the recipe's peak learning rate, else a rate for AdamW scaled by the square root of the batch size.

    The published 1e-3 is for a batch size of 1024; small networks have this rate at a smaller batch size.
    """
    recipe_choice = recipe_learning_rate(RECIPES, recipe, model, effective_batch)
    if recipe_choice is not None:
        return recipe_choice
    base_batch, source = {
        "vit_mini": (64, "tried for small models"),
        "dhvt_mini": (64, "tried for small models"),
        QUICK_MODEL: (16, "tried for this network"),
    }.get(model or "", (1024, "the DrLoc paper's"))
    peak = 1e-3
    if init is not None and time is not None:
        return SHORT_TUNING_RATE, "for short fine-tuning, a compromise between networks with and without batch norm"
    if init is not None:
        peak, source = 5e-4, "half of the rate from scratch, as in the DrLoc paper's fine-tuning"
    rate = round(peak * math.sqrt(effective_batch / base_batch), 8)
    return rate, f"{peak:g} at batch {base_batch} ({source}), times sqrt({effective_batch}/{base_batch})"


def warmup_epochs(init: str | None, epochs: int | None) -> Choice:
    """Choose a fifth of the epochs and at most 20, as published; for fine-tuning, a tenth and at most 10."""
    if epochs is None:
        return None, ""
    if init is not None:
        return min(10.0, 0.1 * epochs), "a tenth of the epochs and at most 10, as in the DrLoc paper's fine-tuning"
    return min(20.0, 0.2 * epochs), "a fifth of the epochs and at most 20, as in the DrLoc paper"


def average(facts: DataAndMachine, epochs: int | None, effective_batch: int) -> Choice:
    """Choose a decay with which the moving average covers about the last twentieth of the steps."""
    if epochs is None:
        return None, ""
    steps = epochs * steps_per_epoch(facts.n_train, effective_batch)
    decay = round(min(0.9999, 1 - 1 / max(20.0, steps / 20)), 6)
    return decay, f"averages over about {round(1 / (1 - decay))} of {steps} steps"


def soup(facts: DataAndMachine, time: str | None) -> Choice:
    """Choose to average the weights of several epochs in short fine-tuning, and to use the best epoch otherwise."""
    if makes_few_passes(facts, time):
        return SOUP_EPOCHS, "in short fine-tuning the weights of different epochs are similar enough to be averaged"
    return 0, "in long training the weights of different epochs differ too much to be averaged"


def crop(img_size: Sequence[int]) -> Choice:
    """Choose padded crops for small images, since these crops cut off little; else random resized crops."""
    if min(img_size) <= SMALL_SIDE:
        return "padded", "small images are only shifted, by up to an eighth"
    return "random-resized", "the DrLoc paper's crop"


def crop_scale(
    facts: DataAndMachine, crop: str | None, img_size: Sequence[int], model: str | None, time: str | None
) -> Choice:
    """Choose the smallest area of random resized crops: half the image for light augmentation, else the paper's 8 %."""
    reason = _light_reason(facts, model, img_size, time)
    if crop == "random-resized" and reason:
        return 0.5, reason
    return (0.08, PAPER_REASON) if crop == "random-resized" else (None, "")


def hflip(facts: DataAndMachine) -> Choice:
    """Choose to mirror half of the images, or no images if mirroring changes their meaning."""
    return (0.5, PAPER_REASON) if facts.flip else (0.0, "mirroring changes the meaning of these images")


def _published_or_off(published: Any, off: Any = 0.0, reason: str = PAPER_REASON, mixes_images: bool = False) -> Rule:
    """Return a rule that switches an augmentation off for light augmentation and for tiny images.

    An augmentation that mixes images is also off if an image can have several labels.
    """

    def rule(facts: DataAndMachine, img_size: Sequence[int], model: str | None, time: str | None) -> Choice:
        off_reason = _light_reason(facts, model, img_size, time)
        if not off_reason and min(img_size) < 32:
            off_reason = "images under 32 pixels become unreadable"
        if mixes_images and facts.several_labels:
            off_reason = SEVERAL_LABELS_REASON
        return (off, off_reason) if off_reason else (published, reason)

    return rule


def normalise(facts: DataAndMachine) -> Choice:
    """Choose the mean and standard deviation for the initial weights; from scratch, the statistics of the images."""
    from_scratch = "computed", "trained from scratch: mean and standard deviation of the training images"
    return normalise_for_initial_weights(facts) or from_scratch


def normalise_for_initial_weights(facts: DataAndMachine) -> Choice | None:
    """Choose the mean and standard deviation that suit the initial weights; None if there are no initial weights."""
    weights = facts.initial_weights
    return None if weights is None else (weights.normalise, f"as for {weights.where}")


def _light_reason(facts: DataAndMachine, model: str | None, img_size: Sequence[int], time: str | None) -> str:
    """Return the reason for light augmentation; "" if augmentation has the published strength."""
    if makes_few_passes(facts, time):
        return LIGHT_REASON
    return LIGHT_QUICK_REASON if trains_quick_model(facts, model, img_size, time) else ""


# The order matters: each rule sees the settings that the rules before it have chosen.
RULES: dict[str, Rule] = {
    **rules_by_name((*PROCESS_RULES, model, model_args, img_size, time, batch_size, epochs)),
    "schedule_epochs": lambda epochs: (epochs or None, "the cosine ends with the run"),
    **rules_by_name((lr,)),
    "min_lr": lambda lr: (lr / 100, "a hundredth of the peak, as in the DrLoc paper"),
    **rules_by_name((warmup_epochs, average, soup, crop, crop_scale, hflip)),
    "rand_augment": _published_or_off("rand-m9-mstd0.5-inc1", "none", "the DrLoc paper's policy"),
    "erase": _published_or_off(0.25),
    "mixup": _published_or_off(0.8, mixes_images=True),
    "cutmix": _published_or_off(1.0, mixes_images=True),
    **rules_by_name((normalise, drop_path, *COMPUTE_RULES)),
}
