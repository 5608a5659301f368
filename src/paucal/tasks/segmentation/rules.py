"""Rules of `paucal segment`: settings chosen from the data, for 30 images on a CPU up to the papers' data sets."""

from paucal.rules import machine, resolve
from paucal.rules.facts import DataAndMachine, describe_undertrained
from paucal.rules.images import hflip, normalise
from paucal.rules.model import drop_path, model_args
from paucal.rules.resolve import Choice

CPU_MODEL, GPU_MODEL = "tf_efficientnet_lite0", "swin_tiny_patch4_window7_224"
FEW, SOME = 100, 500  # training images
STEPS = 40  # per epoch, between two validations
MOST_CROPS = 64
CELL = 32  # pixels of the deepest map's cells; sides of crops are multiples


def model(facts: DataAndMachine) -> Choice:
    """The model of the trained start; without one a small network on a CPU, the papers' on a GPU."""
    if facts.start is not None and facts.start.model is not None:
        return facts.start.model, f"the model of {facts.start.where}"
    if facts.device == "cpu":
        return CPU_MODEL, "small enough for a processor"
    return GPU_MODEL, "the backbone of the DrLoc and EsViT papers"


def img_size(facts: DataAndMachine) -> Choice:
    """The papers' 512 on a GPU, half of it on a processor, and no more than the images have."""
    side, why = crop_side(facts.device, facts.median_side)
    return [side], why


def crop_side(device: str, median_side: int) -> tuple[int, str]:
    """Return the side of the crops in pixels for images of a shorter side, and why."""
    usual, why = (512, "the papers' crop") if device != "cpu" else (256, "a processor trains on small crops")
    least = -(-median_side // CELL) * CELL
    if least < usual:
        return max(CELL, least), f"the images' shorter side is {median_side} pixels (median)"
    return usual, why


def batch_size(facts: DataAndMachine) -> Choice:
    """The papers' 16 on a GPU; 4 on a processor, since more steps teach more than larger ones."""
    if facts.device == "cpu":
        return 4, "many small steps: on a processor crops take the same time in any batch"
    return 16, "the papers' crops in a step"


def width(facts: DataAndMachine) -> Choice:
    """The papers' 512 where there are images and a GPU for it."""
    if facts.device == "cpu":
        return 64, "a processor would spend its time in a wider head"
    if facts.n_train <= SOME:
        return 256, f"half the papers' width for {facts.n_train} images"
    return 512, "the papers' width"


def crops(facts: DataAndMachine, batch_size: int, accumulate: int) -> Choice:
    """So many that an epoch is worth a look at the validation images."""
    wanted = -(-STEPS * batch_size * accumulate // max(facts.n_train, 1))
    count = max(1, min(MOST_CROPS, wanted))
    return count, f"about {STEPS} steps between two looks at the validation images" if count > 1 else "once an epoch"


def time(facts: DataAndMachine, recipe: str | None, epochs: int | None) -> Choice:
    """A wait that people take, where nobody says how long a run is, nor a recipe."""
    if epochs is not None or recipe is not None:
        return None, ""
    if facts.device == "cuda":
        return "30m", "half an hour of a GPU; give --time 2h, or --epochs, for more"
    return "15m", "a quarter of an hour; give --time 2h, or --epochs, for more"


def lr(facts: DataAndMachine) -> Choice:
    """A fresh head learns at a rate that a trained backbone would not survive, see `backbone_lr`."""
    return 1e-3, "tried for a fresh head on few images"


def backbone_lr(facts: DataAndMachine) -> Choice:
    """A tenth for trained weights, whatever the head's."""
    if facts.start is None:
        return 1.0, "the backbone begins at random, as the head does"
    if facts.start.undertrained:
        return 1.0, describe_undertrained(facts.start)
    return 0.1, f"a tenth of the head's: {facts.start.where} shall not be forgotten"


def min_lr(lr: float | None) -> Choice:
    """A hundredth of the peak."""
    return (lr or 0.0) / 100, "a hundredth of the peak"


def freeze(facts: DataAndMachine) -> Choice:
    """The stem of trained weights, where images are few: edges and colours are known already, and it saves time."""
    if facts.start is not None and facts.start.undertrained:
        return "none", describe_undertrained(facts.start)
    if facts.start is not None and facts.n_train <= SOME:
        return "stem", f"{facts.n_train} training images: edges and colours are known to {facts.start.where}"
    return "none", "enough images to train all of it" if facts.start is not None else "nothing is known yet"


def scale(facts: DataAndMachine) -> Choice:
    """The papers' half to double where images are many; less where few could not show it."""
    if facts.n_train <= FEW:
        return [0.7, 1.4], f"{facts.n_train} training images: sizes in the test images are likely to be alike"
    return [0.5, 2.0], "the papers' range"


def colour(facts: DataAndMachine) -> Choice:
    """Light changes of colour."""
    return 0.2, "light: labels are few, and so are the steps"


RULES = resolve.rules_by_name(
    (
        *machine.PROCESSES,
        model,
        model_args,
        img_size,
        batch_size,
        width,
        crops,
        time,
        lr,
        backbone_lr,
        min_lr,
        freeze,
        hflip,
        scale,
        colour,
        normalise,
        drop_path,
        *machine.ARITHMETIC,
    )
)
