"""`paucal.check`: what a data set holds and what is wrong with it."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paucal.data.channels.counting import count_channels
from paucal.data.checking.duplicates import CANDIDATE_SIDE, Pair, alike_pairs, exact_groups, joined
from paucal.data.checking.findings import Checked, Finding, ranked
from paucal.data.checking.labels import label_findings, size_findings, split_problem
from paucal.data.checking.pictures import picture_findings
from paucal.data.checking.survey import Survey, survey_images
from paucal.data.decode import WHOLE, Reading
from paucal.data.decoded.read_as import ReadAs, smaller
from paucal.data.decoded.value_range import with_ranges
from paucal.data.images import ImageSet
from paucal.data.sources.opening import open_images
from paucal.data.splits.classes import choose_classes
from paucal.data.splits.split import make_split
from paucal.reading import named_path
from paucal.rules.model import SIDES
from paucal.runs.writable import try_folder
from paucal.settings.options import USUAL_SIDE, check_ranges
from paucal.settings.values import from_python, shows_settings
from paucal.types import UserError
from paucal.verbs.checking.boxes import open_with_boxes
from paucal.verbs.checking.features import Reader, open_reader, weights_at_hand
from paucal.verbs.checking.masks import for_masks, open_masked
from paucal.verbs.checking.result import CheckResult, facts_of, tell
from paucal.verbs.checking.settings import CheckSettings
from paucal.verbs.checking.suspects import SuspectLabel, find_suspects
from paucal.verbs.checking.writing import require_ours, write_check
from paucal.verbs.run.forecast import duration
from paucal.verbs.run.outputs import refuse_among
from paucal.verbs.run.voice import Heard, Voice
from paucal.wording import counted, percent

MOST_CONFIRMED = 2000  # images whose features are read to confirm near duplicates: a minute on a laptop
_AT_ONCE = 1 << 14  # pairs whose features are held together


@shows_settings(CheckSettings)
def check(data: str | os.PathLike[str] = "digits", **settings: Any) -> CheckResult:
    """Look at every image of a set once, and say what the set holds and what is wrong; the same as `paucal check`.

    Args:
        data: anything that `paucal.train`, `paucal.segment` or `paucal.detect` takes, or a folder of images without
            labels.
        **settings: any field of `paucal.verbs.checking.settings.CheckSettings`, such as `labels=True`.

    Returns:
        Facts, findings (the gravest first) and suspected labels; `result.misleads` is what the exit code says.

    Raises:
        UserError: there are no images, or a setting does not do.
        TypeError: a setting does not exist.

    Example:
        >>> found = paucal.check("photos/", labels=True)  # doctest: +SKIP
        >>> found.misleads, [one.text for one in found.findings]  # doctest: +SKIP
        (True, ['3 images are the same as another image, and would fall into several parts: ...'])
    """
    voice = Heard()
    found = check_set(from_python(CheckSettings, {**settings, "data": data}, "paucal.check", "check"), voice)
    return replace(found, said=tuple(voice.said))


def check_set(settings: CheckSettings, voice: Voice) -> CheckResult:
    """Check a set of images, and write the page where a folder for it is given; see `check`."""
    check_ranges(settings)
    folder = _place(settings)
    images, opening = _open(settings)
    images, channels = as_pictures(images, settings.channels)
    checked, dividing = divide(images, settings.seed)
    begin = time.monotonic()
    with voice.progress("looking at images") as advance:
        survey = survey_images(images, progress=advance)
    pairs, reader = alike_pairs(survey, smaller(images, CANDIDATE_SIDE).store), None
    if settings.labels or (pairs and (settings.model or weights_at_hand())):
        reader = open_reader(settings, _side(survey))
    if reader is not None and reader.trained:
        pairs = _confirmed(pairs, reader, images, settings, voice, max(1, _side(survey) // 2))
    good = survey.readable
    found = [
        *opening,
        *channels,
        *dividing,
        *label_findings(checked),
        *size_findings(survey.sizes[good], _wanted(_side(survey)), good),
        *picture_findings(checked, survey, pairs),
    ]
    found = for_masks(found, survey.sizes[good], good, settings.device)
    suspects, judged = None, ""
    if settings.labels and reader is not None:
        suspects, judged = _judge_labels(images, survey, pairs, reader, settings, voice)
    result = CheckResult(checked, facts_of(checked, survey), ranked(found), suspects, judged, folder)
    voice.note(f"checked in {duration(time.monotonic() - begin)}")
    if folder is not None:
        write_check(folder, result, settings.seed)
    return result


def show(result: CheckResult, voice: Voice) -> None:
    """Show a result on a terminal, and where its page lies."""
    tell(result, voice)
    if result.folder is not None:
        voice.say(f"everything lies in {result.folder}: check.html (open it in a browser), check.json")
    elif any(one.groups for one in result.findings) or result.suspects:
        voice.say("--output FOLDER writes a page with all of these images.")


def divide(images: ImageSet, seed: int) -> tuple[Checked, list[Finding]]:
    """Return a set with its own parts, or with those that `paucal train` would cut, and what is wrong with them."""
    declared = np.asarray(images.declared, dtype="<U6")
    own = len(set(images.declared)) > 1
    if not images.labelled and images.multi_hot is None:
        return Checked(images, np.where(declared == "", "train", declared), own), []
    try:
        parts, problems = make_split(images, seed=seed).parts, []
    except UserError as problem:
        parts, problems = np.full(len(images), "train", dtype="<U6"), [split_problem(problem)]
    return Checked(images, declared if own else parts, own), problems


def _open(settings: CheckSettings) -> tuple[ImageSet, list[Finding]]:
    """Open a set with its labels, or with the classes of its masks or boxes; without any where it has none."""
    masked = open_masked(settings) or open_with_boxes(settings.data)
    if masked is not None:
        return masked
    try:
        images = open_images(
            settings.data,
            label_column=settings.label_column,
            label_separator=settings.label_separator,
            image_column=settings.image_column,
            root=settings.data_root,
            download=settings.download,
        )
    except UserError as problem:
        try:
            images = open_images(settings.data, labelled=False, root=settings.data_root)
        except UserError:
            raise problem from None
        advice = "without labels these images do for paucal pretrain and paucal predict"
        return images, [Finding("unlabelled", "warning", f"there are no labels to train with: {problem}", advice)]
    if settings.classes is not None:
        images = choose_classes(images, settings.classes)
    return images, []


def as_pictures(images: ImageSet, channels: int | None) -> tuple[ImageSet, list[Finding]]:
    """Return a set as training reads it, with its channels and its range of values, and what is wrong with those.

    Args:
        images: as they were opened.
        channels: that somebody says they have.
    """
    found: list[Finding] = []
    try:
        reading = Reading(channels=channels or count_channels(images))
    except UserError as problem:
        text, _, advice = str(problem).rstrip(".").partition("; ")
        found, reading = [Finding("channels", "misleads", text, advice)], WHOLE
    reading, notes = with_ranges(reading, images)
    found += [Finding("values", "warning", note) for note in notes]
    return replace(images, store=ReadAs(images.store, reading), reading=reading), found


def _place(settings: CheckSettings) -> Path | None:
    if settings.output is None:
        return None
    path = named_path(settings.output)
    places = {"DATA": settings.data, "--images": settings.images, "--masks": settings.masks}
    refuse_among(path, places, settings.data_root)
    try_folder(path)
    require_ours(path)
    return path


def _side(survey: Survey) -> int:
    good = survey.readable
    return int(np.median(survey.sizes[good].min(axis=1))) if len(good) else USUAL_SIDE


def _wanted(side: int) -> int:
    """Return the pixels that a model for images of this shorter side looks at."""
    if side <= SIDES[0]:
        return side  # a set of tiny images is trained at its own size
    return next((one for one in SIDES if one >= side), USUAL_SIDE)


def _confirmed(
    pairs: Sequence[Pair], reader: Reader, images: ImageSet, settings: CheckSettings, voice: Voice, detail: int
) -> list[Pair]:
    """Return pairs with the cosine of their features; as they were where they are too many, with a note."""
    positions = np.asarray([(pair.first, pair.second) for pair in pairs], dtype=np.int64).reshape(-1, 2)
    told, rows = np.unique(positions, return_inverse=True)
    if len(told) > MOST_CONFIRMED:
        voice.say(
            f"note: {len(told)} images look like another one, too many to compare what they show (the most are "
            f"{MOST_CONFIRMED}): some may share no more than a background"
        )
    if not 0 < len(told) <= MOST_CONFIRMED:
        return list(pairs)
    with voice.progress("comparing what looks alike") as advance:
        features = reader.read(images, told, settings, _telling(advance, voice), detail)
    unit = (features - features.mean(0)) if len(told) > 100 else features
    unit = unit / unit.norm(dim=1, keepdim=True).clamp(min=1e-8)
    cosines = [
        (unit[some[:, 0]] * unit[some[:, 1]]).sum(1) for some in torch.from_numpy(rows.reshape(-1, 2)).split(_AT_ONCE)
    ]
    return [replace(pair, features=one) for pair, one in zip(pairs, torch.cat(cosines).tolist(), strict=True)]


def _judge_labels(
    images: ImageSet, survey: Survey, pairs: Sequence[Pair], reader: Reader, settings: CheckSettings, voice: Voice
) -> tuple[list[SuspectLabel] | None, str]:
    if images.multi_hot is not None:
        voice.say("note: --labels judges one label for each image (confident learning), and these have several")
        return None, ""
    indices = survey.readable[images.labels[survey.readable] >= 0]
    if not images.labelled or len(np.unique(images.labels[indices])) < 2:
        voice.say("note: --labels judges labels, and there are none to judge")
        return None, ""
    with voice.progress("reading features") as advance:
        features = reader.read(images, indices, settings, _telling(advance, voice))
    together = joined([*exact_groups(survey.digests), *([pair.first, pair.second] for pair in pairs)])
    number = np.arange(len(images))
    for group in together:
        number[group] = group[0]
    suspects, agreed = find_suspects(images, indices, features, number[indices], settings.seed, voice)
    source = f"frozen features of {reader.name}" if reader.trained else (
        "the pixels alone, since there are no trained weights on this machine: for photographs that is a weak judge "
        '(pip install "paucal[weights]" gives a better one)'
    )  # fmt: skip
    told = f"{source}; {counted(len(indices), 'image')}, each by a classifier that has not seen it"
    return suspects, f"{told}, which agrees with {percent(agreed)} of the labels"


def _telling(advance: Any, voice: Voice) -> Any:
    """Return a progress function that says once, after some images, how long all will take."""
    begin, told = time.monotonic(), []

    def step(done: int, total: int) -> None:
        advance(done, total)
        if not told and done:
            told.append(True)
            left = (time.monotonic() - begin) / done * (total - done)
            if left > 20:
                voice.say(f"time: about {duration(left)} to read the features of {total} images")

    return step
