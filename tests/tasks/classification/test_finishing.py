"""What comes after the last step: epochs averaged where validation prefers it, confidence corrected, both judged."""

import json
import shutil
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import paucal
from paucal.data.loader import make_eval_loader
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.classification import quick_scores
from paucal.evaluation.predictions import predict_all
from paucal.models.trained import load_trained
from paucal.runner.images import open_again
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights
from paucal.tasks.classification import conclusion, finishing
from paucal.tasks.classification.auto_tune.record import EvaluatedModel, TuneRecord
from paucal.tasks.classification.conclusion import describe_kept_model

SMALL = {"model": "vit_mini", "img_size": [16], "model_args": ["depth=1", "embed_dim=16", "num_heads=2"]}
SETTINGS = {**SMALL, "init": "none", "method": "supervised", "epochs": 4, "lr": 2e-3, "batch_size": 16, "workers": 0}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finishing") / "photos"
    draw = np.random.default_rng(0)
    for label in range(3):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(70):
            pixels = draw.integers(0, 256, (16, 16, 3))
            pixels[..., label] = np.clip(pixels[..., label] + 16, 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"class{label}" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def calibrated(photos, tmp_path_factory):
    """A run whose confidence is corrected."""
    return paucal.train(photos, output=tmp_path_factory.mktemp("calibrated") / "run", **SETTINGS)


@pytest.fixture(scope="module")
def averaged(photos, tmp_path_factory):
    """A run that averages epochs and leaves the confidence as it is."""
    output = tmp_path_factory.mktemp("averaged") / "run"
    return paucal.train(photos, output=output, soup=4, calibrate="none", **SETTINGS)


@pytest.fixture(scope="module")
def unfinished(photos, tmp_path_factory):
    """The folder of a run whose steps are all done, and which keeps three epochs to average."""

    def stop(*_):
        raise KeyboardInterrupt

    output = tmp_path_factory.mktemp("unfinished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conclusion, "finish_model", stop)
        with pytest.raises(KeyboardInterrupt):
            paucal.train(photos, output=output, soup=3, **SETTINGS)
    return output


def logits_of(folder, part):
    run, model = RunFolder(folder), load_trained(folder)
    images = open_again(run)
    rows = read_split(run.split, images).indices(part)
    loader = make_eval_loader(images, rows, model.card.preprocessing.transform(), 16, 0)
    return predict_all(model.module, loader, "cpu")


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture
def refitted(monkeypatch):
    """Return a function that offers a head with a score to the second of two processes."""

    def finish_with(score: float) -> tuple[finishing.PostTrainingChanges, list[str]]:
        head = SimpleNamespace(name="a head", score=score, losses=[0.1], deployed=lambda *_: pytest.fail("written"))
        monkeypatch.setattr(finishing, "refit_head", lambda *_: head)
        monkeypatch.setattr(finishing, "rank", lambda: 1)
        setup: Any = SimpleNamespace(
            tune_record=TuneRecord(probe=EvaluatedModel("probe", 0.8, 1.0, {"losses": [0.2]})),
            data=SimpleNamespace(primary_metric=SimpleNamespace(format_score=lambda *_: "score")),
            card=None,
        )
        lines: list[str] = []
        run, outcome, tuned, console = (cast(Any, SimpleNamespace(**found)) for found in (
            {}, {"best": {}}, {"module": None, "epochs": (3,)}, {"say": lines.append},
        ))  # fmt: skip
        return finishing._try_refitted_head(run, setup, outcome, finishing.PostTrainingChanges(), tuned, console), lines

    return finish_with


@pytest.mark.parametrize(("first", "own", "kept"), [(True, False, True), (False, True, False)])
def test_refitted_head__is_kept_where_the_first_process_prefers_it_and_written_by_it_alone(
    monkeypatch, refitted, first, own, kept
):
    """On the second of two processes, whose own fit says otherwise."""
    waits: list[bool] = []
    monkeypatch.setattr(finishing, "is_better", lambda *_: own)
    monkeypatch.setattr(finishing, "broadcast_value", lambda flag: first)
    monkeypatch.setattr(finishing, "wait_for_all", lambda: waits.append(True))
    done, _ = refitted(0.9)
    assert done == (
        finishing.PostTrainingChanges((3,), 0.9, head="a head") if kept else finishing.PostTrainingChanges()
    )
    assert len(waits) == kept


@pytest.mark.parametrize("score", [0.9, 0.8, 0.7])
def test_refitted_head__that_is_kept_for_its_loss_alone_is_not_called_better(refitted, score):
    done, lines = refitted(score)
    record, outcome = TuneRecord(), cast(Any, SimpleNamespace(best={}, rows=[]))
    reason = describe_kept_model(record, outcome, done, selected=True)
    by_loss = score < 0.9
    assert ("better on the validation images" in reason) != by_loss
    assert ("its loss on the validation images is lower than those of its tuned head" in reason) == by_loss
    where = ", where the loss is higher" if by_loss else ""
    assert lines == [f"kept a head fitted to the tuned features, a head: score, 80.0 % without this head{where}"]


def test_temperature__is_stored_with_the_model_and_in_all_scores(calibrated):
    result = calibrated
    temperature, found = load_trained(result.folder).card.temperature, logits_of(result.folder, "test")
    assert temperature != 1.0
    assert result.metrics["loss"] == pytest.approx(
        float(F.cross_entropy(found.logits / temperature, found.labels)), rel=1e-4
    )
    told = summary_of(result.folder)["calibration"]
    assert told["temperature"] == temperature
    assert told["images"] == len(logits_of(result.folder, "val"))
    assert told["loss"] == pytest.approx([float(F.cross_entropy(found.logits, found.labels)), result.metrics["loss"]])
    assert told["error"][1] == pytest.approx(result.metrics["calibration_error"], abs=1e-5)
    again = paucal.evaluate(result.folder)
    assert again.metrics["loss"] == pytest.approx(result.metrics["loss"], rel=1e-4)
    page = (result.folder / "report.html").read_text()
    assert f"temperature of {temperature:.2f}" in page


def test_temperature__is_the_likeliest_on_the_validation_images(calibrated):
    found, temperature = logits_of(calibrated.folder, "val"), load_trained(calibrated.folder).card.temperature

    def cost(t):
        return float(F.cross_entropy(found.logits.double() / t, found.labels, reduction="sum")) + np.log(t) ** 2 * 2

    assert cost(temperature) < min(cost(temperature * 1.05), cost(temperature / 1.05))


def test_calibrate_none__leaves_the_probabilities_as_they_are(averaged):
    assert load_trained(averaged.folder).card.temperature == 1.0
    assert summary_of(averaged.folder)["calibration"] is None


def test_soup__is_the_model_where_the_validation_images_prefer_it(photos, tmp_path, monkeypatch):
    """Epochs of one run from the same weights; whether the mean wins depends on them, so that both ends are made."""
    files = {}
    original = finishing.greedy_soup

    def seen(paths, judge):
        mean, chosen, _ = original(paths, lambda state: (0.0, 0.0))  # each is as good as the others: all are taken
        files.update({path.name: read_weights(path) for path in paths})
        return mean, chosen, (1.0, 0.0)  # better than any epoch

    monkeypatch.setattr(finishing, "greedy_soup", seen)
    result = paucal.train(photos, output=tmp_path / "run", soup=3, **SETTINGS)
    assert len(files) == 3
    model = read_weights(RunFolder(result.folder).weights)
    for name, value in model.items():
        if not value.is_floating_point():
            continue
        mean = torch.stack([state[name].double() for state in files.values()]).mean(0)
        assert torch.allclose(value.double(), mean, atol=1e-6), name
    told = summary_of(result.folder)
    assert len(told["averaged_epochs"]) == 3
    assert told["kept"].startswith("the mean of the weights of epochs ")
    assert told["kept_val_top1"] == 1.0
    assert not list((result.folder / "checkpoints").glob("epoch-*"))


@pytest.mark.parametrize(
    ("average", "best", "chosen"), [(1.0, 0.5, 2), (0.999, 1.0, 0)], ids=["average better", "best epoch better"]
)
def test_soup__is_chosen_by_the_first_process(average, best, chosen, unfinished, tmp_path, monkeypatch):
    original, averaging = finishing.greedy_soup, []

    def choose(paths, judge):
        averaging.append(True)
        outcome = original(paths, judge)
        averaging.clear()
        return outcome

    def received(value):  # as if the first process had other scores, and had kept two epochs alone
        if isinstance(value, tuple):
            return average if averaging else best, 0.0
        return value[:2] if isinstance(value, list) else value

    monkeypatch.setattr(finishing, "greedy_soup", choose)
    monkeypatch.setattr(finishing, "broadcast_value", received)
    result = paucal.train(resume=shutil.copytree(unfinished, tmp_path / "run"))
    assert len(summary_of(result.folder)["averaged_epochs"]) == chosen


@pytest.mark.slow
def test_soup__that_is_not_better_leaves_the_best_epoch(photos, tmp_path, monkeypatch):
    plain = paucal.train(photos, output=tmp_path / "plain", **SETTINGS)
    best = read_weights(RunFolder(plain.folder).weights)
    original = finishing.greedy_soup
    monkeypatch.setattr(finishing, "greedy_soup", lambda paths, judge: (*original(paths, judge)[:2], (0.0, 0.0)))
    result = paucal.train(photos, output=tmp_path / "run", soup=3, **SETTINGS)
    found = read_weights(RunFolder(result.folder).weights)
    assert all(torch.equal(found[name], value) for name, value in best.items())
    assert summary_of(result.folder)["averaged_epochs"] == []


def test_soup__score_is_that_of_the_stored_model(averaged):
    found = quick_scores(logits_of(averaged.folder, "val"))
    told = summary_of(averaged.folder)
    assert found["top1"] == pytest.approx(told["kept_val_top1"])
    assert told["kept_val_top1"] >= told["best_val_top1"]


@pytest.mark.slow
def test_soup__of_a_run_that_was_stopped_is_that_of_one_that_was_not(photos, tmp_path):
    whole = paucal.train(photos, output=tmp_path / "whole", soup=3, **SETTINGS)
    with pytest.raises(paucal.UserError, match="--resume"):
        paucal.train(photos, output=tmp_path / "parts", soup=3, time_limit="0.01s", **SETTINGS)
    parts = paucal.train(resume=tmp_path / "parts", time_limit="1h")
    expected, found = (read_weights(RunFolder(one.folder).weights) for one in (whole, parts))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert summary_of(parts.folder)["calibration"] == summary_of(whole.folder)["calibration"]


def test_without_validation_images__nothing_is_fitted_or_averaged(photos, tmp_path):
    result = paucal.train(photos, output=tmp_path / "run", soup=3, val_fraction=0, **SETTINGS)
    assert load_trained(result.folder).card.temperature == 1.0
    assert summary_of(result.folder)["calibration"] is None
    assert summary_of(result.folder)["averaged_epochs"] == []


@pytest.mark.parametrize("flipped", [0.5, 0.0])
def test_mirror__is_tried_on_validation_images_that_training_mirrored(photos, tmp_path, monkeypatch, flipped):
    tried = []

    def sentence(plain, mirrored, labels):
        tried.append((len(labels), bool(torch.equal(plain, mirrored))))
        return "mirror images help"

    monkeypatch.setattr(finishing, "mirror_sentence", sentence)
    result = paucal.train(photos, output=tmp_path / "run", **{**SETTINGS, "epochs": 1}, hflip=flipped)
    judges = len(logits_of(result.folder, "val"))
    assert tried == ([(judges, False)] if flipped else [])
    assert ("mirror images help" in summary_of(result.folder)["remarks"]) is bool(flipped)


def test_mirror_sentence__is_silent_where_fewer_images_are_right():
    labels = torch.zeros(40, dtype=torch.long)
    plain = torch.tensor([[0.1, 0.0]]).repeat(40, 1)  # all right, none sure
    mirrored = torch.tensor([[3.0, 0.0]]).repeat(40, 1)
    assert "100.0 % of the validation images are classified correctly instead of 100.0 %" in finishing.mirror_sentence(
        plain, mirrored, labels
    )
    mirrored[0] = torch.tensor([0.0, 0.1])
    assert finishing.mirror_sentence(plain, mirrored, labels) == ""
