"""One training run from settings to report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from paucal.data.split_file import read_split, write_split
from paucal.evaluation.deployed import Card, saver
from paucal.objectives import Objective
from paucal.recipes.auto import origins, resolve
from paucal.recipes.checks import check_ranges
from paucal.recipes.finish import Result, conclude
from paucal.recipes.loaders import (
    normalisation,
    preprocessing,
    train_loader,
    training_sheet,
    validation,
    view_transform,
)
from paucal.recipes.methods import build_objective, check_names
from paucal.recipes.model import backbone_spec
from paucal.recipes.plans import check_plan, optimization, training_plan
from paucal.recipes.prepare import Prepared, load_images, prepare
from paucal.recipes.settings import TrainSettings
from paucal.recipes.voice import Quiet, Voice
from paucal.runs import RunFolder, create_run, describe_environment, open_run, write_atomically
from paucal.training import Outcome, Plan, Records, Watch, checkpoint_position, fit
from paucal.types import UserError


@dataclass(frozen=True)
class Assembled:
    """Everything a run needs, checked, with nothing written yet."""

    settings: TrainSettings
    origin: Mapping[str, str]
    prepared: Prepared
    plan: Plan
    objective: Objective
    card: Card
    remarks: tuple[str, ...]


def train(data: str | Path = "digits", **settings: Any) -> Result:
    """Train a model and judge it on the test images; the same as `paucal train`.

    Args:
        data: "digits" (the built-in images), a folder of images, or Parquet in the Hugging Face layout.
        **settings: any field of `paucal.recipes.settings.TrainSettings`, such as `model`, `epochs` or `output`;
            what is left out is chosen from the data.

    Returns:
        The run folder and the report on the test images.

    Raises:
        UserError: the data or a setting does not do; the message says what to change.
        TypeError: a setting does not exist.

    Example:
        >>> result = paucal.train("photos/", model="resnet18", epochs=20)  # doctest: +SKIP
        >>> result.report.scores["top1"].value  # doctest: +SKIP
        0.93
    """
    unknown = set(settings) - {f.name for f in fields(TrainSettings)}
    if unknown:
        raise TypeError(f"paucal.train has no setting {sorted(unknown)[0]!r}; see TrainSettings for all of them")
    given = dict.fromkeys([*settings, "data"], "given")
    chosen = TrainSettings(**{**settings, "data": str(data)})
    result = train_run(chosen, given, Quiet())
    assert result is not None  # only a signal stops a run early, and from Python it interrupts instead
    return result


def train_run(
    settings: TrainSettings, given: Mapping[str, str], voice: Voice, callbacks: Sequence[Callback] = ()
) -> Result | None:
    """Train from the beginning.

    Args:
        settings: what was given; None where nothing was.
        given: origin of each setting that was given.
        voice: prints and shows progress.
        callbacks: more Lightning callbacks.

    Returns:
        The result, or None if the run was stopped before its end.
    """
    check_names(settings)
    check_ranges(settings)
    _check_output(settings)
    if Path(settings.data).exists():  # so that the run can be resumed and judged from anywhere
        settings = replace(settings, data=str(Path(settings.data).resolve()))
    assembled = assemble(settings, given, voice)
    output = None if assembled.settings.output is None else Path(assembled.settings.output)
    run = create_run(output, overwrite=assembled.settings.overwrite)
    _write_beginning(run, assembled)
    return _go(run, assembled, voice, callbacks)


def resume_run(path: str | Path, voice: Voice, callbacks: Sequence[Callback] = ()) -> Result | None:
    """Go on with a run that was stopped, from its newest saved state.

    Raises:
        UserError: there is no such run, it is finished, or its data has changed.
    """
    run = open_run(path)
    if (run.path / "summary.json").exists():
        raise UserError(f"the run {str(run.path)!r} is finished; start another with 'paucal train'.")
    config = run.read_yaml(run.config.name)
    try:
        settings, origin = TrainSettings(**config["settings"]), config["origin"]
    except (KeyError, TypeError) as problem:
        raise UserError(f"{str(run.config)!r} is not of this version of paucal ({problem}); train anew.") from problem
    assembled = assemble(settings, origin, voice, split_file=run.split)
    return _go(run, replace(assembled, origin=origin), voice, callbacks)


def assemble(
    settings: TrainSettings, given: Mapping[str, str], voice: Voice, split_file: Path | None = None
) -> Assembled:
    """Open the data, choose what was left open, build the objective; write nothing."""
    with voice.progress("reading images") as advance:
        images = load_images(settings, advance)
    prepared = prepare(settings, images) if split_file is None else Prepared(images, read_split(split_file, images))
    facts = prepared.facts()
    settings, reasons = resolve(settings, facts)
    plan = training_plan(settings, facts)
    remarks = [*images.notes, *check_plan(settings, facts)]
    # Weights drawn here must not depend on what was drawn before, nor disturb what is drawn after.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        spec, notes = backbone_spec(settings, len(images.classes))
        objective = build_objective(settings, spec)
    statistics = normalisation(settings, prepared)
    card = Card(spec, images.classes, preprocessing(settings, statistics))
    for crops in objective.data_request.views:
        view_transform(crops, card.preprocessing, settings, tracked=False)  # raises if the settings do not fit
    origin = origins(settings, given, reasons)
    assembled = Assembled(settings, origin, prepared, plan, objective, card, (*remarks, *notes))
    voice.announce(assembled)
    return assembled


def _check_output(settings: TrainSettings) -> None:
    """Refuse an existing run folder before any work is done, and replace it only after all of it."""
    if settings.output is None or settings.overwrite:
        return
    path = Path(settings.output)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        create_run(path)  # raises, with the advice that belongs to it


def _write_beginning(run: RunFolder, assembled: Assembled) -> None:
    settings = asdict(assembled.settings)
    run.write_yaml(run.config.name, {"settings": settings, "origin": dict(assembled.origin)})
    run.write_json("env.json", describe_environment(assembled.settings.device or "cpu"))
    write_split(run.split, assembled.prepared.images, assembled.prepared.split)
    sheet = training_sheet(assembled.prepared, assembled.card, assembled.settings, assembled.plan)
    write_atomically(run.plots / "train_batch.png", lambda file: sheet.save(file, "PNG"))


def _go(run: RunFolder, assembled: Assembled, voice: Voice, callbacks: Sequence[Callback]) -> Result | None:
    with voice.logging_to(run.log):
        outcome = _fit(run, assembled, voice, callbacks)
        if outcome.finished:
            return conclude(run, assembled, outcome, voice)
        voice.say(f"stopped after {len(outcome.rows)} epochs. Go on with: paucal train --resume {run.path}")
        return None


def _fit(run: RunFolder, assembled: Assembled, voice: Voice, callbacks: Sequence[Callback]) -> Outcome:
    settings, prepared, plan = assembled.settings, assembled.prepared, assembled.plan
    start = checkpoint_position(run.last)[1] if run.last.exists() else 0
    preprocess = assembled.card.preprocessing
    request = assembled.objective.data_request
    watch = Watch(validation(prepared, preprocess, settings), score="val_top1", loss="val_loss")
    return fit(
        assembled.objective,
        lambda: train_loader(prepared, preprocess, settings, plan, request, start),
        optimization(settings, plan),
        plan,
        Records(run, saver(run, assembled.card), watch, voice.on_epoch),
        [*voice.callbacks(), *callbacks],
    )
