"""Assemble a detection run without writing files: open the images, choose the settings and build the detector."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from paucal.backbones import BackboneSpec
from paucal.backbones.weights.checkpoints import WeightsPreprocessing, timm_preprocessing
from paucal.data.decode import DEFAULT_DECODE_OPTIONS
from paucal.data.splits.split import make_split
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import stored_card
from paucal.objectives.finetuning import FineTuning
from paucal.rules.resolve import InitialWeightsInfo, backbone_spec, resolve
from paucal.runner.images import SplitImages, decode_images, decode_options_for_size, normalisation
from paucal.runner.initial_weights import choose_initial_weights, chooses_initial_weights, load_initial_weights
from paucal.runner.job import Bars, RunSetup
from paucal.runner.resuming import stored_split
from paucal.runner.time_budget import parse_duration
from paucal.runner.trainer_plan import (
    check_memory,
    check_rates,
    hardware,
    seeded_random_weights,
    trainer_plan,
    with_synced_norms,
)
from paucal.runs import RunFolder
from paucal.runs.folder import COCO
from paucal.settings.options import flag, list_origins, refuse_unsupported, require_known
from paucal.tasks.detection.evaluation import require_coco_eval
from paucal.tasks.detection.images import BoxedImages, open_boxed_images
from paucal.tasks.detection.model import DetectorCard, FirstDetectorRecord, load_layers, read_first_detector
from paucal.tasks.detection.network.detector import build_detector
from paucal.tasks.detection.network.options import HEADS
from paucal.tasks.detection.objective import DetectionObjective
from paucal.tasks.detection.published import adopt_published_settings, find_detector_weights, load_published
from paucal.tasks.detection.rules import RULES, BoxFacts
from paucal.tasks.detection.settings import DetectSettings, detector_options
from paucal.training import Plan
from paucal.types import UserError
from paucal.wording import counted

MAX_EVALUATIONS = 20  # default limit of evaluations on the validation images
SIDE_MULTIPLE = 32  # image sides are padded to a multiple of this number of pixels
STRIDES = (4, 8, 16, 32)  # possible strides of the finest feature map, in pixels
# Default values of the settings that only a cascade uses
CASCADE_DEFAULTS = {"cascade_boxes": "shared", "cascade_average": "probabilities"}
UNSUPPORTED_SETTINGS = ("image_column", "data_root", "download", "channels", "compile")


@dataclass(frozen=True)
class DetectionSetup(RunSetup[DetectSettings]):
    """The checked inputs of a detection run, before anything is written."""

    card: DetectorCard
    images: BoxedImages = field(kw_only=True)
    first: FirstDetectorRecord | None = None  # the detector trained on the frozen backbone; None if not trained (yet)

    def describe(self) -> str:
        """Return one line with the type of the detector, the backbone, the parameters and the image size."""
        shorter, longer = self.card.resize_to
        size = f"{longer}" if shorter == longer else f"{shorter}x{longer}"
        kind = "Mask R-CNN" if self.settings.masks == "on" else "R-CNN" if self.settings.cascade else "Faster R-CNN"
        name = f"Cascade {kind}" if self.settings.cascade else kind
        return f"{name} on {self.card.backbone.name}, {self.weights_text}, images up to {size} pixels"


def check(settings: DetectSettings) -> None:
    """Refuse settings that contradict each other or that detection does not support."""
    if not settings.data:
        raise UserError("DATA is missing: give a folder of images with boxes, for example: paucal detect bccd/.")
    refuse_unsupported(settings, UNSUPPORTED_SETTINGS, "detection")
    if settings.strategy == "fsdp":
        raise UserError("--strategy fsdp is not supported for detectors: remove --strategy.")
    if settings.batch_size == "auto":
        raise UserError("--batch-size auto is not supported for detection: give a number.")
    if settings.heads_steps and settings.processes > 1:
        raise UserError("--heads-steps is not supported with several processes: remove it, or give --devices 1.")
    _check_structure(settings)
    lengths = [name for name in ("time", "epochs", "steps") if getattr(settings, name) is not None]
    # Runs with --time also store the number of steps that was planned for this time.
    if len(lengths) > 1 and not (set(lengths) == {"time", "steps"} and settings.judge_every is not None):
        raise UserError(f"{' and '.join(map(flag, lengths))} all set the length of the run: give only one of these.")
    if settings.time is not None:
        parse_duration(settings.time, "--time")
    milestones = settings.milestones
    if milestones is not None and (min(milestones, default=1) < 1 or list(milestones) != sorted(set(milestones))):
        text = " ".join(map(str, milestones))
        raise UserError(f"--milestones is {text}, expected ascending numbers of epochs, such as 8 11.")


def _check_structure(settings: DetectSettings) -> None:
    """Refuse invalid settings of the detector's layers."""
    require_known("head", settings.head, HEADS)
    if settings.finest is not None and settings.finest not in STRIDES:
        raise UserError(f"--finest is {settings.finest}, expected a stride of 4, 8, 16 or 32 pixels.")
    for name, default in CASCADE_DEFAULTS.items():
        if not settings.cascade and getattr(settings, name) != default:
            raise UserError(
                f"{flag(name)} is {getattr(settings, name)}, but only a cascade has several heads: give "
                f"--cascade, or remove {flag(name)}."
            )


