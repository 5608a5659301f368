"""Rules that choose settings of `paucal segment` from the images, the machine and the initial weights.

"The papers" are DrLoc, EsViT and LV-ViT, which segment with Swin's code.
"""

from paucal.rules.resolve import Choice, DataAndMachine, Rule, describe_undertrained, rules_by_name
from paucal.rules.training import (
    COMPUTE_RULES,
    PROCESS_RULES,
    drop_path,
    hflip,
    model_args,
    model_of_initial_weights,
    normalise,
)
from paucal.wording import counted

CPU_MODEL, GPU_MODEL = "tf_efficientnet_lite0", "swin_tiny_patch4_window7_224"
# Numbers of training images up to which rules choose more cautiously: `FEW_IMAGES` in `scale`, `SOME_IMAGES` in others.
FEW_IMAGES, SOME_IMAGES = 100, 500
MIN_STEPS = 40  # minimum number of optimizer steps per epoch; each epoch ends with a validation
MAX_CROPS = 64  # maximum number of crops per image and epoch
AUXILIARY_WIDTH = 256  # maximum number of channels of the auxiliary head, as in the papers
DEEPEST_STRIDE = 32  # stride of the deepest feature map in pixels; sides of crops are multiples of this stride


def model(facts: DataAndMachine) -> Choice:
    """Choose the model of the initial weights if it is known, else a small network on a CPU or Swin-T on a GPU."""
    if start_model := model_of_initial_weights(facts):
        return start_model
    if facts.device == "cpu":
        return CPU_MODEL, "small enough for a CPU"
    return GPU_MODEL, "the backbone of the DrLoc and EsViT papers"


def img_size(facts: DataAndMachine) -> Choice:
    """Choose the papers' crops of 512 pixels on a GPU, crops of 256 on a CPU, and smaller crops for small images."""
    side, reason = crop_side(facts.device, facts.median_side)
    return [side], reason


def crop_side(device: str, median_side: int) -> tuple[int, str]:
    """Return the side of the crops in pixels, from the median of the images' shorter sides, and the reason."""
    default_side, reason = (512, "the papers' crop size") if device != "cpu" else (256, "small crops for a CPU")
    padded_side = -(-median_side // DEEPEST_STRIDE) * DEEPEST_STRIDE
    if padded_side < default_side:
        return max(DEEPEST_STRIDE, padded_side), f"the images' shorter side is {median_side} pixels (median)"
    return default_side, reason


def batch_size(facts: DataAndMachine) -> Choice:
    """Choose batches of 16 crops on a GPU, as in the papers, and of 4 on a CPU, which fits more steps into the time."""
    if facts.device == "cpu":
        return 4, "many small steps: on a CPU the time per crop does not depend on the batch size"
    return 16, "the papers' batch size"


def width(facts: DataAndMachine) -> Choice:
    """Choose the number of channels of the head: the papers' 512 on a GPU with many images, else fewer."""
    if facts.device == "cpu":
        return 64, "a wider head would take most of a CPU's time"
    if facts.n_train <= SOME_IMAGES:
        return 256, f"half the papers' width for {counted(facts.n_train, 'image')}"
    return 512, "the papers' width"


def auxiliary_width(width: int) -> Choice:
    """Choose as many channels as in the head, but at most the papers' 256."""
    if width > AUXILIARY_WIDTH:
        return AUXILIARY_WIDTH, "the papers' width"
    return width, "the width of the head"


def crops(facts: DataAndMachine, batch_size: int, accumulate: int) -> Choice:
    """Choose enough crops per image for at least `MIN_STEPS` steps per epoch, so that validation takes little time."""
    needed_crops = -(-MIN_STEPS * batch_size * accumulate // max(facts.n_train, 1))
    count = max(1, min(MAX_CROPS, needed_crops))
    return count, f"about {MIN_STEPS} steps between two validations" if count > 1 else "each image once per epoch"


def time(facts: DataAndMachine, recipe: str | None, epochs: int | None) -> Choice:
    """Choose the time of the whole command; None (no limit) if the user gave the epochs or a recipe."""
    if epochs is not None or recipe is not None:
        return None, ""
    if facts.device == "cuda":
        return "30m", "half an hour of a GPU; give --time 2h, or --epochs, for more"
    return "15m", "a quarter of an hour; give --time 2h, or --epochs, for more"


def backbone_lr(facts: DataAndMachine) -> Choice:
    """Choose the factor on the backbone's learning rate: 0.1 for a pretrained backbone, else 1."""
    weights = facts.initial_weights
    if weights is None:
        return 1.0, "the backbone has random weights, like the head"
    if weights.undertrained:
        return 1.0, describe_undertrained(weights)
    return 0.1, f"a tenth of the head's, to keep {weights.where} nearly unchanged"


def freeze(facts: DataAndMachine) -> Choice:
    """For few images, freeze the pretrained stem to save time; a pretrained stem already detects edges and colours."""
    weights = facts.initial_weights
    if weights is None:
        return "none", "the weights are random"
    if weights.undertrained:
        return "none", describe_undertrained(weights)
    if facts.n_train <= SOME_IMAGES:
        return (
            "stem",
            f"{counted(facts.n_train, 'training image')}, and {weights.where} already detects edges and colours",
        )
    return "none", "enough images to train the whole backbone"


def scale(facts: DataAndMachine) -> Choice:
    """Choose the range of random scale factors: 0.5 to 2 as in the papers, or 0.7 to 1.4 for few images."""
    if facts.n_train <= FEW_IMAGES:
        images = counted(facts.n_train, "training image")
        return [0.7, 1.4], f"{images}: objects in the test images are likely to have similar sizes"
    return [0.5, 2.0], "the papers' range"


RULES: dict[str, Rule] = {
    **rules_by_name([*PROCESS_RULES, model, model_args, img_size, batch_size, width, auxiliary_width, crops, time]),
    "lr": lambda: (1e-3, "best in trials of a newly initialised head on few images"),
    **rules_by_name([backbone_lr]),
    "min_lr": lambda lr: (lr / 100, "a hundredth of the peak"),
    **rules_by_name([freeze, hflip, scale]),
    "colour": lambda: (0.2, "weak, for few labels and few steps"),
    **rules_by_name([normalise, drop_path, *COMPUTE_RULES]),
}
