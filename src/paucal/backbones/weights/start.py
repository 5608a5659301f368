"""Initialise a model with weights trained elsewhere, and report what was loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paucal.backbones.empty_models import build_empty
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layers import classifier_modules, is_inside
from paucal.backbones.layout import Size
from paucal.backbones.probe import model_name
from paucal.backbones.weights.adapt import FittedTensors, fit_to_model, is_computed, keep_classifier
from paucal.backbones.weights.checkpoints import Candidate, Program, candidates, models_of, recognise
from paucal.backbones.weights.load_report import LoadReport, rounded_down
from paucal.types import UserError

# Below this share of the parameters, most of a "pre-trained" model would be random without the user noticing.
MIN_SHARE = 0.5
COMPLETE = 0.999
Head = Literal["auto", "keep", "fresh"]


@dataclass(frozen=True)
class StartWeights:
    """Weights from elsewhere, and the known facts about them.

    Attributes:
        tree: Tensors by name, or mappings of them (checkpoints wrap their weights in "state_dict", "teacher", ...).
        source: Origin of the weights, as text.
        model: timm name of their model; None where unknown.
        classes: Names of their classifier's outputs; None where unknown.
        grid: (rows, columns) of their position embedding; None where unknown, which assumes a square.
    """

    tree: Mapping[str, Any]
    source: str
    model: str | None = None
    classes: tuple[str, ...] | None = None
    grid: Size | None = None


def start_from(
    model: nn.Module, weights: StartWeights, classes: Sequence[str] | None = None, head: Head = "auto"
) -> LoadReport:
    """Load weights into a model in place, adapted where their sizes differ.

    Position embeddings, relative-position tables, patch kernels and the first layer's input channels are resampled with
    timm's functions. The classifier is kept if the source has all of the model's classes by name, or the same number of
    unnamed classes; else it stays fresh. (The published DrLoc code skips every tensor with "head" in its name and
    checks no shapes.)

    Args:
        model: A timm model, or the `FeatureBackbone` around one, built with fresh weights.
        weights: Weights to load.
        classes: Names of the model's outputs, where known.
        head: "keep" insists on the classifier, "fresh" discards it.

    Returns:
        A report of the tensors that were loaded, adapted, left fresh and unused.

    Example:
        >>> import timm
        >>> source, target = timm.create_model("resnet18", num_classes=9), timm.create_model("resnet18", num_classes=4)
        >>> report = start_from(target, StartWeights({"model": source.state_dict()}, "an example"))
        >>> report.share, report.classifier
        (1.0, 'fresh, since the loaded weights have 9 classes and this run 4')
    """
    model = model.model if isinstance(model, FeatureBackbone) else model
    best = _best_fit(model, weights)
    fitted = best.fitted
    if best.share < MIN_SHARE:
        raise UserError(_too_little_message(model, weights, best))
    classifier_names = classifier_modules(model)
    _require_shapes(model, weights.source, best, classifier_names)
    from_classifier = _take_classifier(fitted, classifier_names)
    model_state = model.state_dict()
    shapes = {name: value.shape for name, value in model_state.items() if is_inside(name, classifier_names)}
    kept_classifier, verdict = keep_classifier(from_classifier, shapes, weights.classes, classes, head)  # type: ignore[arg-type]
    state = {**fitted.state, **kept_classifier}
    _require_finite(state, weights.source)
    model.load_state_dict(state, strict=False)
    return LoadReport(
        weights.source,
        best.part,
        best.share,
        verdict,
        loaded=tuple(name for name in state if name not in fitted.changes),
        adapted={name: change for name, change in fitted.changes.items() if name in state},
        fresh=tuple(name for name in model_state if name not in state and name not in shapes and not _is_count(name)),
        unused=tuple([*fitted.unused, *fitted.mismatched]),
        program=best.program.name if best.program else "",
        method=tuple(best.method),
    )


def take_whole(model: nn.Module, weights: StartWeights) -> tuple[dict[str, Tensor], LoadReport]:
    """Return all tensors of a model from a file, under the model's names, with the file's own classifier.

    Args:
        model: A timm model; it may be on the meta device.
        weights: Weights of exactly this model.

    Returns:
        The tensors, and a report of what was adapted and left out.
    """
    best = _best_fit(model, weights)
    classifier_names, fitted = classifier_modules(model), best.fitted
    classifier = _take_classifier(fitted, classifier_names)
    needed_names = [
        name for name in model.state_dict() if not is_inside(name, classifier_names) and not _is_count(name)
    ]
    missing = [name for name in needed_names if name not in fitted.state and not is_computed(name)]
    if missing:
        raise UserError(
            f"{weights.source} does not hold the weights of {model_name(model)}: {len(missing)} of its "
            f"{len(needed_names)} tensors are missing or have another shape (such as {missing[0]!r}); give the --model "
            "that the weights belong to."
        )
    state = {**fitted.state, **classifier}
    _require_finite(state, weights.source, "")
    verdict = "kept" if classifier else "none"
    unused = tuple([*fitted.unused, *fitted.mismatched])
    adapted = {name: change for name, change in fitted.changes.items() if name in state}
    program = best.program.name if best.program else ""
    return state, LoadReport(
        weights.source, best.part, best.share, verdict, tuple(state), adapted, (), unused, program, tuple(best.method)
    )


def suggest_model(tree: Mapping[str, Any]) -> str | None:
    """Return the registered model that a published checkpoint's weights belong to; None if it cannot be found.

    The tensors' names identify the program, their shapes the variant.
    """
    for candidate in candidates(tree, ()):
        program = recognise(candidate.state)
        fits: dict[str, int] = {}
        for name in models_of(program) if program is not None else ():
            fit = _fit_part(build_empty(name, {}), candidate, None)
            if fit.share < COMPLETE:
                continue
            # A smaller variant would use some tensors of a larger one and leave the rest.
            fits[name] = len(fit.fitted.changes) + len(fit.fitted.unused)
            if not fits[name]:
                break
        if fits:
            return min(fits, key=fits.__getitem__)
    return None


def pick_network(tree: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    """Return the part of a checkpoint that is stored under a name, such as "teacher" or "student"."""
    part = tree.get(name)
    if not isinstance(part, Mapping):
        names = ", ".join(key for key, value in tree.items() if isinstance(value, Mapping))
        raise UserError(f"--init-network: {source} holds no {name!r}; it holds {names or 'one network, unnamed'}.")
    return {name: part}


@dataclass(frozen=True)
class Fit:
    """How well a part of a file fits a model.

    Attributes:
        part: Place inside the file.
        fitted: Its tensors, sorted by what the model can do with them.
        share: Share of the elements of the model's parameters that it provides, without the classifier.
        program: Program that wrote it, if its names tell.
        method: Names of tensors that belong to that program's training method.
    """

    part: str = ""
    fitted: FittedTensors = field(default_factory=FittedTensors)
    share: float = 0.0
    program: Program | None = None
    method: Sequence[str] = ()


def _best_fit(model: nn.Module, weights: StartWeights) -> Fit:
    best = Fit()
    for candidate in candidates(weights.tree, model.state_dict().keys()):
        fit = _fit_part(model, candidate, weights.grid)
        if fit.share > best.share or (not best.share and len(fit.fitted.mismatched) > len(best.fitted.mismatched)):
            best = fit
        if fit.share >= COMPLETE:
            break
    return best


def _fit_part(model: nn.Module, part: Candidate, grid: Size | None) -> Fit:
    program, state, method = recognise(part.state), part.state, []
    if program is not None:
        state, method = program.without_method(state)
        state = program.rename(state)
    fitted = fit_to_model(model, state, grid)
    return Fit(part.part, fitted, _loaded_share(model, fitted), program, method)


def _loaded_share(model: nn.Module, fitted: FittedTensors) -> float:
    classifier_names = classifier_modules(model)
    sizes = {name: p.numel() for name, p in model.named_parameters() if not is_inside(name, classifier_names)}
    return sum(size for name, size in sizes.items() if name in fitted.state) / max(sum(sizes.values()), 1)


def _too_little_message(model: nn.Module, weights: StartWeights, best: Fit) -> str:
    name, model_state, fitted = model_name(model), model.state_dict(), best.fitted
    loaded_text = f"{len(fitted.state)} of the {len(model_state)} tensors of {name} in the right shape"
    if weights.model is not None and weights.model != name:
        reason = f"it holds a {weights.model}, so choose --model {weights.model}"
    elif fitted.mismatched:
        misfit, value = next(iter(fitted.mismatched.items()))
        in_file, in_model = _describe_difference(value, model_state[misfit])
        example = f"for example, {misfit!r} is {in_file} in the file and {in_model} in the model"
        reason = f"{example}, so choose the --model and --model-args that the weights belong to"
        if value.shape == model_state[misfit].shape:
            reason = f"{example}: convert the weights to floats"
    else:
        in_file, in_model = next(iter(_names_in_file(weights.tree)), "nothing"), next(iter(model_state))
        reason = f"its tensors have names such as {in_file!r}, the model's such as {in_model!r}; choose the --model "
        reason += "that the weights belong to"
    return f"--init: {weights.source} has only {loaded_text} ({rounded_down(best.share)} of the parameters): {reason}."


def _take_classifier(fitted: FittedTensors, classifier_names: Sequence[str]) -> dict[str, Tensor]:
    """Remove the classifier's tensors from the matched and the mismatched tensors, and return them."""
    names = [name for name in (*fitted.state, *fitted.mismatched) if is_inside(name, classifier_names)]
    return {name: (fitted.state if name in fitted.state else fitted.mismatched).pop(name) for name in names}


