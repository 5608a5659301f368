"""A run of a detector put together from its settings and its images."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from paucal.backbones.weights.inputs import ImageInput, input_of_timm
from paucal.data.decode import WHOLE
from paucal.data.splits.split import Split, make_split
from paucal.data.views.normalisation import Normalisation
from paucal.models.preprocessing import Preprocessing
from paucal.models.saved import stored_card
from paucal.objectives.finetuning import FineTuning
from paucal.rules.facts import StartFacts
from paucal.rules.resolve import origins, resolve
from paucal.runner.images import SplitImages, decoded, normalisation, reading_for
from paucal.runner.job import Bars, RunSetup
from paucal.runner.memory_check import check_memory, explain_memory_errors
from paucal.runner.run_folder import stored_split
from paucal.runner.starts import choose_start, find_start, load_start, may_choose_start
from paucal.runner.time_budget import seconds_of
from paucal.runner.trainer_inputs import check_rates, trainer_plan, with_joint_norms
from paucal.runs import RunFolder
from paucal.settings.options import flag
from paucal.tasks.detection.annotations import BoxedImages
from paucal.tasks.detection.card import DetectorCard, build_detector
from paucal.tasks.detection.judging import require_metrics
from paucal.tasks.detection.masks import kind_of, with_masks
from paucal.tasks.detection.objective import Detection
from paucal.tasks.detection.opening import open_boxed
from paucal.tasks.detection.rules import RULES, BoxFacts
from paucal.tasks.detection.settings import DetectSettings
from paucal.tasks.detection.structure import check_structure, detector_parts
from paucal.training import Plan
from paucal.types import UserError
from paucal.wording import counted

LOOKS = 20  # at the validation images, at most, where nobody says when to look
UNUSED = ("image_column", "data_root", "download", "channels", "compile")


@dataclass(frozen=True)
class DetectionSetup(RunSetup[DetectSettings]):
    """Everything a run of a detector needs, checked, with nothing written yet.

    Attributes:
        boxed: the images and their boxes.
    """

    boxed: BoxedImages | None = None

    @property
    def images(self) -> BoxedImages:
        """The images and their boxes."""
        assert self.boxed is not None
        return self.boxed

    @property
    def detector_card(self) -> DetectorCard:
        """What describes the detector."""
        assert isinstance(self.card, DetectorCard)
        return self.card

    @property
    def sides(self) -> tuple[int, int]:
        """Most pixels of the shorter and the longer side of an image."""
        return self.detector_card.resize_to

    def describe(self) -> str:
        """Return one line: name, parameters, image size, kind of detector."""
        kind = kind_of(self.settings)
        return (
            f"{kind} on {self.card.backbone.name}, {self.weights_text}, images up to {_sides_text(self.sides)} pixels"
        )


def check(settings: DetectSettings) -> None:
    """Refuse settings that make no sense together, or none for boxes.

    Raises:
        UserError: they do.
    """
    if not settings.data:
        raise UserError("there is no DATA: give a folder of images with boxes, such as 'paucal detect bccd/'.")
    default = DetectSettings()
    for name in UNUSED:
        if getattr(settings, name) != getattr(default, name):
            raise UserError(f"{flag(name)} has no meaning for images with boxes: leave it out.")
    if settings.strategy == "fsdp":
        raise UserError("--strategy fsdp cuts models that a detector's are small beside: leave it out.")
    if settings.batch_size == "auto":
        raise UserError("--batch-size auto tries batches of images without boxes: give a number.")
    check_structure(settings)
    lengths = [name for name in ("time", "epochs", "steps") if getattr(settings, name) is not None]
    # A plan that was made for a time is stored beside it.
    if len(lengths) > 1 and not (set(lengths) == {"time", "steps"} and settings.judge_every is not None):
        raise UserError(f"{' and '.join(map(flag, lengths))} all say how long the run is: give one of them.")
    if settings.time is not None:
        seconds_of(settings.time, "--time")
    falls = settings.milestones or []
    if any(fall < 1 for fall in falls) or list(falls) != sorted(set(falls)):
        raise UserError(
            f"--milestones is {' '.join(map(str, falls))}, expected growing numbers of passes, such as 8 11."
        )


def assemble(
    settings: DetectSettings, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None
) -> DetectionSetup:
    """Open the images, choose what was left open, build the detector; write nothing.

    Args:
        settings: what was given or stored.
        given: the origin of each setting that was given.
        bars: shows a bar for countable work.
        run: the run that goes on; None for a new one.

    Raises:
        UserError: the images or a setting do not do.
    """
    require_metrics()
    boxed = open_boxed(settings.data, outlines=settings.masks != "off")
    remarks: list[str] = []
    if run is None and may_choose_start(settings, given, ("model_args", "init_network")):
        shorter = int(np.median([min(boxed.of(index).size) for index in range(len(boxed.images))]))
        settings, given, choice = choose_start(settings, given, settings.device or "cpu", shorter)
        remarks = [choice.remark] if choice.remark else []
    start = find_start(settings, run)
    data = _split(settings, boxed, run)
    facts = _facts(boxed, data, start.facts)
    settings, reasons = resolve(settings, replace(facts, boxes=boxed.total, bare=boxed.bare), RULES)
    boxed = with_masks(settings, boxed)
    boxed, data = _decoded(settings, boxed, data, bars, run)
    if run is None:
        check_rates(replace(settings, epochs=settings.epochs or 1))
    objective, card, notes = _build(settings, data, boxed, start.input and start.input(settings.model), run)
    loaded = load_start(start, settings.model, objective, ())
    remarks += [*boxed.images.notes, *(loaded.lines() if loaded else ()), *notes, *_few(data)]
    return DetectionSetup(
        *(settings, origins(settings, given, reasons), data, _plan(settings, len(data.part("train")))),
        *(objective, card, tuple(remarks), loaded),
        boxed=boxed,
    )


def _split(settings: DetectSettings, boxed: BoxedImages, run: RunFolder | None) -> SplitImages:
    if run is not None:
        return SplitImages(boxed.images, stored_split(run, boxed.images))
    shares = {
        name: value for name in ("val_fraction", "test_fraction") if (value := getattr(settings, name)) is not None
    }
    split = make_split(boxed.images, seed=settings.seed, **shares)
    return SplitImages(boxed.images, _without_empty(split, boxed) if settings.empty_images == "drop" else split)


def _without_empty(split: Split, boxed: BoxedImages) -> Split:
    """Leave the training images without an object unused."""
    empty = np.asarray([not len(boxed.of(index)) for index in range(len(boxed.images))]) & (split.parts == "train")
    if not empty.any():
        return split
    if empty.sum() == len(split.indices("train")):
        raise UserError(
            "--empty-images is drop, and no training image shows an object: give training images with boxes."
        )
    words = f"{split.description}; {counted(int(empty.sum()), 'training image')} without an object left out"
    return Split(np.where(empty, "unused", split.parts), words)


def _decoded(
    settings: DetectSettings, boxed: BoxedImages, data: SplitImages, bars: Bars, run: RunFolder | None
) -> tuple[BoxedImages, SplitImages]:
    """Decode the images no larger than they are needed, and split those that can be read."""
    reading = reading_for([max(settings.img_size)], WHOLE)
    with bars("reading images") as advance:
        images = decoded(boxed.images, settings, reading, advance)
    kept = replace(boxed, images=images)
    if len(images) == len(boxed.images):
        return kept, replace(data, images=images)
    return kept, _split(settings, kept, run)


def _facts(boxed: BoxedImages, data: SplitImages, start: StartFacts | None) -> BoxFacts:
    known = [boxed.of(int(index)) for index in data.part("train")]
    longer = [max(one.size) for one in known]
    shares = [
        np.sqrt(np.prod(one.corners[:, 2:] - one.corners[:, :2], axis=1)) / side
        for one, side in zip(known, longer, strict=True)
    ]
    small = float(np.percentile(np.concatenate(shares), 10)) if sum(map(len, shares)) else 0.1
    facts = data.facts()
    return BoxFacts(**{**vars(facts), "start": start}, longer=int(np.median(longer)), small=small)


def _build(
    settings: DetectSettings,
    data: SplitImages,
    boxed: BoxedImages,
    start: ImageInput | None,
    run: RunFolder | None,
) -> tuple[Detection, DetectorCard, list[str]]:
    sides = settings.img_size
    # Weights drawn here must not depend on what was drawn before, nor disturb what is drawn after.
    with torch.random.fork_rng(devices=[]), explain_memory_errors():
        torch.manual_seed(settings.seed)
        spec, options, notes = detector_parts(settings)
        notes = [*check_memory(settings, spec), *notes]
        detector = with_joint_norms(settings, build_detector(spec, len(boxed.classes), options, settings.drop_path))
        freeze = None if settings.freeze == "none" else settings.freeze
        tuning = FineTuning(freeze=freeze, eval_mode=settings.eval_mode)
        objective = Detection(detector, tuning, settings.backbone_lr)
    statistics = _statistics(settings, data, start, run)
    values = data.images.reading.value_range
    fed = Preprocessing(spec.image_size, 1.0, "bilinear", statistics.mean, statistics.std, values, "letterbox")
    card = DetectorCard(
        *(spec, boxed.classes, fed),
        options=options,
        category_ids=boxed.category_ids,
        resize_to=(min(sides), max(sides)),
    )
    return objective, card, notes


def _statistics(
    settings: DetectSettings, data: SplitImages, start: ImageInput | None, run: RunFolder | None
) -> Normalisation:
    if stored := stored_card(run, DetectorCard):
        return Normalisation(stored.preprocessing.mean, stored.preprocessing.std)
    return normalisation(settings, data, start or input_of_timm(settings.model))


def _plan(settings: DetectSettings, n_train: int) -> Plan:
    """Return the length in steps; it is 1 as long as it has to be found out."""
    plan = trainer_plan(settings, n_train)
    total = settings.steps or (plan.total_steps if settings.epochs else 1)
    passes = -(-total // plan.steps_per_epoch)
    every = settings.judge_every or plan.steps_per_epoch * -(-passes // LOOKS)
    return replace(plan, total_steps=total, steps_per_epoch=min(every, total))


def _few(data: SplitImages) -> list[str]:
    counts = data.counts()
    found = []
    if counts["train"] < 30:
        found.append(f"{counts['train']} images to learn from are few even for few: expect no reliable detector")
    if 0 < counts["val"] < 10:
        found.append(
            f"{counts['val']} images to select with tell little: the interval on the test images says how little"
        )
    return found


def _sides_text(sides: tuple[int, int]) -> str:
    return f"{sides[1]}" if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"
