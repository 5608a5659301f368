"""Every flag of DrLoc, typed as on the command line, against the loss that it must give.

The head is made to say the same of all pairs, whatever it sees, so that the loss is arithmetic on the offsets drawn.
"""

import math
from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.drloc_runs import SAID, SIDES, built, heads_of, images, seen_by_heads, settings_of
from paucal.methods.training_settings import DrLocSettings, TrainSettings
from paucal.objectives.drloc import PRESETS, DrLocOptions
from paucal.tasks.classification.job import TrainingJob
from paucal.types import Batch, FeatureRequest, Progress, UserError


def offsets(words: str) -> tuple[float, Tensor]:
    """Return the loss and the offsets (pairs of all images, 2) in cells that it is of."""
    loss, seen = seen_by_heads(words)
    pairs = seen[-1][1]
    return loss, (pairs[:, :, 0] - pairs[:, :, 1]).flatten(0, 1).float()


def numbers(targets: Tensor) -> Tensor:
    return (targets - SAID).abs().mean()


def evenly(factor: float, classes: Tensor, counts: Tensor) -> float:
    """L_reg of a head that finds all classes alike likely."""
    variance = (counts.square() - 1) / 12
    error = (classes - (counts - 1) / 2).square() / variance + factor * variance.log()
    return error.mean(0).sum().item()


OFFSETS = {
    "": lambda d: numbers(d.abs() / SIDES),
    "--drloc-preset paper": lambda d: numbers(d.abs() / SIDES),
    "--drloc-preset reference": lambda d: numbers(d.abs()),
    "--drloc-scale none": lambda d: numbers(d.abs()),
    "--drloc-scale side_minus_1": lambda d: numbers(d.abs() / (SIDES - 1)),
    "--drloc-preset reference --drloc-scale side": lambda d: numbers(d.abs() / SIDES),
    "--drloc-coordinates sum": lambda d: 2 * numbers(d.abs() / SIDES),
    "--drloc-mode signed": lambda d: numbers(d / SIDES),
    "--drloc-mode signed --drloc-shift side_minus_1": lambda d: numbers((d + SIDES - 1) / (2 * SIDES)),
    "--drloc-preset reference --drloc-mode signed": lambda d: numbers(d + SIDES - 1),
    "--drloc-preset reference --drloc-mode signed --drloc-shift none": lambda d: numbers(d),
    "--drloc-mode ce": lambda d: math.log(7) + math.log(11),
    "--drloc-mode ce --drloc-classes paper": lambda d: math.log(9) + math.log(13),
    "--drloc-mode ce --drloc-classes absolute": lambda d: math.log(4) + math.log(6),
    "--drloc-preset reference --drloc-mode ce --drloc-classes signed": lambda d: math.log(7) + math.log(11),
    "--drloc-mode reg": lambda d: evenly(0.0005, d + SIDES - 1, 2 * SIDES - 1),
    "--drloc-mode reg --drloc-alpha 3": lambda d: evenly(1.5, d + SIDES - 1, 2 * SIDES - 1),
    "--drloc-mode reg --drloc-alpha 3 --drloc-log-of variance": lambda d: evenly(3, d + SIDES - 1, 2 * SIDES - 1),
    "--drloc-mode reg --drloc-classes absolute": lambda d: evenly(0.0005, d.abs(), SIDES),
    "--method token-labeling --labels maps --add drloc --drloc-scale none": lambda d: numbers(d.abs()),
}
# Flags that are told by something else than this arithmetic, each in a test of its own below.
ELSEWHERE = {
    *("drloc_weight", "drloc_schedule", "drloc_warmup_epochs", "drloc_horizon_epochs", "drloc_extra_layer"),
    *("drloc_hidden", "drloc_levels", "drloc_norm", "drloc_pool", "drloc_sampling", "drloc_pairs"),
}


@pytest.mark.parametrize("words", OFFSETS)
def test_flags__reach_the_formula(words):
    loss, drawn = offsets(words)
    assert drawn.shape == (3 * 48, 2)  # two pairs for each of the 24 cells
    assert loss == pytest.approx(float(OFFSETS[words](drawn)), rel=1e-5)


def test_flags__are_all_looked_at():
    typed = {word[2:].replace("-", "_") for words in OFFSETS for word in words.split() if word.startswith("--drloc")}
    assert typed | ELSEWHERE == {item.name for item in fields(DrLocSettings)}


@pytest.mark.parametrize("words", ["--drloc-extra-layer linear", "--drloc-preset reference --drloc-classes signed"])
def test_extra_layer__is_between_the_hidden_ones_and_the_last(words):
    objective, term = built(f"--drloc-mode ce {words}")
    (head,) = heads_of(term)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    nn.init.ones_(head.get_parameter("extra.bias"))
    nn.init.constant_(head.last.weight[:1], 1 / 256)  # so the first row class has a logit of 1, all others 0
    seen: list[tuple[Tensor, Tensor]] = []
    head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    loss = term(objective.backbone(images(), term.request), Batch(torch.arange(3), []), Progress(0, 10, 5)).item()
    rows = (seen[0][1][:, :, 0, 0] - seen[0][1][:, :, 1, 0] + 3).flatten()
    logits = torch.tensor([1.0] + [0.0] * 6).expand(len(rows), 7)
    assert loss == pytest.approx(F.cross_entropy(logits, rows).item() + math.log(11), rel=1e-5)


def test_extra_layer__can_be_left_out_of_the_reference():
    _, with_it = built("--drloc-preset reference --drloc-mode ce")
    _, without = built("--drloc-preset reference --drloc-mode ce --drloc-extra-layer none")
    sizes = [sum(p.numel() for p in term.parameters()) for term in (with_it, without)]
    assert sizes[0] - sizes[1] == 256 * 256 + 256  # twice the 128 channels wide


