"""Tuning what token labels have trained: at a higher resolution with its maps, and without any."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.nn.functional import interpolate

import paucal
from cli.calls import LVVIT, PLAIN, WIDE, call, failure, make_photos, table

ONE = [*PLAIN, "--epochs", "1", "--average", "0"]


@pytest.fixture(scope="module")
def trained(labelled, tmp_path_factory) -> Path:
    """An LV-ViT with 8x8 cells at 32 pixels."""
    run = tmp_path_factory.mktemp("tuning") / "run"
    flags = ["--method", "token-labeling", "--labels", labelled / "maps", "--output", run]
    assert call("train", labelled / "photos", *ONE, *LVVIT, *flags) == 0
    return run


def weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model.safetensors")


def test_high_resolution__resizes_positions_and_labels_a_finer_grid(labelled, trained, tmp_path):
    run = tmp_path / "run"
    flags = ["--init", trained, "--method", "token-labeling", "--labels", labelled / "maps", "--img-size", "48"]
    # At this rate the weights stay what they begin with.
    assert call("train", labelled / "photos", *ONE, *flags, "--lr", "1e-12", "--min-lr", "0", "--output", run) == 0
    before, after = weights(trained), weights(run)
    grids = [json.loads((folder / "summary.json").read_text())["grid"] for folder in (trained, run)]
    assert grids == ["8x8", "12x12"]  # the patches have the size they were trained with
    table_of_cells = before["pos_embed"][:, 1:].unflatten(1, (8, 8)).permute(0, 3, 1, 2)
    finer = interpolate(table_of_cells, size=(12, 12), mode="bicubic").flatten(2).transpose(1, 2)
    torch.testing.assert_close(after["pos_embed"][:, 1:], finer, atol=1e-6, rtol=0)
    for name in ("pos_embed", "head.weight", "aux_head.weight", "blocks.0.attn.qkv.weight"):
        kept = slice(0, 1) if name == "pos_embed" else slice(None)
        torch.testing.assert_close(after[name][:, kept], before[name][:, kept], atol=1e-6, rtol=0)
    (row,) = table(run / "metrics.csv")
    assert float(row["train_tokens"]) > 0


def test_fine_tuning__without_labels_trains_both_classifiers_as_inference_uses_them(trained, tmp_path):
    others = make_photos(tmp_path / "others", classes=2, **WIDE)
    runs = []
    for rate in ("1e-12", "0.01"):
        runs.append(tmp_path / rate)
        flags = ["--init", trained, "--method", "supervised", "--lr", rate, "--min-lr", "0", "--output", runs[-1]]
        assert call("train", others, *ONE, *flags) == 0
    begun, done = (weights(run) for run in runs)
    for name in ("head.weight", "aux_head.weight"):
        assert begun[name].shape == (2, 32)
        assert (done[name] - begun[name]).abs().max() > 1e-3, name


def test_fine_tuning__can_leave_the_classifier_of_tokens_out_also_at_inference(trained, tmp_path):
    others, run = make_photos(tmp_path / "others", classes=2, **WIDE), tmp_path / "run"
    flags = [*LVVIT, "aux_head=False", "--init", trained, "--method", "supervised", "--output", run]
    assert call("train", others, *ONE, *flags) == 0
    assert not [name for name in weights(run) if name.startswith("aux_head")]
    assert "aux_head.weight" in json.loads((run / "init.json").read_text())["unused"]
    model = paucal.load(run).module
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        cells = model.forward_features(images)
        torch.testing.assert_close(model(images), model.head(cells[:, 0]))


def test_maps__that_do_not_know_a_class_of_the_images_are_refused(labelled, trained, tmp_path, capsys):
    more = make_photos(tmp_path / "photos", classes=4, **WIDE)
    flags = ["--init", trained, "--method", "token-labeling", "--labels", labelled / "maps"]
    message = failure(capsys, "train", more, *ONE, *flags, "--output", tmp_path / "run")
    assert "lack 1 of the 4 classes of photos (such as 'class3')" in message
    assert not (tmp_path / "run").exists()
