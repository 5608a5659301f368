"""Open images with masks or boxes for `paucal check`, and report problems in their masks or boxes.

A "finding" is one problem or one property of a data set in the report of `paucal check`.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.boxes.annotations import AnnotatedImage
from paucal.data.boxes.opening import as_unlabelled_set, find_annotation_files, open_tagged_images, read_boxes
from paucal.data.checking.findings import Finding, refusal_finding
from paucal.data.checking.survey import Survey
from paucal.data.images import ImageSet
from paucal.data.label_kinds import describe_labels, report_other_label_kinds
from paucal.data.masks.coding import read_class_names
from paucal.data.masks.masked_images import MaskedImages, images_of_pairs, read_masks, require_enough_images
from paucal.data.masks.pairs import ImageMaskPairs, find_pairs, is_mask_table
from paucal.data.masks.recognition import find_masks_in_set
from paucal.data.sources.archive import is_archive
from paucal.data.sources.folder import find_images
from paucal.data.sources.opening import open_images
from paucal.data.stores import FileStore
from paucal.data.unreadable import verify_images
from paucal.tasks.detection.images import MIN_BOX_SIDE, convert_annotations
from paucal.tasks.segmentation.rules import DEEPEST_STRIDE, crop_side
from paucal.types import UserError
from paucal.verbs.check.settings import CheckSettings
from paucal.wording import counted, join_first_few, percent

MASKS, BAD_MASKS, BOXES, SMALL_CROPS = "masks", "bad-masks", "boxes", "small-crops"
LABEL_NOUNS = {"train": "classes", "detect": "boxes", "segment": "masks"}
# Names of the findings that are about labels of whole images. They do not apply to images with masks or boxes.
IMAGE_LABEL_FINDINGS = ("imbalance", "alike-with-other-labels", "small-images")
MIN_PIXEL_SHARE = 0.001  # fraction of labelled pixels below which a class is hardly learned
BAD_BOXES = "bad-boxes"
MIN_BOXES = 10  # number of boxes below which a class is hardly learned and its score is mostly chance
TINY_BOX_SIDE = 8.0  # shorter side in pixels, equal to one or two positions of the finest feature map
MIN_MEDIUM_AREA, MIN_LARGE_AREA = 32.0**2, 96.0**2  # in square pixels; COCO's medium objects are between these areas
MAX_CLASSES_NAMED = 12  # number of classes named in a finding
# Splits an error message into the problem and the advice after the last colon.
_WITH_ADVICE = re.compile(r"(.*): ([a-z][^:'\"{}]*)", re.DOTALL)
MAX_EMPTY_SHARE = 0.5  # if a larger fraction of images has no box, some were probably never annotated
SWAPPED_ADVICE = "correct the boxes, or check whether images were swapped"
TINY_ADVICE = "remove such small boxes, or cut the images into tiles and enlarge the tiles"
REPEATED_ADVICE = "remove one box of each pair, since the second counts as an error"


def open_with_masks(settings: CheckSettings) -> tuple[ImageSet, list[Finding]] | None:
    """Open images with masks as `paucal segment` does; errors become findings. Return None if there are no masks."""
    root = Path(os.path.expanduser(settings.data))  # Path.expanduser raises an error for an unknown user
    paths = [None if text is None else Path(os.path.expanduser(text)) for text in (settings.images, settings.masks)]
    mask_settings = (settings.images, settings.masks, settings.mask_values, settings.ignore)
    is_requested = settings.verb == "segment" or any(value is not None for value in mask_settings)
    if settings.verb not in (None, "segment") or not (is_requested or _has_masks(root)):
        return None
    try:
        with report_other_label_kinds(root, "segment"):
            pairs = find_pairs(root, *paths)
    except UserError as problem:
        return _open_without_masks(paths[0] or root, problem), [refusal_finding(BAD_MASKS, problem)]
    images = images_of_pairs(pairs, str((paths[0] or root).resolve()))
    try:
        if settings.on_bad_image == "skip":
            images = verify_images(images, "skip")[0]
        class_names = None if settings.classes is None else read_class_names(Path(settings.classes))
        masked = read_masks(images, pairs, settings.mask_values, settings.ignore, class_names)
        require_enough_images(masked)
    except UserError as problem:
        return images, [_masks_finding(pairs), refusal_finding(BAD_MASKS, problem)]
    masked_images, findings = _describe_masks(masked, pairs)
    if settings.verb is None and settings.images is None:
        findings += findings_on_other_label_kinds(root, "segment")
    return masked_images, findings


def training_command_of(findings_on_open: Sequence[Finding]) -> str:
    """Return the command that trains on a set, according to the findings from opening its masks or boxes."""
    names = {finding.name for finding in findings_on_open}
    if names & {MASKS, BAD_MASKS}:
        return "segment"
    return "detect" if names & {BOXES, BAD_BOXES} else "train"


def applicable_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return `findings`; if the images have masks or boxes, omit findings on labels of whole images."""
    if not any(finding.name in (MASKS, BOXES) for finding in findings):
        return list(findings)
    return [finding for finding in findings if finding.name not in IMAGE_LABEL_FINDINGS]


