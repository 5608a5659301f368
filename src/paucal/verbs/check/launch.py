"""`paucal.check`: read a data set, and report its problems and properties (the "findings")."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paucal.data.channels.pixel_format import measure_value_ranges
from paucal.data.checking.findings import (
    CheckedSet,
    Finding,
    label_findings,
    refusal_finding,
    small_image_findings,
    sort_findings,
    split_failure_finding,
)
from paucal.data.checking.pictures import UNREADABLE, image_findings
from paucal.data.checking.related import CANDIDATE_SIDE, SimilarPair, find_similar_pairs, group_by_digest, merge_groups
from paucal.data.checking.survey import Survey, survey_images
from paucal.data.classes import choose_classes
from paucal.data.decode import DEFAULT_DECODE_OPTIONS
from paucal.data.images import ImageSet, reduce_images
from paucal.data.sources.joining import split_location
from paucal.data.sources.opening import open_images
from paucal.data.sources.table_reading import TABLE_SUFFIXES
from paucal.data.splits.split import Split, make_split
from paucal.data.stores import FileStore
from paucal.reading import expand_user_path
from paucal.rules.training import IMAGE_SIDES
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.frames import Data, takes_annotations
from paucal.runner.images import SplitImages, initial_decode_options, open_undecoded
from paucal.runner.outputs import refuse_inside_images
from paucal.runner.writable import check_folder_writable
from paucal.settings.options import DEFAULT_SIDE, check_ranges
from paucal.settings.shared import DataSettings
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.tasks.classification.assembly import choose_image_size
from paucal.tasks.regression.images import describe_targets, grades_note, read_targets
from paucal.types import NoLabelsError, UserError
from paucal.verbs.check import annotations
from paucal.verbs.check.labels import FeatureReader, SuspectLabel, find_local_weights, find_suspects, open_reader
from paucal.verbs.check.result import CheckResult, describe_set, print_result, refuse_foreign_files, write_check
from paucal.verbs.check.settings import CheckSettings
from paucal.wording import counted, format_duration, percent, was_or_were

# Largest number of images whose features are compared to confirm near duplicates, which takes 1 min on a laptop.
MAX_CONFIRMED_IMAGES = 2000
_PAIRS_PER_BATCH = 1 << 14  # number of pairs whose features are in memory at the same time
PIXEL_FEATURES = (
    "plain pixels, since there are no trained weights on this machine; pixels are poor features of photographs "
    '(pip install "paucal[weights]" adds weights)'
)


@with_settings_signature(CheckSettings)
@takes_annotations
def check(data: Data = "digits", **settings: Any) -> CheckResult:
    """Read every image of a set once, describe the set and report problems; the same as `paucal check`.

    Args:
        data: Images with labels, as in `paucal.train`, `paucal.segment` or `paucal.detect`, or a folder of images
            without labels.
        **settings: Any field of `paucal.verbs.check.settings.CheckSettings`, such as `labels=True`.

    Returns:
        Facts about the set, findings (the most serious first) and suspected labels. `misleads` is True if the exit code
        of `paucal check` is 1.

    Raises:
        UserError: There are no images, or a setting is invalid.
        TypeError: A setting does not exist.

    Example:
        >>> result = paucal.check("photos/", labels=True)  # doctest: +SKIP
        >>> result.misleads, [finding.text for finding in result.findings]  # doctest: +SKIP
        (True, ['3 images are the same as another image, and would be in several splits: ...'])
    """
    console = RecordingConsole()
    typed_settings = settings_from_keywords(CheckSettings, {**settings, "data": data}, "paucal.check", "check")
    return replace(check_set(typed_settings, console), said=tuple(console.said))


def check_set(settings: CheckSettings, console: Console) -> CheckResult:
    """Check a set of images, and write the HTML page if `settings.output` is given; see `check`."""
    check_ranges(settings)
    folder = None if settings.output is None else expand_user_path(settings.output)
    if folder is not None:
        inputs = {"DATA": settings.data, "--images": settings.images, "--masks": settings.masks}
        refuse_inside_images(folder, inputs, settings.data_root)
        check_folder_writable(folder)
        refuse_foreign_files(folder)
    images, findings_on_open = _open_set(settings)
    images, channels = with_pixel_format(images, settings)
    start_time = time.monotonic()
    with console.progress("reading images") as advance:
        survey = survey_images(images, progress=advance)
    if settings.on_bad_image == "skip":
        images, survey, findings_on_open = without_unreadable(images, survey, findings_on_open)
    verb = annotations.training_command_of(findings_on_open)
    checked_set, split_findings = split_set(images, settings.seed, verb)
    pairs, reader = find_similar_pairs(survey, reduce_images(images, CANDIDATE_SIDE).store), None
    if settings.labels or (pairs and (settings.model or find_local_weights())):
        reader = open_reader(settings, _median_short_side(survey))
    if reader is not None and reader.trained:
        pairs = _confirm_pairs(pairs, reader, images, console, max(1, _median_short_side(survey) // 2))
    findings = [
        *findings_on_open,
        *channels,
        *split_findings,
        *label_findings(checked_set),
        *annotations.crop_findings(findings_on_open, survey, settings.device),
        *(_small_image_findings(checked_set, survey) if verb == "train" else ()),
        *image_findings(checked_set, survey, pairs),
    ]
    suspects, judged_by = None, ""
    if settings.labels and reader is not None:
        suspects, judged_by = _find_label_errors(images, survey, pairs, reader, console)
    facts, sorted_findings = describe_set(checked_set, survey), sort_findings(annotations.applicable_findings(findings))
    result = CheckResult(checked_set, facts, sorted_findings, suspects, judged_by, folder)
    console.note(f"checked in {format_duration(time.monotonic() - start_time)}")
    if folder is not None:
        write_check(folder, result, settings.seed)
    return result


def show(result: CheckResult, console: Console) -> None:
    """Print a result and the path of its HTML page."""
    print_result(result, console)
    if result.folder is not None:
        console.say(f"Results are in {result.folder}: check.html (open it in a browser), check.json")
    elif any(finding.groups for finding in result.findings) or result.suspects:
        console.say("--output FOLDER writes a page that shows all these images.")


def split_set(images: ImageSet, seed: int, verb: str = "train") -> tuple[CheckedSet, list[Finding]]:
    """Split a set into train, val and test images as the command `verb` would, and return findings on the split."""
    declared = np.asarray(images.declared_splits, dtype="<U6")
    has_own_split = len(set(images.declared_splits)) > 1
    undivided = CheckedSet(images, np.where(declared == "", "train", declared), bool(declared.any()), "not divided")
    if not images.has_single_labels and images.multi_hot is None:
        return undivided, []
    try:
        parts = make_split(images, seed=seed).parts
    except UserError as problem:
        return undivided, [split_failure_finding(problem)]
    parts = declared if has_own_split else parts
    return CheckedSet(images, parts, has_own_split, f"as paucal {verb} would divide them"), []


def without_unreadable(
    images: ImageSet, survey: Survey, findings_on_open: Sequence[Finding]
) -> tuple[ImageSet, Survey, list[Finding]]:
    """Leave out unreadable images of a set, its survey and its findings, as a run would, unless all are unreadable."""
    readable = survey.readable_positions
    if len(readable) in (0, len(images)):
        return images, survey, list(findings_on_open)
    new_positions = {old: new for new, old in enumerate(readable.tolist())}
    findings = []
    for finding in findings_on_open:
        groups = (tuple(new_positions[old] for old in group if old in new_positions) for group in finding.groups)
        findings.append(replace(finding, groups=tuple(filter(None, groups))))
    unreadable = sorted(survey.unreadable)
    count, verb = counted(len(unreadable), "image"), was_or_were(len(unreadable))
    text = f"{count} of {len(images)} cannot be read and {verb} left out "
    text += f"(the first: {survey.unreadable[unreadable[0]]})"
    findings.append(Finding(UNREADABLE, "warning", text, "repair or remove these images"))
    return images.select(readable), survey.select(readable), findings


def _small_image_findings(checked_set: CheckedSet, survey: Survey) -> list[Finding]:
    """Return findings on images far smaller than the input of `paucal train`; [] if most images are tiny."""
    readable = survey.readable_positions
    if not len(readable) or not checked_set.images.classes or _median_short_side(survey) <= IMAGE_SIDES[0]:
        return []
    prepared = SplitImages(checked_set.images, Split(checked_set.parts, checked_set.origin))
    return small_image_findings(survey.sizes[readable], min(choose_image_size(prepared)), readable)


def _open_set(settings: CheckSettings) -> tuple[ImageSet, list[Finding]]:
    """Open a set with its classes, masks or boxes; if these cannot be read, open the images without labels."""
    if (column := settings.target) is not None:
        if settings.verb not in (None, "train"):
            raise UserError(f"--target is for paucal train, but --verb is {settings.verb}: remove either one.")
        location = {"image_column": settings.image_column, "root": settings.data_root, "download": settings.download}
        images, targets = read_targets(open_images(settings.data, labelled=False, **location), column)
        summary = f"{column!r} has {describe_targets(targets)}, which paucal train --target {shlex.quote(column)} "
        texts = (f"{summary}predicts", *grades_note(targets, column))
        return images, [Finding("numbers", "note", text) for text in texts]
    if (annotated := annotations.open_with_masks(settings) or annotations.open_with_boxes(settings)) is not None:
        return annotated
    try:
        # --classes is applied later, since an unknown class is a mistake of the caller and not a problem of the data.
        images = open_undecoded(replace(settings, classes=None))
    except UserError as problem:
        images = _open_without_labels(settings, problem)
        is_table = settings.data.lower().endswith(TABLE_SUFFIXES)
        has_only_paths = is_table and len(images) and not images.columns and settings.label_column is None
        if isinstance(problem, NoLabelsError) or has_only_paths:
            advice = "paucal pretrain and paucal predict take images without labels"
            return images, [Finding("unlabelled", "warning", f"there are no labels to train with: {problem}", advice)]
        return images, [refusal_finding("refused", problem, "paucal train would refuse these images: ")]
    if settings.classes is not None:
        images = choose_classes(images, settings.classes)
    return images, []


def _open_without_labels(settings: CheckSettings, problem: UserError) -> ImageSet:
    """Open images without labels, after reading their labels raised `problem`; return an empty set if this fails too.

    If the location does not exist or a flag is wrong, the mistake is in the call, and `problem` is raised again.
    """
    if str(problem).startswith("--"):
        raise problem
    try:
        return open_images(settings.data, labelled=False, root=settings.data_root)
    except UserError:
        paths = [Path(os.path.expanduser(root)) for root in split_location(settings.data)]
        if not all(path.exists() for path in paths):
            raise problem from None
    no_labels = np.zeros(0, dtype=np.int64)
    return ImageSet(paths[0].name, str(paths[0].resolve()), (), [], no_labels, [], FileStore(paths[0], []))


def with_pixel_format(images: ImageSet, settings: DataSettings) -> tuple[ImageSet, list[Finding]]:
    """Return a set with the channels and value ranges that training would use, and findings on channels and values."""
    findings: list[Finding] = []
    try:
        decode_options = initial_decode_options(settings, images)
    except UserError as problem:
        findings, decode_options = [refusal_finding("channels", problem)], DEFAULT_DECODE_OPTIONS
    decode_options, notes = measure_value_ranges(decode_options, images)
    findings += [Finding("values", "warning", note) for note in notes]
    return images.with_decode_options(decode_options), findings


def _median_short_side(survey: Survey) -> int:
    readable = survey.readable_positions
    return int(np.median(survey.sizes[readable].min(axis=1))) if len(readable) else DEFAULT_SIDE


def _confirm_pairs(
    pairs: Sequence[SimilarPair], reader: FeatureReader, images: ImageSet, console: Console, detail: int
) -> list[SimilarPair]:
    """Return `pairs` with the cosine similarity of their features, or unchanged if there are too many images."""
    positions = np.asarray([(pair.first, pair.second) for pair in pairs], dtype=np.int64).reshape(-1, 2)
    paired_images, rows = np.unique(positions, return_inverse=True)
    if len(paired_images) > MAX_CONFIRMED_IMAGES:
        console.say(
            f"note: {len(paired_images)} images look like another image. Features are only compared for up to "
            f"{MAX_CONFIRMED_IMAGES} images, so some of the pairs may only share a background"
        )
    if not 0 < len(paired_images) <= MAX_CONFIRMED_IMAGES:
        return list(pairs)
    with console.progress("comparing similar images") as advance:
        features = reader.read(images, paired_images, _progress_with_estimate(advance, console), detail)
    vectors = (features - features.mean(0)) if len(paired_images) > 100 else features
    vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-8)
    batches = torch.from_numpy(rows.reshape(-1, 2)).split(_PAIRS_PER_BATCH)
    cosines = [(vectors[batch[:, 0]] * vectors[batch[:, 1]]).sum(1) for batch in batches]
    return [replace(pair, cosine=cosine) for pair, cosine in zip(pairs, torch.cat(cosines).tolist(), strict=True)]


def _find_label_errors(
    images: ImageSet, survey: Survey, pairs: Sequence[SimilarPair], reader: FeatureReader, console: Console
) -> tuple[list[SuspectLabel] | None, str]:
    if images.multi_hot is not None:
        text = "--labels needs one label per image (confident learning), but these images have several labels"
        console.say(f"note: {text}")
        return None, ""
    indices = survey.readable_positions[images.labels[survey.readable_positions] >= 0]
    if not images.has_single_labels or len(np.unique(images.labels[indices])) < 2:
        console.say("note: --labels has no effect, since it needs labels of two or more classes")
        return None, ""
    with console.progress("extracting features") as advance:
        features = reader.read(images, indices, _progress_with_estimate(advance, console))
    copy_groups = merge_groups([*group_by_digest(survey.digests), *([pair.first, pair.second] for pair in pairs)])
    group_numbers = np.arange(len(images))
    for group in copy_groups:
        group_numbers[group] = group[0]
    seed = reader.settings.seed
    suspects, agreement = find_suspects(images, indices, features, group_numbers[indices], seed, console)
    judged_by = f"frozen features of {reader.name}" if reader.trained else PIXEL_FEATURES
    judged_by += f"; {counted(len(indices), 'image')}, each predicted by a classifier that was not fitted on this image"
    return suspects, f"{judged_by}; the predictions agree with {percent(agreement)} of the labels"


def _progress_with_estimate(advance: Any, console: Console) -> Any:
    """Return a progress function that also prints the expected remaining time once, after the first images."""
    start_time, is_first = time.monotonic(), True

    def step(done: int, total: int) -> None:
        nonlocal is_first
        advance(done, total)
        if is_first and done:
            is_first = False
            seconds_left = (time.monotonic() - start_time) / done * (total - done)
            if seconds_left > 20:
                console.say(f"time: about {format_duration(seconds_left)} to extract the features of {total} images")

    return step
