"""One pre-training run from settings to report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from paucal.data.crop_sheet import crop_sheet
from paucal.data.dataset import ViewDataset
from paucal.data.loader import TrainLoader
from paucal.data.normalisation import Normalisation
from paucal.data.split_file import write_split
from paucal.evaluation.deployed import saver
from paucal.losses.collectives import world_size
from paucal.recipes.checks import check_ranges
from paucal.recipes.launch import Stopped, check_output, settings_as_yaml
from paucal.recipes.loaders import step_loader
from paucal.recipes.prepare import pin_data
from paucal.recipes.pretraining.assembly import AssembledPretraining, assemble, optimization, views
from paucal.recipes.pretraining.finish import PretrainResult, conclude
from paucal.recipes.pretraining.published import with_recipe
from paucal.recipes.pretraining.settings import PretrainSettings
from paucal.recipes.pretraining.stages import add_tasks, lacks_tasks
from paucal.recipes.pretraining.watching import Watching
from paucal.recipes.processes import (
    announce,
    announced,
    forget_children,
    is_first,
    lead_children_to,
    meet,
)
from paucal.recipes.resuming import reopen, store_changes, stored_settings
from paucal.recipes.settings import TrainSettings
from paucal.recipes.starting import RECORD, pin_start
from paucal.recipes.voice import Mute, Quiet, Voice
from paucal.runs import RunFolder, create_run, describe_environment, write_atomically
from paucal.training import Outcome, Records, checkpoint_position, fit
from paucal.types import UserError

VERB = "pretrain"


def pretrain(data: str | Path = "digits", **settings: Any) -> PretrainResult:
    """Pre-train a backbone without labels; the same as `paucal pretrain`.

    Args:
        data: "digits" (the built-in images), a folder of images of any depth, Parquet, or the name of a published set.
        **settings: any field of `paucal.recipes.pretraining.settings.PretrainSettings`; what is left out is chosen
            from the images.

    Returns:
        The run folder, whose model is the teacher's backbone, and what the run has shown of itself.

    Raises:
        UserError: the images or a setting do not do, the networks collapsed with `on_collapse="stop"`, or the run was
            stopped; the message says what to do.
        TypeError: a setting does not exist.

    Example:
        >>> result = paucal.pretrain("unlabelled/", model="vit_mini", epochs=50)  # doctest: +SKIP
        >>> paucal.train("photos/", init=str(result.run))  # doctest: +SKIP
    """
    unknown = set(settings) - {f.name for f in fields(PretrainSettings)}
    if unknown:
        raise TypeError(f"paucal.pretrain has no setting {sorted(unknown)[0]!r}; see PretrainSettings for all of them")
    given = dict.fromkeys([*settings, "data"], "given")
    result = pretrain_run(PretrainSettings(**{**settings, "data": str(data)}), given, Quiet())
    if isinstance(result, Stopped):
        raise UserError(f"{result}.")
    return result


def pretrain_run(
    settings: PretrainSettings, given: Mapping[str, str], voice: Voice, callbacks: Sequence[Callback] = ()
) -> PretrainResult | Stopped:
    """Pre-train from the beginning; arguments as for `recipes.launch.train_run`."""
    meet()
    if not is_first():
        return _follow(voice=Mute(), callbacks=callbacks)
    made: list[AssembledPretraining] = []

    def make() -> Path:
        made.append(_check_and_assemble(settings, given, voice))
        _announce(voice, made[0])
        chosen = made[0].settings
        run = create_run(None if chosen.output is None else Path(chosen.output), overwrite=chosen.overwrite)
        _write_beginning(run, made[0])
        return run.path

    run = RunFolder(announce(make))
    return _go(run, made[0], voice, callbacks)


def resume_pretraining(
    path: str | Path, voice: Voice, changes: Mapping[str, Any] | None = None, callbacks: Sequence[Callback] = ()
) -> PretrainResult | Stopped:
    """Go on with a run that was stopped; arguments and errors as for `recipes.launch.resume_run`."""
    meet()
    if not is_first():
        return _follow(voice=Mute(), callbacks=callbacks)
    made: list[AssembledPretraining] = []

    def make() -> Path:
        run, settings, origin = reopen(path, changes or {}, PretrainSettings)
        made.append(_again(run, settings, origin, voice))
        _announce(voice, made[0])
        if changes:  # only now: a change that does not do must not spoil the run
            store_changes(run, settings, origin)
        return run.path

    return _go(RunFolder(announce(make)), made[0], voice, callbacks)


def show_config(settings: PretrainSettings, given: Mapping[str, str]) -> str:
    """Return all settings as YAML that `--config` reads, each with its reason; nothing is trained or written."""
    assembled = _check_and_assemble(replace(settings, output=None), given, Quiet())
    return settings_as_yaml(assembled.settings, assembled.origin)


def _follow(voice: Voice, callbacks: Sequence[Callback]) -> PretrainResult | Stopped:
    run = RunFolder(announced())
    settings, origin = stored_settings(run, PretrainSettings)
    return _go(run, _again(run, settings, origin, voice), voice, callbacks)


def _again(run: RunFolder, settings: PretrainSettings, origin: Mapping[str, str], voice: Voice) -> AssembledPretraining:
    """Assemble a run that exists for the stage it has reached."""
    assembled = replace(assemble(settings, origin, voice, run), origin=origin)
    if is_first() and lacks_tasks(run, assembled.objective):  # the others are told of the run only afterwards
        add_tasks(run, assembled.objective)
    return assembled


def _check_and_assemble(settings: PretrainSettings, given: Mapping[str, str], voice: Voice) -> AssembledPretraining:
    settings, given = with_recipe(settings, given)
    check_ranges(settings)
    check_output(settings.output, settings.overwrite)
    pinned = pin_start(pin_data(settings.as_training()))
    changes = {"data": pinned.data, "data_root": pinned.data_root, "init": pinned.init}
    if settings.monitor is not None:
        changes["monitor"] = pin_data(TrainSettings(data=settings.monitor, data_root=settings.data_root)).data
    settings = replace(settings, **changes)
    return assemble(settings, given, voice)


def _announce(voice: Voice, assembled: AssembledPretraining) -> None:
    images, split = assembled.prepared.images, assembled.prepared.split
    voice.say(f"images: {images.name}, {len(assembled.prepared.part('train'))} to learn from ({split.description})")
    voice.say(f"model: {assembled.describe()}")
    voice.show_settings(assembled.settings, assembled.origin, assembled.remarks)


def _write_beginning(run: RunFolder, assembled: AssembledPretraining) -> None:
    settings, split = assembled.settings, assembled.prepared.split
    config = {"settings": asdict(settings), "origin": dict(assembled.origin), "split": split.description, "verb": VERB}
    run.write_yaml(run.config.name, config)
    run.write_json("env.json", describe_environment(settings.device or "cpu"))
    if assembled.start is not None:
        run.write_json(RECORD, assembled.start.to_dict())
    write_split(run.split, assembled.prepared.images, split)
    alone = replace(assembled, settings=replace(settings, workers=0))
    picture = crop_sheet(next(iter(pretraining_loader(alone, 0))), _statistics(assembled))  # type: ignore[arg-type]
    write_atomically(run.plots / "train_batch.png", lambda file: picture.save(file, "PNG"))


def pretraining_loader(assembled: AssembledPretraining, start: int) -> TrainLoader:
    """Return the loader of the crops of this process, from a forward pass on."""
    settings, prepared = assembled.settings, assembled.prepared
    transforms = views(settings, _statistics(assembled))
    dataset = ViewDataset(prepared.images, transforms, settings.seed, labels=False)
    return step_loader(dataset, prepared, settings.as_training(), assembled.plan, start)


def _statistics(assembled: AssembledPretraining) -> Normalisation:
    return Normalisation(assembled.card.preprocessing.mean, assembled.card.preprocessing.std)


def _go(
    run: RunFolder, assembled: AssembledPretraining, voice: Voice, callbacks: Sequence[Callback]
) -> PretrainResult | Stopped:
    lead_children_to(run.path)
    try:
        with voice.logging_to(run.log):
            while True:
                watching = Watching(run, assembled, voice)
                watching.knn_start()
                outcome = _fit(run, assembled, voice, watching, callbacks)
                if outcome.finished:
                    return conclude(run, assembled, outcome, watching, voice)
                changes = watching.wants_a_change  # which only the first process knows
                if changes:
                    watching.prepare_next()
                if not changes or world_size() > 1:  # several processes have to be started anew
                    break
                settings, origin = stored_settings(run, PretrainSettings)
                assembled = _again(run, settings, origin, voice)
            stopped = Stopped(run.path, outcome.step, assembled.plan.total_steps, VERB)
            for line in [*watching.last_words(), str(stopped)]:
                voice.say(line)
            return stopped
    finally:
        forget_children()


def _fit(
    run: RunFolder, assembled: AssembledPretraining, voice: Voice, watching: Watching, callbacks: Sequence[Callback]
) -> Outcome:
    start = checkpoint_position(run.last)[1] if run.last.exists() else 0
    return fit(
        assembled.objective,
        lambda: pretraining_loader(assembled, start),
        optimization(assembled.settings, assembled.plan),
        assembled.plan,
        Records(run, saver(run, assembled.card), watching.watch(), watching.on_epoch),
        [*voice.callbacks(), *callbacks],
    )