def crop_findings(findings_on_open: Sequence[Finding], survey: Survey, device: str) -> list[Finding]:
    """Return a finding on images whose shorter side is less than half the side of the crops of `paucal segment`."""
    shorter_sides = survey.sizes[survey.readable_positions].min(axis=1)
    if not len(shorter_sides) or not any(finding.name == MASKS for finding in findings_on_open):
        return []
    side, _ = crop_side(device, int(np.median(shorter_sides)))
    small_images = np.flatnonzero(2 * shorter_sides < side)
    if not len(small_images):
        return []
    fitting_side = max(DEEPEST_STRIDE, 2 * int(shorter_sides.min()) // DEEPEST_STRIDE * DEEPEST_STRIDE)
    text = (
        f"{counted(len(small_images), 'image fills', 'images fill')} less than half the side of the {side}-pixel crops "
        f"that paucal segment would train on (the smallest is {int(shorter_sides.min())} pixels)"
    )
    smaller_crops = f"train with smaller crops: --img-size {fitting_side}"
    advice = smaller_crops if fitting_side < side else "use larger copies of the images"
    groups = tuple((int(survey.readable_positions[index]),) for index in small_images)
    level = "warning" if len(small_images) < len(shorter_sides) / 2 else "note"
    return [Finding(SMALL_CROPS, level, text, advice, groups)]


def _has_masks(root: Path) -> bool:
    if not root.is_dir():
        return (is_archive(root) or is_mask_table(root)) and "segment" in describe_labels(root)
    keys = find_images(root)
    return find_masks_in_set(keys, FileStore(root, keys)) is not None


def _open_without_masks(root: Path, problem: UserError) -> ImageSet:
    """Return the images of a folder without masks, as unlabelled images; raise `problem` if there are no images."""
    keys = find_images(root) if root.is_dir() else []
    if is_archive(root) and root.exists():
        return open_images(root, labelled=False)
    if not keys:
        raise problem
    folder, labels = root.resolve(), np.full(len(keys), -1, dtype=np.int64)
    return ImageSet(folder.name, str(folder), (), keys, labels, [""] * len(keys), FileStore(folder, keys))


def _masks_finding(pairs: ImageMaskPairs) -> Finding:
    return Finding(MASKS, "note", f"{counted(len(pairs.pairs), 'image')} with masks: this is data for paucal segment")


def _describe_masks(masked: MaskedImages, pairs: ImageMaskPairs) -> tuple[ImageSet, list[Finding]]:
    totals = masked.class_pixel_counts.sum(0)
    labelled = max(int(totals.sum()), 1)
    shares = {name: int(count) / labelled for name, count in zip(masked.images.classes, totals, strict=True)}
    listed_shares = ", ".join(f"{name} {percent(share)}" for name, share in list(shares.items())[:12])
    pixels = Finding("pixels", "note", f"percentage of the labelled pixels: {listed_shares}")
    findings = [_masks_finding(pairs), pixels, *masked.findings]
    if scarce := [name for name, share in shares.items() if share < MIN_PIXEL_SHARE]:
        count, share_text = counted(len(scarce), "class", "classes"), percent(MIN_PIXEL_SHARE)
        text = f"{count} with under {share_text} of the pixels: {join_first_few(scarce, 8)}"
        findings.append(Finding("scarce-classes", "warning", text, "label more of these classes, or merge classes"))
    if empty := int((masked.class_pixel_counts.sum(1) == 0).sum()):
        text = f"{counted(empty, 'mask')} without a labelled pixel"
        findings.append(Finding("empty-masks", "warning", text, "label these masks, or remove the images"))
    # Classes without pixels are left out, since there is nothing to report about these classes.
    has_pixels = totals > 0
    names = tuple(name for name, is_present in zip(masked.images.classes, has_pixels, strict=True) if is_present)
    rows = masked.images.multi_hot
    assert rows is not None
    return replace(masked.images, classes=names, multi_hot=rows[:, has_pixels]), findings


def open_with_boxes(settings: CheckSettings) -> tuple[ImageSet, list[Finding]] | None:
    """Open boxes in any layout as `paucal detect` does; errors become findings. Return None if there are no boxes."""
    data, is_requested = settings.data, settings.verb == "detect"
    path = Path(os.path.expanduser(data))
    if settings.verb not in (None, "detect") or (is_requested and not path.exists()):
        return None
    try:
        layout = find_annotation_files(path)
        if not is_requested and layout is not None and open_tagged_images(path) is not None:
            return None
    except UserError:  # damaged archives are reported when the images are opened
        return None
    if not is_requested and (layout is None or (layout.are_in_class_folders and _has_classes(data))):
        return None
    try:
        with report_other_label_kinds(path, "detect"):
            tree, annotations = read_boxes(path)
    except UserError as problem:
        return None if not is_requested and _has_classes(data) else _open_without_boxes(path, problem)
    refusal, other_kinds = [], []
    try:
        boxed = convert_annotations(tree, annotations).images
        other_kinds = findings_on_other_label_kinds(path, "detect") if settings.verb is None else []
    except UserError as problem:
        boxed, refusal = as_unlabelled_set(tree, annotations), [_refusal_finding(problem)]
    counts = _count_training_boxes(annotations.images)
    text = f"{counted(len(boxed), 'image')} with {counted(counts.total(), 'box', 'boxes')} of "
    text += f"{counted(len(counts), 'class', 'classes')}: this is data for paucal detect"
    counts_text = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(MAX_CLASSES_NAMED))
    counts_text += f", and {len(counts) - MAX_CLASSES_NAMED} more" if len(counts) > MAX_CLASSES_NAMED else ""
    notes = [Finding(BOXES, "note", text), Finding("boxes-per-class", "note", f"boxes: {counts_text}")]
    return boxed, [*notes, *refusal, *_box_findings(annotations.images, boxed.keys), *other_kinds]