def test_norm__is_read_after_or_before():
    objective, _ = built()
    grids = {}
    for word in ("after", "before"):
        term = built(f"--drloc-norm {word}")[1]
        assert term.request == FeatureRequest("last", norm=word == "after")
        grids[word] = objective.backbone(images(), term.request).grids[0]
    (kept,) = seen_by_heads("--drloc-norm before")[1]
    assert torch.equal(kept[0], built()[0].backbone(images(), FeatureRequest(norm=False)).grids[0])
    assert not torch.allclose(grids["after"], grids["before"], atol=1e-2)
    assert built("--drloc-preset reference")[1].request.norm is False
    assert built("--drloc-preset reference --drloc-norm after")[1].request.norm is True


@pytest.mark.parametrize(
    ("words", "epochs", "weights"),
    [
        ("--drloc-weight 0.4", (0, 5, 500), (0.4, 0.4, 0.4)),
        ("--drloc-weight 0.3 --drloc-schedule ramp", (0, 10, 20, 160, 300), (0.0, 0.15, 0.3, 0.15, 0.0)),
        ("--drloc-weight 0.3 --drloc-preset reference", (0, 10, 20, 160, 300), (0.0, 0.15, 0.3, 0.15, 0.0)),
        ("--drloc-weight 0.3 --drloc-preset reference --drloc-schedule constant", (0, 300), (0.3, 0.3)),
        (
            "--drloc-weight 0.4 --drloc-schedule ramp --drloc-warmup-epochs 2 --drloc-horizon-epochs 6",
            (0, 1, 2, 4, 6, 9),
            (0.0, 0.2, 0.4, 0.2, 0.0, 0.0),
        ),
        ("--drloc-weight 0.4 --drloc-preset reference --drloc-warmup-epochs 0", (0, 150), (0.4, 0.2)),
    ],
)
def test_weight__is_as_told_in_every_epoch(words, epochs, weights):
    objective, term = built(words)
    found = [term.weight(Progress(epoch * 7 + 3, 9999, steps_per_epoch=7)) for epoch in epochs]
    assert found == pytest.approx(weights)
    batch = Batch(torch.arange(3), [images()], torch.tensor([0, 1, 2]))
    losses = objective(batch, Progress(epochs[1] * 7, 9999, steps_per_epoch=7))
    assert losses.weights["drloc"] == pytest.approx(weights[1])


def test_pairs__are_as_many_as_told():
    (seen,) = seen_by_heads("--drloc-pairs 7")[1]
    assert seen[1].shape == (3, 7, 2, 2)
    assert settings_of("").drloc_pairs == 48


def test_sampling__of_a_permutation_takes_every_cell_once():
    settings = settings_of("--drloc-sampling permutation")
    assert settings.drloc_pairs is None
    for words in (
        "--drloc-sampling permutation",
        "--method token-labeling --labels m --add drloc --drloc-sampling permutation",
    ):
        (seen,) = seen_by_heads(words)[1]
        cells = seen[1][..., 0] * 6 + seen[1][..., 1]  # (images, pairs, first or second)
        assert cells.shape == (3, 24, 2)
        assert torch.equal(cells.sort(dim=1).values, torch.arange(24)[None, :, None].expand(3, 24, 2))
    assert settings_of("--drloc-sampling random").drloc_pairs == 48


def test_sampling__of_a_permutation_is_stored_and_read_again():
    stored = vars(settings_of("--drloc-sampling permutation"))
    settings, _ = TrainingJob().check(TrainSettings(**stored), dict.fromkeys(stored, "config"))
    assert settings.drloc_sampling == "permutation"


def test_levels_hidden_and_pool__reach_the_heads():
    loss, seen = seen_by_heads("--drloc-levels blocks --drloc-pool 2 --drloc-hidden 9")
    assert [tuple(grid.shape[1:]) for grid, _ in seen] == [(128, 2, 3)] * 2
    sides = torch.tensor([2.0, 3.0])
    drawn = [(pairs[:, :, 0] - pairs[:, :, 1]).flatten(0, 1).abs() / sides for _, pairs in seen]
    assert loss == pytest.approx(sum(numbers(d).item() for d in drawn), rel=1e-5)
    term = built("--drloc-levels blocks --drloc-hidden 9")[1]
    assert [head.first.out_features for head in heads_of(term)] == [9, 9]


def test_levels__merged_are_read_where_patches_are_merged():
    args = "patch_size=2 window_size=4 embed_dim=8 depths=[1,1,1] num_heads=[1,1,2]"
    swin = f"--model swin_tiny_patch4_window7_224 --img-size 32 --epochs 1 --model-args {args}"
    _, term = built("--drloc-levels merged", swin)
    assert [head.first.in_features for head in heads_of(term)] == [2 * 16, 2 * 32, 2 * 32]
    assert term.sizes == [(8, 8), (4, 4), (4, 4)]
    with pytest.raises(UserError, match=r"vit_mini has no layers that merge patches.*use 'stages' or 'blocks'"):
        built("--drloc-levels merged")


def test_defaults__are_the_presets():
    own = {"weight": 0.1, "n_pairs": 48, "hidden": 256}  # what the rules choose for this model
    assert built()[1].options == replace(DrLocOptions(), **own)
    assert built("--drloc-preset reference")[1].options == replace(PRESETS["reference"], **own)
    plain = settings_of("")
    assert {item.name for item in fields(DrLocSettings) if getattr(plain, item.name) is not None} == {
        *("drloc_preset", "drloc_sampling", "drloc_weight", "drloc_pairs", "drloc_hidden"),
    }
