"""Which images of DATA a model is judged on: none that it was trained on or chosen by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.data.channels.pixel_format import depth_notes
from paucal.data.decode import Reading
from paucal.data.images import ImageSet
from paucal.data.splits.split import held_out_part
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.seen_images import Identities, Lesson, readable_lessons
from paucal.runner.console import Console
from paucal.runner.images import pin_data
from paucal.runs import RunFolder
from paucal.settings.groups import LabelledDataSettings
from paucal.settings.options import setting_fields
from paucal.types import UserError
from paucal.wording import counted

TEST = "test"
OPENING = ("label_column", "label_separator", "image_column", "channels", "classes")  # how a run's data is opened


@dataclass(frozen=True)
class JudgedImages:
    """Images that a model is judged on.

    Attributes:
        positions: Positions in the set, ascending.
        notes: Sentences on what was left out, and why.
    """

    positions: NDArray[np.int64]
    notes: tuple[str, ...] = ()


def say_notes(console: Console, images: ImageSet, reading: Reading, judged: JudgedImages) -> None:
    """Say what is odd about the images that a model is judged on, beside what was said when they were opened."""
    for note in (*depth_notes(images, reading), *judged.notes):
        console.say(f"note: {note}")


def choose_judged(run: RunFolder, images: ImageSet, part: str | None, target: str | None) -> JudgedImages:
    """Choose the images to judge a run's model on.

    Images that are all the run's own, wherever they lie, have the parts of the run. Of others those are left out that
    the run, or one it began with, has learned from with their labels.

    Args:
        run: The run that made the model.
        images: The set, opened and checked.
        part: "train", "val" or "test"; None for the test images.
        target: DATA as it was given; None for the run's own images.

    Raises:
        UserError: No image is left, DATA has no such part, or the run's split cannot be read.
    """
    if target is None:
        found = JudgedImages(read_split(run.split, images).indices(part or TEST))
        return _require_some(found, f"{run.path} has no {part or TEST} images: choose another --part, or give DATA.")
    known, ledger = Identities(images, streamed=True), readable_lessons(run)
    if (own := own_parts(ledger, known)) is not None:
        found = JudgedImages(np.flatnonzero(own == (part or TEST)))
        counts = ", ".join(f"{int((own == one).sum())} {one}" for one in dict.fromkeys(("train", "val", TEST)))
        words = f"{target} has images of {run.path} alone ({counts})"
        found = _require_some(found, f"{words}: name another part with --part to judge it on these, or give others.")
        return JudgedImages(found.positions, (f"{words}: judged on the {part or TEST} images",))
    pool = _declared(images, part, target)
    seen = learned_from(ledger, known)
    left = JudgedImages(pool[~seen[pool]], tuple(_notes(run, ledger, known, pool, seen)))
    return _require_some(
        left,
        f"all {len(pool)} images of {target} are training or validation images of {run.path}: give images that it has "
        "not seen, or leave DATA out for its own test images.",
    )


def own_parts(ledger: Sequence[Lesson], known: Identities) -> NDArray[np.str_] | None:
    """Return the part of each image in a run, (N,), where all images are the run's own; None for other images."""
    if not ledger or not ledger[0].labelled or not len(known.images):
        return None
    parts = ledger[0].parts_of(known)
    return parts if (parts != "").all() else None


def learned_from(ledger: Sequence[Lesson], known: Identities) -> NDArray[np.bool_]:
    """Return which images a run, or one it began with, has learned from with their labels, (N,)."""
    seen = np.zeros(len(known.images), dtype=bool)
    for lesson in ledger:
        if lesson.labelled:
            seen |= lesson.among(known, selected=True)
    return seen


def is_same_place(run: RunFolder, target: str, settings: LabelledDataSettings) -> bool:
    """Return whether DATA is the place that a run was trained on, to be opened as the run opened it.

    Raises:
        UserError: the run's settings cannot be read.
    """
    if not run.config.is_file():
        return False
    stored = run.settings
    given = {name: getattr(settings, name) for name in setting_fields(LabelledDataSettings)}
    pinned = pin_data(LabelledDataSettings(**{**given, "data": target}))
    same = all(getattr(pinned, name) in (None, stored.get(name)) for name in OPENING)
    return stored.get("data") == pinned.data and pinned.data_root in (None, stored.get("data_root")) and same


def _declared(images: ImageSet, part: str | None, target: str) -> NDArray[np.int64]:
    """Return the positions of the test images that a set declares, of the part asked for, or of all."""
    declared, held_out = np.asarray(images.declared, dtype="<U6"), held_out_part(images.declared)
    wanted = held_out if part in (None, TEST) else part
    if part is not None and not (declared == (wanted or TEST)).any():
        there = ", ".join(sorted(set(images.declared) - {""})) or "no parts"
        raise UserError(f"--part {part}: {target} has {there}: leave --part out, or name a part that is there.")
    return np.flatnonzero(declared == wanted) if wanted else np.arange(len(images))


def _notes(
    run: RunFolder, ledger: Sequence[Lesson], known: Identities, pool: NDArray[np.int64], seen: NDArray[np.bool_]
) -> list[str]:
    if not ledger or ledger[0].rows is None:
        return [f"whether the model was trained on these images cannot be told: {run.path} has no split.csv"]
    notes, count, own = [], int(seen[pool].sum()), ledger[0]
    if count:
        notes.append(
            f"left out {count} of the {len(pool)} images, which {run.path}, or a run it began with, was trained on or "
            f"chosen by: {len(pool) - count} remain"
        )
    alike = own.labelled * int((own.named_alike(known) & (own.parts_of(known) == "") & ~seen)[pool].sum())
    if alike:
        named = counted(alike, "image has the name", "images have the names")
        why = (
            "and other content, so that it has not seen them" if own.by_digest
            else "and it has stored no digests to compare: if they are the same images, the score means little"
        )  # fmt: skip
        notes.append(f"{named} of training or validation images of {run.path}, {why}")
    return notes


def _require_some(found: JudgedImages, otherwise: str) -> JudgedImages:
    if not len(found.positions):
        raise UserError(f"there are no images to evaluate: {otherwise}")
    return found
