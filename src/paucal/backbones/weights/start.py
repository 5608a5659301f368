"""Initialises a model with pretrained weights, and reports what was loaded."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paucal.backbones.empty_models import build_empty
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layers import classifier_modules, is_inside
from paucal.backbones.layout import Size
from paucal.backbones.probe import model_name
from paucal.backbones.weights.adapt import (
    FittedTensors,
    choose_classifier_tensors,
    fit_to_model,
    is_computed_from_sizes,
)
from paucal.backbones.weights.checkpoints import Candidate, Program, find_candidates, possible_models, recognise_program
from paucal.backbones.weights.load_report import LoadReport, percent_rounded_down
from paucal.types import UserError

# Fractions of a model's parameters, by number of elements. If less than `MIN_LOADED_FRACTION` can be loaded, loading is
# refused, since most of the model would have random weights. If at least `COMPLETE_FRACTION` can be loaded, the weights
# count as weights of this model.
MIN_LOADED_FRACTION, COMPLETE_FRACTION = 0.5, 0.999
Head = Literal["auto", "keep", "fresh"]


@dataclass(frozen=True)
class StartWeights:
    """Initial weights for a model, with the model, the classes and the grid to which the weights belong."""

    tree: Mapping[str, Any]  # tensors by name, or nested mappings of tensors under keys such as "teacher"
    source: str  # origin of the weights, for messages
    model: str | None = None  # timm name of the model; None if unknown
    classes: tuple[str, ...] | None = None  # class names of the classifier; None if unknown
    grid: Size | None = None  # (rows, columns) of the position embedding; None if unknown (a square is assumed)


def start_from(
    model: nn.Module, weights: StartWeights, classes: Sequence[str] | None = None, head: Head = "auto"
) -> LoadReport:
    """Load initial weights into a model in place, and adapt tensors whose shapes differ.

    Position embeddings, relative-position tables, patch kernels and the input channels of the first layer are adapted
    with timm's functions. The classifier is loaded if the weights have all classes of the model, by name, or the same
    number of classes without names; otherwise, the model's classifier keeps its random weights. (The published DrLoc
    code ignores every tensor with "head" in its name and does not check shapes.) With the `head` "keep", a classifier
    that does not fit is an error; with "fresh", it is never loaded.
    """
    model = model.model if isinstance(model, FeatureBackbone) else model
    best = _best_fit(model, weights)
    fitted = best.fitted
    if best.share < MIN_LOADED_FRACTION:
        raise UserError(_too_few_weights_message(model, weights, best))
    classifier_names = classifier_modules(model)
    _require_shapes(model, weights.source, best, classifier_names)
    loaded_classifier = _take_classifier(fitted, classifier_names)
    model_state = model.state_dict()
    shapes = {name: value.shape for name, value in model_state.items() if is_inside(name, classifier_names)}
    kept_classifier, verdict = choose_classifier_tensors(loaded_classifier, shapes, weights.classes, classes, head)  # type: ignore[arg-type]
    state = {**fitted.state, **kept_classifier}
    _require_finite(state, weights.source)
    model.load_state_dict(state, strict=False)
    report = _make_report(weights.source, best, verdict, state)
    fresh = [name for name in model_state if name not in state and name not in shapes and not _is_batch_counter(name)]
    return replace(report, loaded=tuple(name for name in state if name not in fitted.changes), fresh=tuple(fresh))


def _make_report(source: str, best: "CandidateFit", verdict: str, state: Mapping[str, Tensor]) -> LoadReport:
    return LoadReport(
        source,
        best.part,
        best.share,
        verdict,
        loaded=tuple(state),
        adapted={name: change for name, change in best.fitted.changes.items() if name in state},
        unused=(*best.fitted.unused, *best.fitted.mismatched),
        program=best.program.name if best.program else "",
        method=tuple(best.method),
    )


def read_complete_state(model: nn.Module, weights: StartWeights) -> tuple[dict[str, Tensor], LoadReport]:
    """Return a model's complete state dict from a file, including the file's classifier, and a report.

    The model may be on the meta device.
    """
    best = _best_fit(model, weights)
    classifier_names, fitted = classifier_modules(model), best.fitted
    classifier = _take_classifier(fitted, classifier_names)
    needed_names = [
        name for name in model.state_dict() if not is_inside(name, classifier_names) and not _is_batch_counter(name)
    ]
    missing = [name for name in needed_names if name not in fitted.state and not is_computed_from_sizes(name)]
    if missing:
        raise UserError(
            f"{weights.source} does not contain the weights of {model_name(model)}: {len(missing)} of the model's "
            f"{len(needed_names)} tensors are missing or have another shape (such as {missing[0]!r}); give the --model "
            "to which the weights belong."
        )
    state = {**fitted.state, **classifier}
    _require_finite(state, weights.source, "")
    return state, _make_report(weights.source, best, "kept" if classifier else "none", state)


def suggest_model(tree: Mapping[str, Any]) -> str | None:
    """Return the name of the timm model to which a published checkpoint's weights belong; None if unknown.

    The names of the tensors identify the program that wrote them, and their shapes identify the variant.
    """
    for candidate in find_candidates(tree, ()):
        program = recognise_program(candidate.state)
        fits: dict[str, int] = {}
        for name in possible_models(program) if program is not None else ():
            fit = _fit_candidate(build_empty(name, {}), candidate, None)
            if fit.share < COMPLETE_FRACTION:
                continue
            # Choose the variant with the fewest changed and unused tensors, since a smaller variant can load some
            # tensors of a larger variant.
            fits[name] = len(fit.fitted.changes) + len(fit.fitted.unused)
            if not fits[name]:
                break
        if fits:
            return min(fits, key=fits.__getitem__)
    return None


def pick_network(tree: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    """Return the network in a checkpoint that is stored under a key, such as "teacher" or "student"."""
    network = tree.get(name)
    if not isinstance(network, Mapping):
        names = ", ".join(key for key, value in tree.items() if isinstance(value, Mapping))
        raise UserError(
            f"--init-network: {source} has no network {name!r}; it contains {names or 'one network without a name'}."
        )
    return {name: network}


@dataclass(frozen=True)
class CandidateFit:
    """How well a set of tensors from a file fits a model."""

    part: str = ""  # keys and prefix of the tensors in the file, as text
    fitted: FittedTensors = field(default_factory=FittedTensors)
    share: float = 0.0  # fraction of the model's parameters that can be loaded, by elements, without the classifier
    program: Program | None = None  # program that wrote the file; None if unknown
    method: Sequence[str] = ()  # names of tensors that belong to the program's training method


def _best_fit(model: nn.Module, weights: StartWeights) -> CandidateFit:
    best = CandidateFit()
    for candidate in find_candidates(weights.tree, model.state_dict().keys()):
        fit = _fit_candidate(model, candidate, weights.grid)
        if fit.share > best.share or (not best.share and len(fit.fitted.mismatched) > len(best.fitted.mismatched)):
            best = fit
        if fit.share >= COMPLETE_FRACTION:
            break
    return best


def _fit_candidate(model: nn.Module, candidate: Candidate, grid: Size | None) -> CandidateFit:
    program, state, method = recognise_program(candidate.state), candidate.state, []
    if program is not None:
        method = [name for name in state if re.search(program.method_pattern, name)]
        state = program.rename({name: value for name, value in state.items() if name not in method})
    fitted, classifier_names = fit_to_model(model, state, grid), classifier_modules(model)
    sizes = {name: p.numel() for name, p in model.named_parameters() if not is_inside(name, classifier_names)}
    share = sum(size for name, size in sizes.items() if name in fitted.state) / max(sum(sizes.values()), 1)
    return CandidateFit(candidate.part, fitted, share, program, method)


def _too_few_weights_message(model: nn.Module, weights: StartWeights, best: CandidateFit) -> str:
    name, model_state, fitted = model_name(model), model.state_dict(), best.fitted
    loaded_text = f"{len(fitted.state)} of the {len(model_state)} tensors of {name} in the right shape"
    if weights.model is not None and weights.model != name:
        reason = f"the weights belong to {weights.model}, so choose --model {weights.model}"
    elif fitted.mismatched:
        tensor_name, value = next(iter(fitted.mismatched.items()))
        reason = _describe_mismatch(tensor_name, value, model_state[tensor_name])
    else:
        in_file, in_model = next(iter(_tensor_names_in_file(weights.tree)), "nothing"), next(iter(model_state))
        reason = f"the file's tensors have names such as {in_file!r}, but the model's have names such as {in_model!r}; "
        reason += "choose the --model to which the weights belong"
    percentage = percent_rounded_down(best.share)
    return f"--init: {weights.source} has only {loaded_text} ({percentage} of the parameters): {reason}."


def _take_classifier(fitted: FittedTensors, classifier_names: Sequence[str]) -> dict[str, Tensor]:
    """Remove the classifier's tensors from `fitted.state` and `fitted.mismatched`, and return them."""
    names = [name for name in (*fitted.state, *fitted.mismatched) if is_inside(name, classifier_names)]
    return {name: (fitted.state if name in fitted.state else fitted.mismatched).pop(name) for name in names}


