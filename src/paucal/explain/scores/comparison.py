"""Methods of attribution side by side, by numbers, on a set of images."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from paucal.explain.attribution.methods import RANDOM, attribute, methods_of, random_maps
from paucal.explain.prepared import explainable, run
from paucal.explain.scores.perturbation import CELLS, STEPS, area, perturbation_curve
from paucal.explain.scores.pointing import paste_objects, pointing_hits

ERROR = 1.96  # standard errors on either side that make 95 %


@dataclass(frozen=True)
class MethodScore:
    """What a method scores over a set of images; all from 0 to 1.

    Attributes:
        deletion: mean area under the probability while important cells go first; lower is better.
        insertion: the same while they come first; higher is better.
        faithfulness: insertion - deletion, higher is better.
        faithfulness_error: half the width of its 95 % interval over images.
        pointing: share of pasted objects that the highest cell hits; a quarter by chance.
        mass: mean share of a map that lies on the object; a quarter by chance.
        images: how many.
        pasted: in how many of them another class could be pasted.
    """

    deletion: float
    insertion: float
    faithfulness: float
    faithfulness_error: float
    pointing: float
    mass: float
    images: int
    pasted: int


def score_methods(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    methods: Sequence[str] | None = None,
    seed: int = 0,
    steps: int = STEPS,
    progress: Callable[[int], None] | None = None,
) -> dict[str, MethodScore]:
    """Score methods on images: deletion and insertion for the class the model answers, pointing for a pasted class.

    Args:
        model: a classifier.
        batches: (images (B, C, H, W) normalised, labels (B,)), several classes in each: partners for pasting are taken
            from the same batch.
        methods: keys of `METHODS`, by default all that the model has what they need for; a random map is added.
        seed: of random maps and of what is pasted where.
        steps: of deletion and insertion.
        progress: called with the number of images done.

    Raises:
        UserError: the model lacks what a method needs, or its extra is not installed.
    """
    names = [*(methods_of(model) if methods is None else methods), RANDOM]
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    done = 0
    for images, labels in batches:
        generator = torch.Generator().manual_seed(seed + done)
        with explainable(model) as module, torch.no_grad():
            answers = run(module, images).argmax(1)
        pasted = paste_objects(images, labels, generator)
        for name in names:
            rows[name].append(_scores_of(model, name, images, answers, pasted, seed + done, steps))
        done += len(images)
        if progress is not None:
            progress(done)
    return {name: _summary(torch.cat(found, 1)) for name, found in rows.items()}


def _scores_of(model: nn.Module, name: str, images: Tensor, answers: Tensor, pasted, seed: int, steps: int) -> Tensor:
    """Return (4, B): deletion, insertion, hit, mass; no number where nothing could be pasted."""
    maps = _maps(model, name, images, answers, seed)
    deletion = area(perturbation_curve(model, images, maps, answers, steps=steps))
    insertion = area(perturbation_curve(model, images, maps, answers, insert=True, steps=steps))
    points = torch.full((2, len(images)), torch.nan)
    if len(pasted.images):
        found = _maps(model, name, pasted.images, pasted.classes, seed + 1)
        size = (images.shape[2], images.shape[3])
        points[:, : len(found)] = torch.stack(pointing_hits(found, pasted.boxes, size)).cpu()
    return torch.cat((torch.stack((deletion, insertion)).cpu(), points))


def _maps(model: nn.Module, name: str, images: Tensor, classes: Tensor, seed: int) -> Tensor:
    if name == RANDOM:
        return random_maps(len(images), (CELLS, CELLS), seed).to(images.device)
    return attribute(model, images, classes, name)


def _summary(rows: Tensor) -> MethodScore:
    deletion, insertion, hit, mass = rows.double()
    gain = insertion - deletion
    error = ERROR * float(gain.std()) / max(1, len(gain)) ** 0.5 if len(gain) > 1 else 0.0
    values = (deletion.mean(), insertion.mean(), gain.mean(), error, hit.nanmean(), mass.nanmean())
    pasted = int(hit.isfinite().sum())
    return MethodScore(*(float(value) for value in values), images=len(gain), pasted=pasted)


def as_rows(scores: dict[str, MethodScore]) -> list[dict[str, float | str]]:
    """Return the scores as rows of a table, the most faithful first."""
    ordered = sorted(scores.items(), key=lambda item: -item[1].faithfulness)
    return [{"method": name, **{f.name: getattr(one, f.name) for f in fields(one)}} for name, one in ordered]
