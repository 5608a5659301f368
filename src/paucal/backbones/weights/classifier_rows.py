"""Which rows of a source's classifier belong to a model's classes."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from paucal.backbones.weights.load_report import some
from paucal.types import UserError
from paucal.wording import counted

Kept = tuple[dict[str, Tensor], str]


def keep_classifier(
    given: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    theirs: Sequence[str] | None,
    ours: Sequence[str] | None,
    head: Literal["auto", "keep", "fresh"],
) -> Kept:
    """Choose the tensors of a classifier to load, rows in the order of the model's classes.

    Args:
        given: the source's classifier, by the model's names.
        shapes: of the model's classifier.
        theirs: names of the source's classes, where known.
        ours: names of the model's classes, where known.
        head: "auto", or what the user insists on.

    Returns:
        The tensors to load, none for a fresh classifier, and the verdict for people.

    Raises:
        UserError: the classifier shall be kept and does not fit.
    """
    if not shapes:
        return {}, "none"
    if head == "fresh":
        return {}, "fresh, as asked"
    kept, verdict = _match(given, shapes, theirs, ours)
    if head == "keep" and not kept:
        raise UserError(f"--init-head keep: the classifier must be {verdict}; leave the option out.")
    return kept, verdict


def _match(
    given: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    theirs: Sequence[str] | None,
    ours: Sequence[str] | None,
) -> Kept:
    if set(given) != set(shapes):
        return {}, "fresh, as the start has none"
    counts = {value.shape[0] if value.ndim and value.is_floating_point() else 0 for value in given.values()}
    wanted, found = next(iter(shapes.values()))[0], max(counts)
    if theirs is not None and ours is not None and len(theirs) == found:
        if unknown := [name for name in ours if name not in set(theirs)]:
            return {}, f"fresh, as the start does not know {some(unknown)}"
        rows, verdict = [theirs.index(name) for name in ours], f"kept, {wanted} of {found} classes found by name"
    elif found == wanted:
        rows, verdict = list(range(wanted)), "kept, as the start and this run have as many classes, unnamed there"
    else:
        return {}, f"fresh, as the start has {counted(found, 'class', 'classes')} and this run {wanted}"
    if len(counts) > 1 or any(value[:wanted].shape != shapes[name] for name, value in given.items()):
        return {}, "fresh, as the start's has another shape"
    return {name: value[torch.tensor(rows)] for name, value in given.items()}, verdict
