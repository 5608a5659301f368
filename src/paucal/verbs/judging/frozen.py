"""Frozen backbones judged on data sets, and one table of it: what `paucal eval --protocol knn ...` does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from paucal.evaluation.protocols.comparison import Row, compare
from paucal.evaluation.protocols.datasets import TABLE9
from paucal.evaluation.protocols.extraction import Extraction
from paucal.evaluation.protocols.feature_cache import FeatureCache, default_folder
from paucal.evaluation.protocols.feature_reader import POOLED, parse_kind
from paucal.evaluation.protocols.judge import SEVERAL_CLASSES, JudgeOptions, Protocol, judge
from paucal.evaluation.protocols.judged_data import JudgedData
from paucal.evaluation.protocols.linear_probe import ProbeSettings
from paucal.evaluation.protocols.logistic import Solver
from paucal.evaluation.protocols.resampling import Resampling
from paucal.evaluation.protocols.subjects import Subject, floor_of
from paucal.evaluation.protocols.table import protocol_table, remarks
from paucal.runs import RunFolder
from paucal.settings.options import MOST, check_ranges, option
from paucal.types import UserError
from paucal.verbs.judging.frozen_data import OpeningSettings, open_data, require_unseen
from paucal.verbs.judging.models import find_run, open_subject
from paucal.verbs.run.room import check_batch
from paucal.verbs.run.seen import seen_unlabelled
from paucal.verbs.run.start_weights import run_behind
from paucal.verbs.run.voice import Voice

SUITE = "table9"
_GROUP = "frozen features"


@dataclass(frozen=True)
class FrozenSettings:
    """Every setting of the protocols on frozen features."""

    compare: str | None = option("a second model, on the same test images", None, group=_GROUP)
    model: str | None = option("the timm model that a weights file is of", None, group=_GROUP)
    network: str | None = option("of several networks in a weights file: teacher, student, ...", None, group=_GROUP)
    pretrained: bool = option("give a timm model its published weights, not random ones", False, group=_GROUP)
    img_size: list[int] | None = option("image side of a file or timm model, or height and width", None, group=_GROUP)
    no_floor: bool = option("leave out the same architecture with random weights", False, group=_GROUP)
    features: str = option("auto, pooled, or the last few side by side: blocks:4, stages:2", "auto", group=_GROUP)
    feature_dtype: Literal["float32", "float16"] = option("precision of stored features", "float32", group=_GROUP)
    cache: str | None = option("folder of stored features; by default in the user's cache", None, group=_GROUP)
    no_cache: bool = option("store no features", False, group=_GROUP)
    metric: Literal["accuracy", "mean_per_class", "roc_auc"] | None = option(
        "score of linear and logistic; by default that of the paper's table", None, group=_GROUP
    )
    max_images: int | None = option("use at most so many images of each part", None, group=_GROUP, low=1, high=MOST)
    augment: bool = option("linear probe: new augmented views in every epoch, as published (slow)", False, group=_GROUP)
    probe_epochs: int = option(
        "linear probe: passes over the training images", 100, group=_GROUP, low=1, high=1_000_000
    )
    solver: Literal["auto", "sklearn", "torch"] = option(
        "logistic: torch runs where the model does; auto is that on a GPU", "auto", group=_GROUP
    )
    bootstrap: int = option("resampled image sets for an interval", 1000, group=_GROUP, low=2, high=1_000_000)
    seed: int = option(
        "of random weights, splits, few labels, second views and resampling", 0, group=_GROUP, low=0, high=2**62
    )


@dataclass(frozen=True)
class Machine:
    """Where and how fast."""

    device: str = "cpu"
    batch_size: int = 256
    workers: int = 0


def evaluate_frozen(
    model: str,
    data: Sequence[str],
    protocols: Sequence[Protocol],
    settings: FrozenSettings,
    opening: OpeningSettings,
    machine: Machine,
    voice: Voice,
) -> tuple[list[Row], dict[str, Any]]:
    """Judge a model, the one to compare it with and the random one; print the table.

    Args:
        model: a run folder, a weights file or a timm model.
        data: sources of images; none for the run's own, "table9" for all of its sets that are there.
        protocols: which.
        settings: of the protocols.
        opening: of the images.
        machine: device and batches.
        voice: what is told.

    Returns:
        All lines, and what is stored about models and data beside them.

    Raises:
        UserError: a model or a data set is not there, or does not suit a protocol.
    """
    _require_sense(settings)
    run = find_run(model)
    if run is None and not data:
        raise UserError(f"give DATA to judge {model!r} on: only a run has images of its own.")
    subjects = _subjects(model, settings, machine)
    for subject in subjects:
        check_batch(machine.batch_size, subject.preprocessing.image_size)
    _introduce(subjects, voice)
    options = _options(settings, machine, subjects[0])
    rows: list[Row] = []
    sets: list[dict[str, Any]] = []
    for one in _opened(data, run, settings, opening, voice):
        judged = [name for name in (model, settings.compare) if name]
        require_unseen(one, judged)
        seen = _seen(one, judged, voice)
        asked = _suiting(protocols, one) if SUITE in data else protocols
        outcomes = {subject.name: judge(subject, one, asked, options, voice.progress) for subject in subjects}
        rows += compare(one.name, outcomes, Resampling(settings.seed, settings.bootstrap))
        facts = {"classes": one.n_classes, "metric": one.metric, "how": one.how, "seen_unlabelled": seen}
        sets.append({"name": one.name, **one.counts(), **facts})
    if not rows:
        raise UserError("none of the data sets is there: put them below --data-root, or give --download.")
    _show(rows, voice)
    return rows, _about(subjects, sets, settings, protocols)


def _opened(
    data: Sequence[str], run: RunFolder | None, settings: FrozenSettings, opening: OpeningSettings, voice: Voice
) -> Iterator[JudgedData]:
    """Open one data set after the other; those of a suite that are not there are left out with a note."""
    for target in _targets(data) or [None]:
        try:
            one = open_data(target, run, settings, opening, voice)
        except UserError as problem:
            if SUITE not in data or target not in TABLE9:
                raise
            voice.say(f"left out: {problem}")
            continue
        for note in one.images.notes:
            voice.say(f"note: {note}")
        voice.say(f"{one.name}: {', '.join(f'{count} {part}' for part, count in one.counts().items())}; {one.how}")
        yield one


def _seen(data: JudgedData, models: Sequence[str], voice: Voice) -> dict[str, list[str]]:
    """Say how many test images the pre-training of each model has seen; return the sentences."""
    runs = {name: find_run(name) or run_behind(name) for name in models}
    said = {name: seen_unlabelled(run, data.images, data.parts["test"]) for name, run in runs.items()}
    for text in dict.fromkeys(text for texts in said.values() for text in texts):
        voice.say(text)
    return said


def _suiting(protocols: Sequence[Protocol], data: JudgedData) -> Sequence[Protocol]:
    """Return what a set of a suite can be judged by, where its images may have several classes each."""
    return protocols if data.labels.ndim == 1 else [name for name in protocols if name in SEVERAL_CLASSES]


def _introduce(subjects: Sequence[Subject], voice: Voice) -> None:
    for subject in subjects:
        size = f"{subject.parameters / 1e6:.2f} M parameters"
        voice.say(f"{subject.name}: {subject.spec.name}, {size}, {subject.weights}")


def _show(rows: Sequence[Row], voice: Voice) -> None:
    voice.show(protocol_table(rows, Resampling().level))
    for text in remarks(rows):
        voice.say(text)


def _require_sense(settings: FrozenSettings) -> None:
    check_ranges(settings)
    if settings.cache is not None and settings.no_cache:
        raise UserError("--cache names a folder and --no-cache wants none; give one of them.")


def _subjects(model: str, settings: FrozenSettings, machine: Machine) -> list[Subject]:
    runs = [find_run(name) is not None for name in (model, settings.compare) if name]

    def opened(name: str) -> Subject:
        # Beside a timm model a run keeps its own size; runs alone cannot be meant by one, and refuse it.
        own = find_run(name) is not None and not all(runs)
        return open_subject(
            name,
            machine.device,
            model=settings.model,
            network=settings.network,
            pretrained=settings.pretrained,
            image_size=None if own else settings.img_size,
            seed=settings.seed,
        )

    first = opened(model)
    others = [] if settings.compare is None else [opened(settings.compare)]
    if any(other.name == first.name for other in others):
        others = [replace(other, name=f"{other.name} (2)") for other in others]
    floor = [] if settings.no_floor or first.random else [floor_of(first, settings.seed)]
    return [first, *others, *floor]


def _options(settings: FrozenSettings, machine: Machine, first: Subject) -> JudgeOptions:
    folder = None if settings.no_cache else Path(settings.cache).expanduser() if settings.cache else default_folder()
    kind = None if settings.features == "auto" else parse_kind(settings.features)
    on_gpu = first.device.type == "cuda"
    backend = settings.solver if settings.solver != "auto" else "torch" if on_gpu else "sklearn"
    dtype = {"float32": torch.float32, "float16": torch.float16}[settings.feature_dtype]
    return JudgeOptions(
        features=kind or POOLED,
        probe_features=kind,
        extraction=Extraction(machine.batch_size, machine.workers, dtype, FeatureCache(folder)),
        solver=Solver(backend),
        probe=ProbeSettings(epochs=settings.probe_epochs, seed=settings.seed),
        augment=settings.augment,
        seed=settings.seed,
    )


def _targets(data: Sequence[str]) -> list[str]:
    others = [target for target in data if target != SUITE]
    return others if SUITE not in data else [*TABLE9, *others]


def _about(
    subjects: Sequence[Subject], sets: list[dict[str, Any]], settings: FrozenSettings, protocols: Sequence[Protocol]
) -> dict[str, Any]:
    return {
        "models": [
            {
                "name": subject.name,
                "backbone": subject.spec.to_dict(),
                "weights": subject.weights,
                "parameters": subject.parameters,
                "preprocessing": vars(subject.preprocessing),
                "fingerprint": subject.fingerprint,
            }
            for subject in subjects
        ],
        "data": sets,
        "protocols": list(protocols),
        "settings": vars(settings),
        "level": Resampling().level,
    }
