"""Views of the patches of an image: offsets (`--show localization`), classes (`tokens`) and matches (`matches`).

A "patch" is one grid position of a feature map here, even if the network does not divide images into patches.
The saved model of a run does not contain DrLoc's localization head. The head is read from the checkpoint of the best
epoch or, if the run has no validation images, of the last epoch.
"""

import re
from types import SimpleNamespace
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.explain.features import Correspondence, match_images
from paucal.explain.figures.attention import tokens_figure
from paucal.explain.figures.cells import MatchedPair, OffsetView, all_pairs, offsets_figure
from paucal.explain.figures.cells import matches_figure as draw_matches
from paucal.explain.prepared import prepare_for_hooks
from paucal.labeling import DenseTeacher
from paucal.losses.drloc_targets import pair_classes, pair_targets
from paucal.methods.drloc import DRLOC_LOSS
from paucal.models.named import open_named
from paucal.models.trained import TrainedModel
from paucal.objectives import DrLoc
from paucal.objectives.drloc import DrLocOptions
from paucal.runs import open_model_folder
from paucal.runs.weights import load_checkpoint
from paucal.tasks.classification.trainer_inputs import LOSS_COLUMN
from paucal.types import UserError
from paucal.verbs.explain.attention import ImageView
from paucal.verbs.explain.inputs import ExplainInput, convert_model_input, stack_views
from paucal.verbs.explain.settings import PATCH_POSITION, ExplainSettings
from paucal.wording import first_line

_HEAD_KEY = re.compile(r"objective\.terms\.\d+\.(heads\..+)")


def _open_relative_localizer(name: TrainedModel | str, model: TrainedModel) -> DrLoc:
    """Return the DrLoc loss term of a run with its trained heads; `model` is the model of the run."""
    if isinstance(name, TrainedModel):
        raise UserError(
            "--show localization reads the head from the run: give the run folder instead of a loaded model."
        )
    run = open_model_folder(name)
    validated = any(LOSS_COLUMN in row for row in run.read_rows())
    checkpoint = run.best if validated else run.last
    if not checkpoint.is_file():
        reason = "no epoch was better than the run's first model" if validated else "the run has trained no step"
        text = f"--show localization needs {str(checkpoint)!r}, which is missing"
        raise UserError(f"{text}: the file was removed, or {reason}.")
    state = load_checkpoint(checkpoint).get("state_dict", {})
    heads = {match[1]: value for key, value in state.items() if (match := _HEAD_KEY.fullmatch(key))}
    if not heads:
        raise UserError(f"{str(run.path)!r} was trained without DrLoc: train with --add drloc.")
    settings: Any = SimpleNamespace(**run.settings)
    try:
        backbone = FeatureBackbone(model.module, model.card.preprocessing.image_size)
        term = DRLOC_LOSS.build(settings, model.card.backbone, backbone)
        assert isinstance(term, DrLoc)
        term.load_state_dict(heads)
    except (AttributeError, RuntimeError, TypeError, ValueError) as problem:
        raise UserError(
            f"the DrLoc head of {str(run.path)!r} does not fit its settings ({first_line(problem)})."
        ) from problem
    return term.to(model.device).eval()