def _require_shapes(model: nn.Module, source: str, best: Fit, classifier_names: Sequence[str]) -> None:
    """Refuse a published checkpoint that fits only in part: it belongs to another variant."""
    mismatched = [name for name in best.fitted.mismatched if not is_inside(name, classifier_names)]
    if best.program is None or not mismatched:
        return
    misfit, parameter = best.fitted.mismatched[mismatched[0]], model.state_dict()[mismatched[0]]
    in_file, in_model = _describe_difference(misfit, parameter)
    noun, advice = ("shapes", "choose the --model and --model-args that the weights belong to")
    if misfit.shape == parameter.shape:
        noun, advice = ("types", "convert the weights to floats")
    raise UserError(
        f"--init: {source} holds weights as {best.program.name} writes them, but {len(mismatched)} of its tensors have "
        f"other {noun} than in {model_name(model)}: for example, {mismatched[0]!r} is {in_file} in the file and "
        f"{in_model} in the model; {advice}."
    )


def _names_in_file(tree: Mapping[str, Any]) -> list[str]:
    """Return the names in the largest mapping of a file."""
    inner = [_names_in_file(value) for value in tree.values() if isinstance(value, Mapping)]
    return max([[name for name, value in tree.items() if isinstance(value, Tensor)], *inner], key=len)


def _describe_difference(in_file: Tensor, in_model: Tensor) -> tuple[str, str]:
    """Return the difference between two tensors as text: their shapes, or else their types."""
    if in_file.shape != in_model.shape:
        texts = ["x".join(map(str, tensor.shape)) or "a number" for tensor in (in_file, in_model)]
    else:
        texts = [str(tensor.dtype).removeprefix("torch.") for tensor in (in_file, in_model)]
    return texts[0], texts[1]


def _require_finite(state: Mapping[str, Tensor], source: str, setting: str = "--init: ") -> None:
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UserError(
                f"{setting}{source} has values in {name!r} that are not finite numbers: choose another checkpoint."
            )


def _is_count(name: str) -> bool:
    return name.endswith("num_batches_tracked")  # a counter that nothing reads
