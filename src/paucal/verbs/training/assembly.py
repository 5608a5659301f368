"""A supervised run put together from its settings and its images."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from paucal.backbones.spec import BackboneSpec
from paucal.data.views.normalisation import Normalisation
from paucal.evaluation.deployed import Card
from paucal.methods.contract import Circumstances
from paucal.methods.fine_tuning import check_tuning
from paucal.methods.training import build_objective, resolve_training, settle_terms
from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Objective
from paucal.rules.backbone import backbone_spec
from paucal.rules.resolve import origins
from paucal.runs import RunFolder
from paucal.types import DataRequest, UserError
from paucal.verbs.run.assembled import Assembled
from paucal.verbs.run.images import Prepared, load_images, with_label_maps
from paucal.verbs.run.job import Bars
from paucal.verbs.run.resuming import stored_split
from paucal.verbs.run.room import check_room, enough_memory
from paucal.verbs.run.seen import seen_by_start
from paucal.verbs.run.start_weights import find_start, load_start
from paucal.verbs.run.trainer_inputs import check_rates
from paucal.verbs.training.batch import fit_batch
from paucal.verbs.training.loaders import feeding, view_transform
from paucal.verbs.training.optimizer import check_plan, training_plan
from paucal.verbs.training.split import split_images


@dataclass(frozen=True)
class AssembledTraining(Assembled[TrainSettings]):
    """Everything a supervised run needs, checked, with nothing written yet."""


def assemble(
    settings: TrainSettings, given: Mapping[str, str], bars: Bars, run: RunFolder | None = None
) -> AssembledTraining:
    """Open the data, choose what was left open, build the objective; write nothing.

    Args:
        settings: what was given or stored.
        given: the origin of each setting that was given.
        bars: shows a bar for countable work.
        run: the run that goes on, with the split to use; None for a new one.

    Raises:
        UserError: the data or a setting does not do.
    """
    start = find_start(settings, run)
    prepared = _open(settings, bars, run)
    images, facts = prepared.images, replace(prepared.facts(), start=start.facts)
    fit_memory = settings.batch_size == "auto"
    settings, reasons = resolve_training(settings, facts)
    if run is None:
        check_rates(settings)
    objective, spec, notes = _build(settings, len(images.classes))
    if objective.data_request.label_maps:
        with bars("looking at label maps") as advance:
            prepared = with_label_maps(prepared, settings.labels, settings.method, advance)
    fed = feeding(settings, prepared, start.input and start.input(settings.model or ""), run)
    held_out = frozenset(images.keys[i] for part in ("val", "test") for i in prepared.part(part))
    settle_terms(settings, objective, Circumstances(held_out, Normalisation(fed.mean, fed.std)))
    card = Card(spec, images.classes, fed)
    if fit_memory:
        settings, reasons["batch_size"] = fit_batch(settings, prepared, objective, card)
        given = {name: origin for name, origin in given.items() if name not in ("batch_size", "accumulate")}
    loaded = load_start(start, settings.model, objective, images.classes, settings.init_head)
    remarks = [
        *images.notes,
        *check_plan(settings, facts.n_train),
        *(loaded.lines() if loaded else ()),
        *seen_by_start(settings.init, images, prepared.split),
        *check_tuning(settings, objective),
        *notes,
    ]
    _check_request(objective.data_request, settings, card)
    plan = training_plan(settings, facts.n_train, facts.n_classes)
    origin = origins(settings, given, reasons)
    return AssembledTraining(settings, origin, prepared, plan, objective, card, tuple(remarks), loaded)


def _open(settings: TrainSettings, bars: Bars, run: RunFolder | None) -> Prepared:
    with bars("reading images") as advance:
        images = load_images(settings, advance)
    return split_images(settings, images) if run is None else Prepared(images, stored_split(run, images))


def _build(settings: TrainSettings, n_classes: int) -> tuple[Objective, BackboneSpec, list[str]]:
    # Weights drawn here must not depend on what was drawn before, nor disturb what is drawn after.
    with torch.random.fork_rng(devices=[]), enough_memory():
        torch.manual_seed(settings.seed)
        spec, notes = backbone_spec(settings, n_classes)
        notes = [*check_room(settings, spec), *notes]
        return build_objective(settings, spec), spec, notes


def _check_request(request: DataRequest, settings: TrainSettings, card: Card) -> None:
    """Refuse settings with which an objective cannot get what it needs of the data.

    Raises:
        UserError: the batch is too small, or the views cannot be made.
    """
    if settings.images_per_pass < request.smallest_batch:
        raise UserError(
            f"--batch-size is {settings.images_per_pass}, and --method {settings.method} needs at least "
            f"{request.smallest_batch} images in a forward pass."
        )
    for crops in request.views:
        view_transform(crops, card.preprocessing, settings, request.geometry)
