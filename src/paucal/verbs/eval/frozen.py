"""Frozen backbones judged on data sets, and one table of it: what `paucal eval --protocol knn ...` does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from paucal.data.channels.pixel_format import depth_notes
from paucal.data.decode import Reading
from paucal.data.loader import inference_batch_size
from paucal.evaluation.protocols.comparison import MOST_MODELS, Row, compare
from paucal.evaluation.protocols.datasets import TABLE9
from paucal.evaluation.protocols.extraction import Extraction
from paucal.evaluation.protocols.feature_cache import FeatureCache, default_folder
from paucal.evaluation.protocols.feature_reader import POOLED, FeatureReader, parse_kind
from paucal.evaluation.protocols.judge import SEVERAL_CLASSES, JudgeOptions, Protocol, judge
from paucal.evaluation.protocols.judged_data import JudgedData
from paucal.evaluation.protocols.linear_probe import ProbeSettings
from paucal.evaluation.protocols.logistic import Solver
from paucal.evaluation.protocols.subjects import FLOOR, Subject, floor_of
from paucal.evaluation.protocols.table import FOLDER, protocol_table, remarks, store_table
from paucal.evaluation.seen_images import Identities, readable_lessons, require_unseen, seen_unlabelled
from paucal.metrics.bootstrap import Bootstrap
from paucal.report.page import NAME, write_report
from paucal.report.pretraining import write_pretraining_report
from paucal.runner.console import Console
from paucal.runner.images import reading_for
from paucal.runner.memory_check import check_batch_memory
from paucal.runs import RunFolder
from paucal.runs.folder import run_behind
from paucal.settings.options import setting_fields
from paucal.types import UserError
from paucal.verbs.eval.choosing import learned_from
from paucal.verbs.eval.frozen_data import open_data
from paucal.verbs.eval.models import find_run, open_subject
from paucal.verbs.eval.pictures import draw_matches, draw_scores, no_matches
from paucal.verbs.eval.settings import EvalSettings, FrozenSettings

SUITE = "table9"
REPORTS = {"train": write_report, "pretrain": write_pretraining_report}  # of which verbs are written again
MOST_COMPARED = MOST_MODELS - 2  # beside the one that is judged and the random one


@dataclass(frozen=True)
class FrozenTable:
    """Scores of frozen backbones on data sets.

    Attributes:
        rows: all lines: data set, protocol and measure, with the score of every model and the gains of the first.
        about: what is stored about models, data and settings beside them, of JSON types.
        folder: where the table lies.
    """

    rows: Sequence[Row]
    about: Mapping[str, Any]
    folder: Path


def judge_frozen(
    model: str,
    data: Sequence[str],
    protocols: Sequence[Protocol],
    settings: EvalSettings,
    folder: Path,
    console: Console,
) -> FrozenTable:
    """Judge a model, those to compare it with and the random one; print and store the table.

    Args:
        model: a run folder, a weights file or a timm model.
        data: sources of images; none for the run's own, "table9" for all of its sets that are there.
        protocols: which.
        settings: of the protocols, the images and the machine.
        folder: for the table.
        console: what is told.

    Raises:
        UserError: a model or a data set is not there, or does not suit a protocol; or a model has no such features.
    """
    _require_sense(settings)
    run = find_run(model)
    if run is None and not data:
        raise UserError(f"give DATA to judge {model!r} on, before the flags: only a run has images of its own.")
    subjects = _subjects(model, settings, protocols, console)
    options = _options(settings, subjects[0])
    rows: list[Row] = []
    sets: list[dict[str, Any]] = []
    drawn: JudgedData | None = None
    for one in _opened(data, run, settings, console, _reading(subjects)):
        one = _without_seen(one, model, console)
        seen = _seen(one, [model, *(settings.compare or [])], console)
        # A suite has sets whose images have several classes each, which not all protocols suit.
        suited: Sequence[Protocol] = [name for name in protocols if one.labels.ndim == 1 or name in SEVERAL_CLASSES]
        asked = suited if SUITE in data else protocols
        outcomes = {subject.name: judge(subject, one, asked, options, console.progress) for subject in subjects}
        rows += compare(one.name, outcomes, Bootstrap(settings.seed, settings.bootstrap))
        facts = {"classes": one.n_classes, "metric": one.metric, "how": one.how, "seen_unlabelled": seen}
        sets.append({"name": one.name, **one.counts(), **facts})
        drawn = drawn or (one if "correspondence" in asked else None)
    if not rows:
        raise UserError("none of the data sets is there: put them below --data-root, or give --download.")
    console.show(protocol_table(rows, Bootstrap().level))
    for text in remarks(rows):
        console.say(text)
    about = _about(subjects, sets, settings, protocols)
    store_table(folder, rows, about)
    draw_scores(folder, rows, about["level"])
    if drawn is None:
        no_matches(folder)
    else:
        draw_matches(folder, subjects[0], drawn, options, console.say)
    console.say(f"the table and its pictures lie in {folder}")
    if run is not None and run.config.exists() and folder == run.evaluation(FOLDER):
        _renew_report(run, console.say)
    return FrozenTable(rows, about, folder)


def _reading(subjects: Sequence[Subject]) -> Reading:
    """Return how images are read for all of some models: as the one with the largest input needs them.

    Values of more than 8 bits are read as the first model's were, which the others are compared with.
    """
    fed = [subject.preprocessing for subject in subjects]
    if len({one.channels for one in fed}) > 1:
        told = ", ".join(f"{subject.name} {subject.preprocessing.channels}" for subject in subjects)
        raise UserError(f"the models read different numbers of channels ({told}): judge each on images of its own.")
    return reading_for([max(max(one.image_size) for one in fed)], fed[0].reading)


def _opened(
    data: Sequence[str], run: RunFolder | None, settings: EvalSettings, console: Console, reading: Reading
) -> Iterator[JudgedData]:
    """Open one data set after the other; those of a suite that are not there are left out with a note."""
    others = [target for target in data if target != SUITE]
    for target in ([*TABLE9, *others] if SUITE in data else others) or [None]:
        try:
            one = open_data(target, run, settings, settings, console, reading)
        except UserError as problem:
            if SUITE not in data or target not in TABLE9:
                raise
            console.say(f"left out: {problem}")
            continue
        for note in (*one.images.notes, *depth_notes(one.images, reading)):
            console.say(f"note: {note}")
        console.say(f"{one.name}: {', '.join(f'{count} {part}' for part, count in one.counts().items())}; {one.how}")
        yield one


def _without_seen(data: JudgedData, model: str, console: Console) -> JudgedData:
    """Leave out the test images whose labels the judged model knows, and say so.

    Raises:
        UserError: it knows the labels of all, or its run's split cannot be read.
    """
    run = find_run(model) or run_behind(model)
    if run is None:
        return data
    seen = learned_from(readable_lessons(run), Identities(data.images, streamed=True))
    test = data.parts["test"]
    left = test[~seen[test]]
    if not len(left):
        require_unseen(model, run, data.images, test)
    elif len(left) < len(test):
        console.say(
            f"note: left out {len(test) - len(left)} of the {len(test)} test images of {data.name}, which {model}, or "
            f"a run it began with, was trained on or chosen by: {len(left)} remain"
        )
    return replace(data, parts={**data.parts, "test": left})


def _seen(data: JudgedData, models: Sequence[str], console: Console) -> dict[str, list[str]]:
    """Say how many test images the pre-training of each model has seen; return the sentences.

    Raises:
        UserError: a model has been told the labels of some.
    """
    runs, test = {name: find_run(name) or run_behind(name) for name in models}, data.parts["test"]
    for name, run in runs.items():
        require_unseen(name, run, data.images, test)
    said = {name: seen_unlabelled(run, data.images, test) for name, run in runs.items()}
    for text in dict.fromkeys(text for texts in said.values() for text in texts):
        console.say(text)
    return said


def _require_sense(settings: FrozenSettings) -> None:
    if settings.cache is not None and settings.no_cache:
        raise UserError("--cache names a folder and --no-cache wants none; give one of them.")
    others = len(settings.compare or [])
    if others > MOST_COMPARED:
        raise UserError(f"--compare names {others} models, and a table has room for {MOST_COMPARED}: give fewer.")


def _subjects(model: str, settings: EvalSettings, protocols: Sequence[Protocol], console: Console) -> list[Subject]:
    """Open the models and say what they are; refuse features that one cannot give before any looks at an image."""
    names = [model, *(settings.compare or [])]
    runs = [find_run(name) is not None for name in names]

    def opened(name: str) -> Subject:
        # Beside a timm model a run keeps its own size; runs alone cannot be meant by one, and refuse it.
        own = find_run(name) is not None and not all(runs)
        return open_subject(
            name,
            settings.device,
            model=settings.model,
            network=settings.network,
            pretrained=settings.pretrained,
            image_size=None if own else settings.img_size,
            seed=settings.seed,
        )

    first, *others = [opened(name) for name in names]
    floor = [] if settings.no_floor or first.random else [floor_of(first, settings.seed)]
    subjects = [*_told_apart([first, *others]), *floor]
    for subject in subjects:
        check_batch_memory(_together(settings, subject), subject.preprocessing.image_size)
        if settings.features != "auto" and set(protocols) - {"correspondence"}:
            FeatureReader(subject.backbone, [parse_kind(settings.features)]).close()
    for subject in subjects:
        size = f"{subject.parameters / 1e6:.2f} M parameters"
        console.say(f"{subject.name}: {subject.spec.name}, {size}, {subject.weights}")
    return subjects


def _told_apart(subjects: Sequence[Subject]) -> list[Subject]:
    """Return the models with a name of its own for each, by which its column is found."""
    taken, named = {FLOOR}, []
    for subject in subjects:
        numbered = (f"{subject.name} ({number})" for number in count(2))
        name = subject.name if subject.name not in taken else next(name for name in numbered if name not in taken)
        taken.add(name)
        named.append(replace(subject, name=name))
    return named


def _together(settings: EvalSettings, subject: Subject) -> int:
    return settings.batch_size or inference_batch_size(subject.preprocessing.image_size, subject.device.type)


def _options(settings: EvalSettings, first: Subject) -> JudgeOptions:
    folder = None if settings.no_cache else Path(settings.cache).expanduser() if settings.cache else default_folder()
    kind = None if settings.features == "auto" else parse_kind(settings.features)
    on_gpu = first.device.type == "cuda"
    backend = settings.solver if settings.solver != "auto" else "torch" if on_gpu else "sklearn"
    dtype = {"float32": torch.float32, "float16": torch.float16}[settings.feature_dtype]
    return JudgeOptions(
        features=kind or POOLED,
        probe_features=kind,
        extraction=Extraction(_together(settings, first), settings.workers, dtype, FeatureCache(folder)),
        solver=Solver(backend),
        probe=ProbeSettings(epochs=settings.probe_epochs, seed=settings.seed),
        augment=settings.augment,
        seed=settings.seed,
    )


def _about(
    subjects: Sequence[Subject], sets: list[dict[str, Any]], settings: EvalSettings, protocols: Sequence[Protocol]
) -> dict[str, Any]:
    return {
        "models": [
            {
                "name": subject.name,
                "backbone": subject.spec.to_dict(),
                "weights": subject.weights,
                "parameters": subject.parameters,
                "preprocessing": subject.preprocessing.to_dict(),
                "fingerprint": subject.fingerprint,
            }
            for subject in subjects
        ],
        "data": sets,
        "protocols": list(protocols),
        "settings": {name: getattr(settings, name) for name in setting_fields(FrozenSettings)},
        "level": Bootstrap().level,
    }


def _renew_report(run: RunFolder, say: Callable[[str], None]) -> None:
    """Write the report of a run of `paucal train` or `paucal pretrain` again, where there is one.

    A report that cannot be written fails nothing: what was judged is stored.
    """
    write = REPORTS.get(run.verb)
    if write is None or not (run.path / NAME).is_file():
        return
    try:
        say(f"the report of the run shows it: {write(run.path)}")
    except (UserError, OSError) as problem:
        say(f"note: the report of the run is as it was ({problem})")
