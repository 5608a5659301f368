"""Rules that choose the model, its arguments and the image size."""

from collections.abc import Sequence

from paucal.backbones.names import timm_config
from paucal.recipes.dhvt import dhvt_variant
from paucal.recipes.table import lvvit_drop_path
from paucal.rules.facts import DataAndMachine
from paucal.rules.resolve import Choice
from paucal.settings.options import DEFAULT_SIDE

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
Sides = Sequence[int] | None


def model(facts: DataAndMachine, img_size: Sides, recipe: str | None, epochs: int | None) -> Choice:
    """Choose the model of the initial weights; from scratch, the best in our measurements (docs/which_model.md)."""
    if start_model := model_of_initial_weights(facts):
        return start_model
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


RULES = (model, model_args, img_size)