def _require_shapes(model: nn.Module, source: str, best: CandidateFit, classifier_names: Sequence[str]) -> None:
    """Refuse a published checkpoint whose tensors have other shapes or types, since it belongs to another variant."""
    mismatched = [name for name in best.fitted.mismatched if not is_inside(name, classifier_names)]
    if best.program is None or not mismatched:
        return
    value, parameter = best.fitted.mismatched[mismatched[0]], model.state_dict()[mismatched[0]]
    noun = "types" if value.shape == parameter.shape else "shapes"
    raise UserError(
        f"--init: {source} was written by {best.program.name}, but {len(mismatched)} of its tensors have other {noun} "
        f"than in {model_name(model)}: {_describe_mismatch(mismatched[0], value, parameter)}."
    )


def _tensor_names_in_file(tree: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors in the mapping with the most tensors in a file."""
    inner = [_tensor_names_in_file(value) for value in tree.values() if isinstance(value, Mapping)]
    return max([[name for name, value in tree.items() if isinstance(value, Tensor)], *inner], key=len)


def _describe_mismatch(name: str, in_file: Tensor, in_model: Tensor) -> str:
    """Return how a tensor's shape or, if the shapes are equal, its dtype differs from the model's, with advice."""
    advice = "choose the --model and --model-args to which the weights belong"
    texts = ["x".join(map(str, tensor.shape)) or "a number" for tensor in (in_file, in_model)]
    if in_file.shape == in_model.shape:
        advice = "convert the weights to floats"
        texts = [str(tensor.dtype).removeprefix("torch.") for tensor in (in_file, in_model)]
    return f"for example, {name!r} is {texts[0]} in the file and {texts[1]} in the model; {advice}"


def _require_finite(state: Mapping[str, Tensor], source: str, setting: str = "--init: ") -> None:
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise UserError(f"{setting}{source} has NaN or infinite values in {name!r}: choose another checkpoint.")


def _is_batch_counter(name: str) -> bool:
    """Return whether the named tensor is the batch counter of a batch norm, which is not used."""
    return name.endswith("num_batches_tracked")