def assemble(
    settings: DetectSettings, origins: Mapping[str, str], bars: Bars, run: RunFolder | None = None
) -> DetectionSetup:
    """Open the images, choose the settings that were not given and build the detector, without writing files."""
    require_coco_eval()
    boxed = open_boxed_images(settings.data, outlines=settings.masks != "off")
    remarks: list[str] = []
    if run is None and chooses_initial_weights(settings, origins, ("model_args", "init_network")):
        shorter = int(np.median([min(boxed.boxes_of(index).size) for index in range(len(boxed.images))]))
        settings, origins, choice = choose_initial_weights(settings, origins, shorter)
        remarks = [choice.remark] if choice.remark else []
    if run is None and settings.init == COCO:
        settings, origins = adopt_published_settings(settings, origins, has_outlines=not boxed.without_outline)
    weights_source = find_detector_weights(settings, run)
    data = _split_images(settings, boxed, run)
    settings, reasons = resolve(settings, _collect_facts(boxed, data, weights_source.facts), RULES)
    hardware(settings)  # raises an error for a missing device before images are decoded
    boxed = _with_chosen_masks(settings, boxed)
    boxed, data = _decode(settings, boxed, data, bars, run)
    if run is None:
        check_rates(replace(settings, epochs=settings.epochs_or_1))
    objective, card, notes = _build_detector(
        settings, data, boxed, weights_source.input and weights_source.input(settings.model), run
    )
    if settings.init == COCO and weights_source.record is None:
        load_report = load_published(objective.detector, settings, boxed.classes, bars)
    else:
        load_report = load_initial_weights(weights_source, settings.model, objective, ())
    first_detector = read_first_detector(run)
    if run is not None and first_detector is not None:
        load_layers(run, objective.deployable())
    remarks += [*boxed.images.notes, *(load_report.lines() if load_report else ()), *notes, *_collect_warnings(data)]
    return DetectionSetup(
        settings,
        list_origins(settings, origins, reasons),
        data,
        _make_plan(settings, len(data.split_indices("train"))),
        objective,
        card,
        tuple(remarks),
        load_report,
        images=boxed,
        first=first_detector,
    )


def _split_images(settings: DetectSettings, boxed: BoxedImages, run: RunFolder | None) -> SplitImages:
    """Return the images with the split of `run`, or else with a new split.

    A new split leaves out all validation images if none has an object, since they could not rank models. With
    `--empty-images drop`, it also leaves out training images without an object.
    """
    if run is not None:
        return SplitImages(boxed.images, stored_split(run, boxed.images))
    split = make_split(boxed.images, seed=settings.seed, **settings.given_fractions)
    train, val, test = (split.indices(part) for part in ("train", "val", "test"))
    if not boxed.count_boxes(test):
        raise UserError(
            f"the detector cannot be evaluated, since there is no object in {counted(len(test), 'test image')} (crowds "
            "and difficult objects do not count): give test images with boxes, or a larger --test-fraction."
        )
    if len(val) and not boxed.count_boxes(val):
        text = f"left out: {counted(len(val), 'validation image')} without an object, which cannot select a model"
        split = split.exclude(split.parts == "val", text)
    empty = np.asarray([not len(boxed.boxes_of(index)) for index in range(len(boxed.images))])
    empty &= split.parts == "train"
    if settings.empty_images == "drop" and empty.any():
        if empty.sum() == len(train):
            raise UserError(
                "--empty-images is drop, but no training image contains an object: give training images with boxes."
            )
        split = split.exclude(empty, f"left out: {counted(int(empty.sum()), 'training image')} without an object")
    return SplitImages(boxed.images, split)


def _collect_facts(boxed: BoxedImages, data: SplitImages, initial_weights: InitialWeightsInfo | None) -> BoxFacts:
    """Return the properties of the training images and of the machine that determine the automatic settings."""
    train_boxes = [boxed.boxes_of(int(index)) for index in data.split_indices("train")]
    longer_sides = [max(boxes.size) for boxes in train_boxes]
    relative_sides = [
        np.sqrt(np.prod(boxes.corners[:, 2:] - boxes.corners[:, :2], axis=1)) / side
        for boxes, side in zip(train_boxes, longer_sides, strict=True)
    ]
    return BoxFacts(
        **{**vars(data.facts()), "initial_weights": initial_weights},
        median_longer_side=int(np.median(longer_sides)),
        small_object_side=float(np.percentile(np.concatenate(relative_sides), 10))
        if sum(map(len, relative_sides))
        else 0.1,
        boxes=boxed.count_boxes(),
        without_outline=boxed.without_outline,
    )


