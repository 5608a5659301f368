"""Everything a run needs, put together from its settings and its data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from paucal.backbones.load_report import LoadReport
from paucal.evaluation.deployed import Card
from paucal.objectives import Objective
from paucal.recipes.auto import origins, resolve
from paucal.recipes.facts import Facts
from paucal.recipes.guiding import settle_guide
from paucal.recipes.loaders import normalisation, preprocessing, train_loader, view_transform
from paucal.recipes.methods import build_objective
from paucal.recipes.model import backbone_spec
from paucal.recipes.plans import check_plan, training_plan
from paucal.recipes.prepare import Prepared, load_images, prepare, with_label_maps
from paucal.recipes.resuming import stored_split
from paucal.recipes.settings import TrainSettings
from paucal.recipes.starting import find_start, load_start, seen_by_start
from paucal.recipes.tuning import check_tuning
from paucal.recipes.voice import Voice
from paucal.runs import RunFolder
from paucal.training import Plan, largest_batch
from paucal.types import Batch, DataRequest, UserError


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
    start: LoadReport | None = None


def assemble(
    settings: TrainSettings, given: Mapping[str, str], voice: Voice, run: RunFolder | None = None
) -> Assembled:
    """Open the data, choose what was left open, build the objective; write nothing.

    Args:
        settings: what was given or stored.
        given: the origin of each setting that was given.
        voice: says what will be trained.
        run: the run that goes on, with the split to use; None for a new one.

    Raises:
        UserError: the data or a setting does not do.
    """
    start = find_start(settings, run)
    with voice.progress("reading images") as advance:
        images = load_images(settings, advance)
    prepared = prepare(settings, images) if run is None else Prepared(images, stored_split(run, images))
    facts = replace(prepared.facts(), start=start.facts)
    fit_memory = settings.batch_size == "auto"
    settings, reasons = resolve(settings, facts)
    # Weights drawn here must not depend on what was drawn before, nor disturb what is drawn after.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        spec, notes = backbone_spec(settings, len(images.classes))
        objective = build_objective(settings, spec)
    if objective.data_request.label_maps:
        with voice.progress("looking at label maps") as advance:
            prepared = with_label_maps(prepared, settings, advance)
    statistics = normalisation(settings, prepared)
    settle_guide(settings, objective.modules(), prepared, statistics)
    card = Card(spec, images.classes, preprocessing(settings, statistics))
    if fit_memory:
        settings, reasons["batch_size"] = fit_batch(settings, facts, prepared, objective, card)
    plan = training_plan(settings, facts)
    loaded = load_start(start, settings, objective, images.classes)
    remarks = [
        *images.notes,
        *check_plan(settings, facts),
        *(loaded.lines() if loaded else ()),
        *seen_by_start(settings, images, prepared.split),
        *check_tuning(settings, objective),
    ]
    check_request(objective.data_request, settings)
    for crops in objective.data_request.views:
        view_transform(
            crops, card.preprocessing, settings, objective.data_request.geometry
        )  # raises if the settings do not fit
    if fit_memory:
        given = {name: origin for name, origin in given.items() if name not in ("batch_size", "accumulate")}
    origin = origins(settings, given, reasons)
    assembled = Assembled(settings, origin, prepared, plan, objective, card, (*remarks, *notes), loaded)
    voice.announce(assembled)
    return assembled


def check_request(request: DataRequest, settings: TrainSettings) -> None:
    """Refuse settings with which an objective cannot get what it needs of the data.

    Raises:
        UserError: the batch is too small, or label maps are given to a method that has no use for them.
    """
    if settings.images_per_pass < request.smallest_batch:
        raise UserError(
            f"--batch-size is {settings.images_per_pass}, and --method {settings.method} needs at least "
            f"{request.smallest_batch} images in a forward pass."
        )
    if settings.labels is not None and not request.label_maps:
        raise UserError(f"--labels: --method {settings.method} uses no label maps; give --method token-labeling.")


def fit_batch(
    settings: TrainSettings, facts: Facts, prepared: Prepared, objective: Objective, card: Card
) -> tuple[TrainSettings, str]:
    """Halve the batch, and double the accumulation, until a training step fits in the device's memory.

    Returns:
        The settings, with the same effective batch, and the reason.

    Raises:
        UserError: not even one image fits, or the devices keep pieces of the model.
    """
    usual = settings.images_per_pass
    if settings.device != "cuda":
        return settings, "what suits the data; only a GPU's memory is tried"
    if settings.strategy == "fsdp":
        raise UserError(
            "--batch-size auto tries steps with the whole model on one device, which --strategy fsdp is there to "
            "avoid: give --batch-size as a number."
        )
    plan, request = training_plan(settings, facts), objective.data_request

    def make(size: int) -> Batch:
        alone = replace(settings, batch_size=size, workers=0)
        return next(iter(train_loader(prepared, card.preprocessing, alone, plan, request, 0)))  # type: ignore[return-value]

    sizes = [usual // 2**n for n in range(usual.bit_length()) if usual % 2**n == 0]
    size = largest_batch(objective, make, sizes, torch.device("cuda"), settings.precision or "32-true")
    accumulate = settings.accumulate * (usual // size)
    if size == usual:
        return settings, "what suits the data fits in the memory"
    reason = f"the largest that fits in the memory; with {accumulate} passes a step the effective batch stays the same"
    return replace(settings, batch_size=size, accumulate=accumulate), reason