def open_localization_view(name: TrainedModel | str, model: TrainedModel) -> ImageView:
    """Return a function that draws the offsets between patches, predicted by the DrLoc head of the last feature map.

    The figure shows the predicted offset from the first patch of `--token` (or the middle patch) to a corner, and the
    mean error at each patch.
    """
    term = _open_relative_localizer(name, model)

    @torch.no_grad()
    def draw(model: TrainedModel, image: ExplainInput, settings: ExplainSettings) -> dict[str, Figure]:
        with prepare_for_hooks(model.module) as module:
            backbone = FeatureBackbone(module, model.card.preprocessing.image_size)
            grid = term.pooled(backbone(stack_views([image], model), term.request).grids[-1]).float()
        rows, columns = int(grid.shape[2]), int(grid.shape[3])
        size = (rows, columns)
        pairs = all_pairs(size).to(grid.device)
        head: nn.Module = term.heads[-1]
        predicted = _offsets_in_patches(head(grid, pairs), term.options, size)
        signed = (term.options.target if term.options.mode in ("l1", "signed") else term.options.classes) != "absolute"
        truth = pair_targets(pairs, *size, target="signed" if signed else "absolute", scale="none")
        shape = (rows * columns, rows * columns, 2)
        view = OffsetView(predicted.cpu().view(shape), truth[0].cpu().view(shape), size, signed)
        patch = (rows // 2, columns // 2)
        if settings.token and (match := next(filter(None, map(PATCH_POSITION.fullmatch, settings.token)), None)):
            patch = (int(match[1]), int(match[2]))
        if patch[0] >= rows or patch[1] >= columns:
            grid_text = f"the grid of {rows}x{columns} patches"
            raise UserError(f"--token: the patch {patch} lies outside {grid_text}: count from 0.")
        corner = (0, 0) if patch != (0, 0) else (rows - 1, columns - 1)
        return {"localization": offsets_figure(image.picture, view, corner, patch)}

    return draw


def _offsets_in_patches(outputs: tuple[Tensor, Tensor], options: DrLocOptions, size: tuple[int, int]) -> Tensor:
    """Convert the outputs of a DrLoc head for P pairs, two (1, P, C) tensors, to (P, 2) offsets in patches.

    With a classification loss, an offset is the mean of the predicted distribution; with L1, the outputs are rescaled.
    """
    same_patch = torch.zeros(1, 1, 2, 2, dtype=torch.long)
    if options.mode in ("l1", "signed"):
        one_patch_step = same_patch.clone()
        one_patch_step[0, 0, 0] = 1  # an offset of one patch down and right, on the scale of the targets
        zero, unit = (
            pair_targets(pair, *size, target=options.target, scale=options.scale)[0, 0].to(outputs[0])
            for pair in (same_patch, one_patch_step)
        )
        return (torch.cat(outputs, 2)[0] - zero) / (unit - zero)
    centre = pair_classes(same_patch, *size, classes=options.classes)[0, 0].tolist()
    values = []
    for middle_index, logits in zip(centre, outputs, strict=True):
        offsets = torch.arange(logits.shape[-1], device=logits.device).float() - middle_index
        values.append((logits[0].float().softmax(1) * offsets).sum(1))
    return torch.stack(values, 1)


def open_tokens_view(model: TrainedModel, teacher: str | None, device: str) -> ImageView:
    """Return a function that draws the classes of the patches of an image, as token labeling predicts these classes.

    The classes are predicted by the model and, if one is named, also by a teacher, which must have all classes of the
    model.
    """
    models = {"predicted classes of the patches": model.require_classifier()}
    if teacher is not None:
        other = open_named(teacher, device, setting="--teacher").require_classifier()
        if missing := [name for name in model.classes if name not in other.classes]:
            raise UserError(f"--teacher: {teacher} lacks the class {missing[0]!r} of the model: give another teacher.")
        models = {"teacher": other, "student": model}
    dense_models = [
        (title, shown, DenseTeacher(shown.module, shown.card.preprocessing.image_size))
        for title, shown in models.items()
    ]

    @torch.no_grad()
    def draw(model: TrainedModel, image: ExplainInput, settings: ExplainSettings) -> dict[str, Figure]:
        shares = []
        for title, shown, dense in dense_models:
            logits = dense(convert_model_input(image.view[None], model, shown))[0][0].float()
            probabilities = logits.sigmoid() if shown.card.is_multi_label else logits.softmax(0)
            order = [shown.classes.index(name) for name in model.classes]
            shares.append((title, probabilities[order].cpu()))
        return {"tokens": tokens_figure(image.picture, shares, model.classes)}

    return draw


def mirror_match_mask(matches: Correspondence) -> Tensor:
    """Return an (N,) mask of the correct matches among N matches between an image and its mirror image."""
    truth = torch.stack((matches.first[:, 0], matches.grids[0][1] - 1 - matches.first[:, 1]), 1)
    return (matches.second == truth).all(1)


def matches_figure(model: TrainedModel, pair: list[ExplainInput]) -> Figure:
    """Draw the matches between the patches of two images, or of one image and its mirror image."""
    first = pair[0]
    mirrored = ExplainInput(f"{first.name}, mirrored", first.picture[:, ::-1].copy(), first.view.flip(-1))
    second = pair[1] if len(pair) == 2 else mirrored
    inputs = stack_views([first, second], model)
    matches = match_images(model.module, inputs[0], inputs[1])
    is_correct = mirror_match_mask(matches) if len(pair) == 1 else None
    correct_text = "" if is_correct is None else f": {int(is_correct.sum())} of {len(is_correct)} correct"
    names = (first.name, f"{second.name}{correct_text}")
    return draw_matches([MatchedPair((first.picture, second.picture), matches, names, is_correct)], show_cosines=True)