def findings_on_other_label_kinds(path: Path, verb: str) -> list[Finding]:
    """Return a note on each kind of labels in the set that the command `verb` does not use."""
    return [
        Finding(f"also-{LABEL_NOUNS[other]}", "note", f"there are also {text}: check these with --verb {other}")
        for other, text in describe_labels(path).items()
        if other != verb
    ]


def _has_classes(data: str) -> bool:
    try:
        return len(open_images(data).classes) > 1
    except UserError:
        return False


def _box_findings(annotations: Sequence[AnnotatedImage], keys: Sequence[str]) -> list[Finding]:
    """Return findings on boxes: sizes, rare classes, and boxes or missing boxes that are probably mistakes."""
    index_of = {key: index for index, key in enumerate(keys)}
    readable = [annotated for annotated in annotations if annotated.key in index_of]
    corners = [np.asarray(annotated.boxes, dtype=np.float64).reshape(-1, 4) for annotated in readable]
    sides = [boxes[:, 2:] - boxes[:, :2] for boxes in corners]
    indices = [index_of[annotated.key] for annotated in readable]
    empty = [np.asarray((side < MIN_BOX_SIDE).any(axis=1)) for side in sides]
    tiny = [np.asarray((side < TINY_BOX_SIDE).any(axis=1) & (side >= MIN_BOX_SIDE).all(axis=1)) for side in sides]
    outside, repeated = [], list(map(_is_repeated, readable, corners))
    for annotated, boxes in zip(readable, corners, strict=True):
        # If the size of the image is unknown, only boxes left of or above the image are certainly outside.
        height, width = annotated.size or (np.inf, np.inf)
        is_outside = (boxes[:, 0] >= width) | (boxes[:, 1] >= height) | (boxes[:, 2] <= 0) | (boxes[:, 3] <= 0)
        outside.append(is_outside)
    findings = _size_findings(sides)
    rare_classes = [f"{name} {n}" for name, n in _count_training_boxes(readable).items() if n < MIN_BOXES]
    if rare_classes:
        names = ", ".join(rare_classes[:MAX_CLASSES_NAMED])
        text = f"{counted(len(rare_classes), 'class', 'classes')} with fewer than {MIN_BOXES} boxes: {names}"
        findings.append(Finding("scarce-classes", "warning", text, "label more of these classes, or merge classes"))
    under_side = f"with a side under {TINY_BOX_SIDE:g} pixels"
    findings += [
        *_marked_finding(indices, empty, "empty-boxes", "without an area", "draw them again"),
        *_marked_finding(indices, outside, "outside-boxes", "outside of their image", SWAPPED_ADVICE),
        *_marked_finding(indices, tiny, "tiny-boxes", under_side, TINY_ADVICE),
        *_marked_finding(indices, repeated, "repeated-boxes", "drawn twice on one object", REPEATED_ADVICE),
    ]
    without_boxes = [index for index, boxes in zip(indices, corners, strict=True) if not len(boxes)]
    if without_boxes:
        level, advice = "note", ""
        if len(without_boxes) > MAX_EMPTY_SHARE * len(readable):
            level, advice = "warning", "check whether all these images were annotated, and remove images that were not"
        text = f"{counted(len(without_boxes), 'image')} of {len(readable)} without a box, used as negatives"
        groups = tuple((index,) for index in without_boxes)
        findings.append(Finding("images-without-boxes", level, text, advice, groups))
    return findings


