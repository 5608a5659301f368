"""A first model whose head reads the last stages: saved, exported, used, tuned from and resumed as any other."""

import json

import pytest
import torch
from PIL import Image

import paucal
from paucal.backbones.stage_classifier import StageClassifier
from paucal.cli.main import main
from paucal.models.card import ModelCard
from paucal.models.features import StageClassifierInputExtractor, linear_classifier
from paucal.models.trained import load_trained
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, resume
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights
from paucal.tasks.classification.auto_tune import auto_tune as auto_tune_module
from paucal.tasks.classification.auto_tune import first_model
from paucal.tasks.classification.auto_tune.heads import HEADS, MEAN_HEAD, HeadComparison, fit_mixture
from paucal.tasks.classification.auto_tune.probe import Head
from paucal.tasks.classification.auto_tune.record import PROBE_FILE
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError
from tasks.classification.auto_tune.carried import MODEL, ONE_WAY, install
from tasks.classification.auto_tune.test_auto_tune import photos, rungs_of, started_from

GIVEN = {**ONE_WAY, "lr": 1e-3}


def won_by_stages(last, staged, labels, n_classes, strength, seed, heads, max_images, groups):
    weights = fit_mixture(staged, labels, n_classes, dict.fromkeys(HEADS, 0.05))
    return HeadComparison(MEAN_HEAD, Head(*weights, 100.0, 0.9), {MEAN_HEAD: 0.5})


@pytest.fixture(scope="module")
def shared_photos(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("shared") / "photos", each=40)


def patch_first_model(folder, patch):
    install(folder, patch)
    patch.setattr(first_model, "compare_heads", won_by_stages)


@pytest.fixture
def patched(shared_photos, tmp_path, monkeypatch):
    patch_first_model(tmp_path, monkeypatch)
    return shared_photos


@pytest.fixture(scope="module")
def run(shared_photos, tmp_path_factory):
    """A run whose model is the first one."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch_first_model(folder, patch)
        result = started_from(shared_photos, folder / "run", epochs=0, val_fraction=0.2)
    return result.folder


def pixels(count=4):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_first_model__reads_the_stages_and_says_so(run):
    model, found = load_trained(run), rungs_of(run)
    assert model.card.reads_stages
    assert model.card.temperature != 1.0
    assert found["probe"]["details"]["head"] == MEAN_HEAD
    assert isinstance(linear_classifier(model.module), StageClassifier)
    summary = json.loads((run / "summary.json").read_text())
    assert [MEAN_HEAD in row["name"] for row in summary["rungs"] if row["kept"]] == [True]
    own = read_weights(run / PROBE_FILE)["weight"]
    stored = read_weights(RunFolder(run).weights)
    (weight,) = (value for name, value in stored.items() if value.ndim == 2)
    assert own.shape[1] < weight.shape[1]


def test_first_model__is_linear_in_the_features_that_its_head_was_fitted_to(run):
    model = load_trained(run)
    layer = linear_classifier(model.module)
    plain = ModelCard(model.card.backbone, model.card.classes, model.card.preprocessing).build().eval()
    own = layer.pool.width
    state = {name: value for name, value in model.module.state_dict().items() if value is not layer.weight}
    plain.load_state_dict(
        {name: value[:, :-own] if value.shape == layer.weight.shape else value for name, value in state.items()}
    )
    with torch.no_grad():
        features = StageClassifierInputExtractor(plain, (32, 32))(pixels())
        torch.testing.assert_close(model.module(pixels()), features @ layer.weight.T + layer.bias)


def test_first_model__scores_on_the_validation_images_as_recorded(run, patched):
    model = load_trained(run)
    rows = [line.split(",") for line in (run / "split.csv").read_text().splitlines()]
    part, path = rows[0].index("split"), rows[0].index("key")
    val = [row[path] for row in rows[1:] if row[part] == "val"]
    right = sum(
        model.classes[int(model.probabilities([Image.open(patched / name)])[0].argmax())] == name.split("/")[0]
        for name in val
    )
    assert right / len(val) == pytest.approx(rungs_of(run)["probe"]["score"])


def test_first_model__exports_to_equal_models(run, tmp_path, capsys):
    pytest.importorskip("onnxscript")
    output = tmp_path / "out"
    assert main(["export", str(run), "--output", str(output), "--images", "10"]) == 0
    found = json.loads((output / "export.json").read_text())["comparisons"]
    assert set(found) == {"model.pt2", "model.onnx"}
    assert all(one["agreement"] == 1.0 and one["largest"] < 1e-4 for one in found.values())
    original, picture = paucal.load(run), Image.linear_gradient("L").convert("RGB").resize((50, 40))
    wanted = original.probabilities([picture])
    torch.testing.assert_close(paucal.load(output).probabilities([picture]), wanted)
    torch.testing.assert_close(
        paucal.load(output / "model.onnx").probabilities([picture]), wanted, rtol=1e-3, atol=1e-4
    )
    assert not (output / "config.json").exists()  # timm could not build it
    assert "timm.create_model" not in (output / "README.md").read_text()


def test_first_model__predicts_explains_and_labels(run, patched, tmp_path, capsys):
    picture = next((patched / "class1").iterdir())
    assert main(["predict", str(run), str(picture)]) == 0
    assert main(["explain", str(run), str(picture), "--output", str(tmp_path / "explained")]) == 0
    assert main(["eval", str(run), "--protocol", "classification", "knn"]) == 0
    assert main(["label", str(patched), "--teacher", str(run), "--output", str(tmp_path / "maps")]) == 0


def test_first_model__starts_another_run_with_a_fresh_classifier(run, patched, tmp_path):
    result = started_from(patched, tmp_path / "next", init=str(run), model=MODEL, epochs=1)
    said = json.loads((result.folder / "init.json").read_text())
    assert said["share"] == 1.0
    assert "fresh, since the classifier of the loaded weights has another shape" in said["classifier"]
    assert not load_trained(result.folder).card.reads_stages


def test_tuning__begins_with_the_last_features_and_resumes_bit_for_bit(patched, tmp_path, monkeypatch):
    whole = started_from(patched, tmp_path / "whole", epochs=1, **GIVEN)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(auto_tune_module, "choose_preset", stop)
        stopped = started_from(patched, tmp_path / "run", epochs=1, **GIVEN)
    assert isinstance(stopped, Stopped)
    assert load_trained(tmp_path / "run").card.reads_stages  # usable from here on
    result = resume(TrainingJob(), tmp_path / "run", SilentConsole())
    ours, theirs = load_trained(result.folder), load_trained(whole.folder)
    assert ours.card == theirs.card
    state = theirs.module.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in ours.module.state_dict().items())
    last = torch.load(RunFolder(result.folder).last, weights_only=False)["state_dict"]
    assert any(value.shape == (3, 96) for value in last.values())  # the network that was tuned has its own classifier


def test_tuning__that_is_worse_keeps_the_stages(patched, tmp_path):
    result = started_from(patched, tmp_path / "run", epochs=1, **{**GIVEN, "lr": 20.0}, label_smoothing=0.0)
    assert load_trained(result.folder).card.reads_stages
    assert result.report.images > 0


def test_card__of_a_network_without_stages_is_refused(run):
    stored = json.loads((run / "model.json").read_text())
    assert ModelCard.from_dict(stored).reads_stages
    assert not ModelCard.from_dict({**stored, "reads_stages": "yes"}).reads_stages
    stored["backbone"] = {**stored["backbone"], "num_classes": 0}
    with pytest.raises(UserError, match="needs a linear classifier and stages that timm lists"):
        ModelCard.from_dict({**stored, "classes": []}).build()