def _with_chosen_masks(settings: DetectSettings, boxed: BoxedImages) -> BoxedImages:
    """Return the images, with masks only if `--masks` is on; refuse a setting that needs masks if masks are missing."""
    if settings.masks == "on" and boxed.without_outline:
        raise UserError(
            f"--masks on needs an outline for every box, but {boxed.without_outline} of "
            f"{counted(boxed.count_boxes(), 'box', 'boxes')} have no outline: give a COCO annotation file with a "
            "'segmentation' for each box, or remove --masks."
        )
    if settings.masks == "on":
        return boxed
    if settings.copy_paste:
        raise UserError(
            f"--copy-paste {settings.copy_paste:g} cuts objects out by their masks, but masks are off or boxes "
            "lack an outline: give each box an outline and remove --masks, or remove --copy-paste."
        )
    return replace(boxed, boxes={key: replace(boxes, masks=None) for key, boxes in boxed.boxes.items()})


def _decode(
    settings: DetectSettings, boxed: BoxedImages, data: SplitImages, bars: Bars, run: RunFolder | None
) -> tuple[BoxedImages, SplitImages]:
    """Decode the images at the network's size; if some images cannot be read, split the other images again."""
    decode_options = decode_options_for_size([max(settings.img_size)], DEFAULT_DECODE_OPTIONS)
    with bars("reading images") as advance:
        images = decode_images(boxed.images, settings, decode_options, advance)
    decoded_set = replace(boxed, images=images)
    if len(images) == len(boxed.images):
        return decoded_set, replace(data, images=images)
    return decoded_set, _split_images(settings, decoded_set, run)


def detector_backbone(settings: DetectSettings) -> tuple[BackboneSpec, list[str]]:
    """Return the backbone that settings describe, with notes on its image size."""
    padded_side = -(-max(settings.img_size) // SIDE_MULTIPLE) * SIDE_MULTIPLE
    return backbone_spec(replace(settings, img_size=[padded_side, padded_side]), 0)


def _build_detector(
    settings: DetectSettings,
    data: SplitImages,
    boxed: BoxedImages,
    model_input: WeightsPreprocessing | None,
    run: RunFolder | None,
) -> tuple[DetectionObjective, DetectorCard, list[str]]:
    """Return the objective with its detector, the detector's card, and notes."""
    with seeded_random_weights(settings.seed):
        spec, notes = detector_backbone(settings)
        options = detector_options(settings)
        notes = [*check_memory(settings, spec), *notes]
        detector = with_synced_norms(settings, build_detector(spec, len(boxed.classes), options, settings.drop_path))
        tuning = FineTuning(freeze=None if settings.freeze == "none" else settings.freeze, eval_mode=settings.eval_mode)
        objective = DetectionObjective(detector, tuning, settings.backbone_lr)
    if stored := stored_card(run, DetectorCard):
        statistics = stored.preprocessing.normalisation
    else:
        statistics = normalisation(settings, data, model_input or timm_preprocessing(settings.model))
    mean, std, value_range = statistics.mean, statistics.std, data.images.decode_options.value_range
    preprocessing = Preprocessing(spec.image_size, 1.0, "bilinear", mean, std, value_range, "letterbox")
    sides, ids = (min(settings.img_size), max(settings.img_size)), boxed.category_ids
    card = DetectorCard(spec, boxed.classes, preprocessing, options=options, category_ids=ids, resize_to=sides)
    return objective, card, notes


def _make_plan(settings: DetectSettings, n_train: int) -> Plan:
    """Return the training plan; with `--time`, the plan has one step until the number of steps is chosen."""
    plan = trainer_plan(settings, n_train)
    total = plan.total_steps if settings.epochs else 1
    if settings.steps is not None:
        total = settings.steps
    epochs = -(-total // plan.steps_per_epoch)
    interval = plan.steps_per_epoch * -(-epochs // MAX_EVALUATIONS)
    if settings.judge_every is not None:
        interval = settings.judge_every
    return replace(plan, total_steps=total, steps_per_epoch=min(interval, total))


def _collect_warnings(data: SplitImages) -> list[str]:
    counts, warnings = data.counts(), []
    if counts["train"] < 30:
        subject = counted(counts["train"], "training image is", "training images are")
        warnings.append(f"{subject} too few to train a detector reliably")
    if 0 < counts["val"] < 10:
        text = f"{counted(counts['val'], 'validation image is', 'validation images are')} too few to select a model"
        warnings.append(f"{text} reliably; the interval on the test images shows the uncertainty")
    return warnings