def _count_training_boxes(annotated: Sequence[AnnotatedImage]) -> Counter[str]:
    """Count the boxes of each class that are used in training, which excludes crowds and difficult objects."""
    return Counter(
        name for image in annotated for name, is_crowd in zip(image.names, image.crowd, strict=True) if not is_crowd
    )


def _size_findings(sides: Sequence[np.ndarray]) -> list[Finding]:
    areas = np.concatenate([side.prod(1) for side in sides]) if sides else np.zeros(0)
    if not len(areas):
        return []
    is_small, is_large = areas < MIN_MEDIUM_AREA, areas >= MIN_LARGE_AREA
    is_medium = (areas >= MIN_MEDIUM_AREA) & (areas < MIN_LARGE_AREA)
    small, medium, large = (percent(float(mask.mean()), ".0f") for mask in (is_small, is_medium, is_large))
    text = f"{small} of the boxes are small (under 32x32 pixels), {medium} medium, {large} large (from 96x96 up); "
    half_text = f"half of the boxes have a side under {np.median(np.sqrt(areas.clip(0))):.0f} pixels"
    return [Finding("box-sizes", "note", text + half_text)]


def _marked_finding(
    indices: Sequence[int], marks: Sequence[np.ndarray], name: str, description: str, advice: str
) -> list[Finding]:
    """Return a finding on the boxes selected by `marks`, a boolean mask per image; [] if no box is selected."""
    count = sum(int(mark.sum()) for mark in marks)
    if not count:
        return []
    groups = tuple((index,) for index, mark in zip(indices, marks, strict=True) if mark.any())
    level = "misleads" if name == "outside-boxes" else "warning"
    text = f"{counted(count, 'box', 'boxes')} {description}, in {counted(len(groups), 'image')}"
    return [Finding(name, level, text, advice, groups)]


def _is_repeated(image: AnnotatedImage, boxes: np.ndarray) -> np.ndarray:
    """Return a mask of the boxes that equal an earlier box of the same class after rounding to whole pixels."""
    earlier_boxes: set[tuple[object, ...]] = set()
    marks = np.zeros(len(boxes), dtype=np.bool_)
    for index, (name, box) in enumerate(zip(image.names, np.round(np.nan_to_num(boxes)).tolist(), strict=True)):
        entry = (name, *box)
        marks[index] = entry in earlier_boxes
        earlier_boxes.add(entry)
    return marks


def _refusal_finding(problem: UserError) -> Finding:
    finding = refusal_finding(BAD_BOXES, problem)
    parts = _WITH_ADVICE.fullmatch(finding.text)
    return replace(finding, text=parts[1], advice=parts[2]) if parts else finding


def _open_without_boxes(path: Path, problem: UserError) -> tuple[ImageSet, list[Finding]]:
    """Open the images of a location whose annotations cannot be read, with a finding on the problem."""
    is_annotation = path.is_file() and not is_archive(path)
    try:
        images = open_images(str(path.parent if is_annotation else path), labelled=False)
    except UserError:
        raise problem from None
    return images, [_refusal_finding(problem)]
