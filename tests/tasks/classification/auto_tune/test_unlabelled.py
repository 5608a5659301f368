"""Images without labels beside labelled ones: what they teach a head, which of them are left out, and the run."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.cli.main import main
from paucal.data.images import evenly_spaced
from paucal.data.sources.opening import open_images
from paucal.evaluation.seen_images import iterate_seen_images
from paucal.methods.training_settings import TrainSettings
from paucal.models.features import ClassifierInputExtractor, StageClassifierInputExtractor
from paucal.models.trained import load_trained
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, resume
from paucal.runs import RunFolder
from paucal.runs.weights import save_weights
from paucal.tasks.classification import checks, finishing
from paucal.tasks.classification.assembly import assemble
from paucal.tasks.classification.auto_tune import first_model, refit, unlabelled_head
from paucal.tasks.classification.auto_tune import unlabelled as step
from paucal.tasks.classification.auto_tune.heads import (
    HeadComparison,
    HeldOutLogits,
    fit_gaussian,
    fit_soft_gaussian,
    read_held_out_logits,
)
from paucal.tasks.classification.auto_tune.probe import Head, fit_logistic_regression
from paucal.tasks.classification.auto_tune.record import EvaluatedModel, TuneRecord
from paucal.tasks.classification.auto_tune.resumed_features import FROZEN_FILE
from paucal.tasks.classification.auto_tune.unlabelled_head import (
    GAUSSIAN_HEAD,
    LABELS_ALONE,
    MEAN_OF_HEADS,
    MIN_LEAD,
    brier_scores,
    compare_unlabelled_heads,
    compute_principal_axes,
    find_temperature,
)
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError
from tasks.classification.auto_tune.carried import ONE_WAY, install
from tasks.classification.auto_tune.test_auto_tune import SHORT, RecordingConsole, photos, rungs_of, started_from

CLASSES, DIM = 4, 60


def draw(rows, seed, apart=1.0):
    """Draw features of four classes that differ in a few directions of a strong common scatter."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(0)
    mixing = torch.randn(DIM, DIM, generator=fixed) * torch.logspace(1, -1, DIM)
    centres = apart * torch.randn(CLASSES, DIM, generator=fixed)
    labels = torch.arange(rows) % CLASSES
    return (centres[labels] + torch.randn(rows, DIM, generator=generator)) @ mixing, labels


def base(features, labels):
    fitted = fit_logistic_regression(features.double(), labels, CLASSES, 100.0)
    return fitted.weight.float(), fitted.bias.float()


def test_shares__of_whole_images_are_the_gaussian_head():
    features, labels = draw(90, 1)
    whole = fit_gaussian(features.double(), labels, CLASSES)
    parts = fit_soft_gaussian(features.double(), torch.nn.functional.one_hot(labels, CLASSES).double())
    torch.testing.assert_close(parts.weight, whole.weight)
    torch.testing.assert_close(parts.bias, whole.bias)


def test_shares__of_half_an_image_twice_are_the_whole_image():
    features, _ = draw(70, 2)
    shares = torch.rand(70, CLASSES, generator=torch.Generator().manual_seed(3)).double()
    once = fit_soft_gaussian(features.double(), shares)
    twice = fit_soft_gaussian(features.double().repeat(2, 1), shares.repeat(2, 1) / 2)
    torch.testing.assert_close(twice.weight, once.weight)


def test_divisor__gives_the_wanted_confidence():
    scores = 1000 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    for wanted in (0.4, 0.9):
        sure = (scores / find_temperature(scores, wanted)).softmax(1).amax(1).mean()
        assert float(sure) == pytest.approx(wanted, abs=1e-3)


def test_brier__is_the_squared_distance_from_the_truth():
    logits = torch.log(torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], [[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]]))
    first = (0.3**2 + 0.2**2 + 0.1**2 + 0.5**2 + 2 * 0.25**2) / 2
    second = (2 * 0.1**2 + 0.2**2 + (2 / 3) ** 2 + 2 / 9) / 2
    torch.testing.assert_close(brier_scores(logits, torch.tensor([0, 1])), torch.tensor([first, second]))


def test_pool__of_fewer_images_than_features_has_only_axes_that_vary():
    features = torch.randn(40, 200, generator=torch.Generator().manual_seed(1)) + 5
    pool = compute_principal_axes(features.repeat(2, 1))
    assert pool.rows.shape == (80, 39)
    standard = (features - pool.mean) / pool.deviation
    torch.testing.assert_close(pool.rows[:40] @ pool.axes.T, standard, atol=1e-4, rtol=0)


def test_race__unlabelled_images_of_the_classes_make_the_head_better():
    features, labels = draw(32, 4)
    unlabelled, _ = draw(1500, 5)
    result = compare_unlabelled_heads(features, labels, CLASSES, unlabelled, base, seed=0)
    assert result.name != LABELS_ALONE
    assert result.lead > result.lead_error > 0
    assert result.held_out.is_correct.shape == (3, 32)
    others, truth = draw(2000, 6)
    weight, bias = base(features, labels)
    alone = float(((others @ weight.T + bias).argmax(1) == truth).double().mean())
    both = float((result.head.scores(others).argmax(1) == truth).double().mean())
    assert both > alone + 0.03


def test_race__unlabelled_images_without_the_classes_change_nothing():
    features, labels = draw(32, 4)
    noise = torch.randn(1500, DIM, generator=torch.Generator().manual_seed(7))
    result = compare_unlabelled_heads(features, labels, CLASSES, noise, base, seed=0)
    assert (result.name, result.head) == (LABELS_ALONE, None)
    assert not result.lead > MIN_LEAD * result.lead_error


@pytest.mark.parametrize(("errors", "is_kept"), [(0.4, False), (0.6, True)])
def test_race__a_lead_of_half_a_standard_error_decides(errors, is_kept, monkeypatch):
    features, labels = draw(32, 4)
    spread = torch.linspace(-1, 1, len(labels), dtype=torch.float64)
    lead = spread + errors * spread.std() / len(labels) ** 0.5
    scores = iter([torch.zeros_like(lead), -lead, 1 - lead])  # of the labels alone and of the two other heads
    monkeypatch.setattr(unlabelled_head, "brier_scores", lambda *_: next(scores))
    result = compare_unlabelled_heads(features, labels, CLASSES, draw(500, 5)[0], base, seed=0)
    assert result.lead == pytest.approx(errors * result.lead_error)
    assert (result.head is not None) == is_kept


@pytest.mark.parametrize(("images", "name"), [(40, GAUSSIAN_HEAD), (44, MEAN_OF_HEADS)])
def test_race__takes_the_gaussian_head_with_few_labels_and_the_most_accurate_one_with_more(images, name, monkeypatch):
    labels = torch.arange(images) % CLASSES
    features = torch.nn.functional.one_hot(labels, DIM).float()
    right, none = torch.eye(CLASSES, DIM), torch.zeros(CLASSES)
    half_right = right[[0, 1, 3, 2]]
    heads = {LABELS_ALONE: (0 * right, none), GAUSSIAN_HEAD: (half_right, none), MEAN_OF_HEADS: (right, none)}
    monkeypatch.setattr(unlabelled_head, "fit_heads", lambda *_: heads)
    result = compare_unlabelled_heads(features, labels, CLASSES, draw(500, 5)[0], base, seed=0)
    assert result.losses[MEAN_OF_HEADS] < result.losses[GAUSSIAN_HEAD] < result.losses[LABELS_ALONE]
    assert result.name == name


@pytest.fixture(scope="module")
def sorted_photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("sorted")
    photos(root / "all", each=50)
    for image in sorted((root / "all").glob("*/*.png")):
        labelled = int(image.stem) < 20
        target = root / "photos" / image.parent.name if labelled else root / "more"
        target.mkdir(parents=True, exist_ok=True)
        image.rename(target / (image.name if labelled else f"{image.parent.name}-{image.name}"))
    return root


@pytest.fixture
def data(sorted_photos, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    # test_few_images makes runs with all repeats.
    monkeypatch.setattr("paucal.tasks.classification.auto_tune.heads.N_REPEATS", 1)
    for name in ("photos", "more"):
        shutil.copytree(sorted_photos / name, tmp_path / name)
    return tmp_path / "photos"


def won(features, labels, n_classes, unlabelled, base, seed, groups):
    """Return a winner that is easy to recognise, and right on all held-out images but one."""
    weight = torch.randn(n_classes, features.shape[1], generator=torch.Generator().manual_seed(8)) / 100
    logits = torch.nn.functional.one_hot(labels, n_classes).double()[None].repeat(3, 1, 1)
    logits[:, 0] = -logits[:, 0]
    held_out = HeldOutLogits(torch.arange(len(labels)), logits, labels)
    head = Head(weight, torch.zeros(n_classes), 100.0, None)
    return HeadComparison(GAUSSIAN_HEAD, head, {}, 0.2, 0.1, held_out)


def test_run__keeps_the_better_head_and_deploys_it_as_any_other(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(step, "compare_unlabelled_heads", won)
    console = RecordingConsole()
    result = started_from(data, tmp_path / "run", console, unlabelled=str(tmp_path / "more"))
    found = rungs_of(result.folder)["unlabelled"]
    assert found["details"]["kept"] is True
    assert any(" images without labels are kept (a lead of 0.200 ± 0.100" in line for line in console.lines)
    assert found["details"]["images"] + left_out(console) == 90
    model = load_trained(result.folder)
    assert model.card.reads_stages
    classifier = next(part for part in model.module.modules() if type(part).__name__ == "StageClassifier")
    expected = torch.randn(classifier.weight.shape, generator=torch.Generator().manual_seed(8)) / 100
    torch.testing.assert_close(classifier.weight, expected)
    summary = json.loads((result.folder / "summary.json").read_text())
    assert [row["kept"] for row in summary["rungs"]] == [False, True]
    assert summary["kept_val_top1"] == found["score"]
    assert "images without labels" in (result.folder / "report.html").read_text()
    assert RunFolder(result.folder).settings["unlabelled"] == str(tmp_path / "more")
    assert not (result.folder / step.FEATURES_FILE).exists()
    own, more = iterate_seen_images(RunFolder(result.folder))
    assert (own.labelled, more.labelled, len(more.rows)) == (True, False, found["details"]["images"])
    assert more.contains(open_images(tmp_path / "more", labelled=False)).sum() == len(more.rows)
    assert main(["eval", str(result.folder), "--output", str(tmp_path / "eval")]) == 0
    assert "has seen none of the 12 test images" in capsys.readouterr().out
    # `test_stage_heads` exports such a network; the hub's format has no place for its classifier.
    assert main(["export", str(result.folder), "--format", "hub", "--output", str(tmp_path / "out")]) == 2
    assert "this classifier reads several stages" in capsys.readouterr().err


@pytest.mark.parametrize(("most", "staged", "stored"), [(None, True, False), (30, False, True), (None, True, True)])
def test_run__reads_them_again_with_the_tuned_network_and_fits_a_head_to_its_features(
    data, tmp_path, monkeypatch, most, staged, stored
):
    monkeypatch.setattr(step, "compare_unlabelled_heads", won)
    if not stored:
        monkeypatch.setattr(step, "max_activation_bytes", lambda _: 0)
    if most is not None:
        monkeypatch.setattr(step, "_count_images_to_reread", lambda *_: most)
    if not staged:  # as in a network without maps of stages
        for module in (first_model, refit):
            monkeypatch.setattr(module, "last_stage_poolings", lambda *_: ())
    monkeypatch.setattr(refit, "HEADS", {})
    monkeypatch.setattr(
        refit, "min", lambda heads, key: next((h for h in heads if h.name == GAUSSIAN_HEAD), heads[0]), raising=False
    )
    monkeypatch.setattr(finishing, "is_better", lambda *_: True)
    pools, limits = [], []
    monkeypatch.setattr(
        refit, "compute_principal_axes", lambda features: pools.append(features) or compute_principal_axes(features)
    )

    @contextmanager
    def one_thread(count):
        limits.append(count)
        yield
        limits.pop()

    def read(*given):
        assert not limits, "a forward pass may use all threads"
        return first_model.compute_frozen_features(*given)

    monkeypatch.setattr(refit, "threadpool_limits", one_thread)
    monkeypatch.setattr(refit, "compute_frozen_features", read)
    console = RecordingConsole()
    settings = {"unlabelled": str(tmp_path / "more"), "epochs": 1, "lr": 1e-4, **ONE_WAY}
    result = started_from(data, tmp_path / "run", console, **settings)
    details, model = rungs_of(result.folder)["unlabelled"]["details"], load_trained(result.folder)
    assert details["read_again"] == (most or details["images"])
    assert details.get("resumed") == (details["read_again"] if stored else None)
    assert not (result.folder / FROZEN_FILE).exists()
    said = f"after tuning, {details['read_again']} of these images are read again, "
    assert any(line.startswith(said) for line in console.lines)
    rungs = json.loads((result.folder / "summary.json").read_text())["rungs"]
    assert [row["name"] for row in rungs if row["kept"]] == [
        f"epoch 1, with a head fitted to its features ({GAUSSIAN_HEAD})"
    ]
    assert [len(pool) for pool in pools] == [details["read_again"]]
    _, learned = iterate_seen_images(RunFolder(result.folder))
    more = open_images(tmp_path / "more", labelled=False)
    rows = np.flatnonzero(learned.contains(more))[evenly_spaced(details["images"], details["read_again"])][:5]
    # The pool holds what the deployed network computes.
    inputs = (
        StageClassifierInputExtractor(model.module, model.card.preprocessing.image_size)
        if staged
        else ClassifierInputExtractor(model.module)
    )
    batch = torch.stack([model.card.preprocessing.transform()(more.store.read(int(row)))[0] for row in rows])
    with torch.no_grad():  # stored outputs are in float16
        torch.testing.assert_close(inputs(batch), pools[0][:5], atol=2e-3 if stored else 1e-4, rtol=1e-3)
    assert model.card.reads_stages == staged


def test_run__whose_images_without_labels_were_moved_meanwhile_ends_without_them(data, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "compare_unlabelled_heads", won)
    monkeypatch.setattr(step, "max_activation_bytes", lambda _: 0)  # no stored outputs in place of the images
    remember = finishing.read_listed_images

    def move_first(*given):
        (tmp_path / "more").rename(tmp_path / "elsewhere")
        return remember(*given)

    monkeypatch.setattr(finishing, "read_listed_images", move_first)
    console = RecordingConsole()
    settings = {"unlabelled": str(tmp_path / "more"), "epochs": 1, "lr": 1e-4, **ONE_WAY}
    result = started_from(data, tmp_path / "run", console, **settings)
    assert any(
        "the tuned network does not use the images" in line and "more does not exist" in line for line in console.lines
    )
    assert result.report.images == 12


@pytest.mark.parametrize(
    ("labelled", "budget", "left", "epochs", "too_few", "images"),
    [
        (100, 0.0, 0.0, 3, False, 500),
        (100, 300.0, 200.0, None, False, 300),
        (100, 300.0, 80.0, None, False, 200),
        (100, 300.0, -5.0, None, False, 0),
        (100, 1000.0, 900.0, None, False, 500),
        (100, 1000.0, 900.0, None, True, 0),
        (100, 0.0, 0.0, 0, False, 0),
        (300, 300.0, 200.0, None, False, 75),
        (300, 0.0, 0.0, 3, False, 500),
    ],
)
def test_count_reread__leaves_most_of_the_time_for_tuning_and_more_where_labels_are_not_few(
    monkeypatch, labelled, budget, left, epochs, too_few, images
):
    monkeypatch.setattr(step, "cannot_evaluate_tuning", lambda _: too_few)
    data = SimpleNamespace(split_indices={"train": range(labelled)}.__getitem__)
    setup = SimpleNamespace(settings=SimpleNamespace(epochs=epochs), data=data)
    state = SimpleNamespace(
        record=SimpleNamespace(budget=budget), setup=setup, image_seconds=0.2, seconds_left=lambda: left
    )
    assert step._count_images_to_reread(state, 500) == images


def left_out(console):
    return sum(int(line.split()[2]) for line in console.lines if line.startswith("left out: "))


def test_run__leaves_out_copies_of_its_own_images_and_images_unlike_them(data, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "MANY_LABELS_PER_CLASS", 10)  # they are read all the same, as the time is not limited
    given = {**SHORT, "data": str(data), "epochs": 0}
    split = assemble(TrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole().progress).data
    for kind, count in (("test", 4), ("train", 3)):
        for row in split.split_indices(kind)[:count]:
            image = Image.fromarray(np.asarray(split.images.store.read(int(row))))  # other bytes, the same pixels
            image.save(tmp_path / "more" / f"copy-{kind}-{row}.png", compress_level=1)
    for number in range(9):  # nothing like noise in any colour
        pixels = np.full((40, 40, 3), 20 * number, dtype=np.uint8)
        pixels[: 4 * number + 2] = 255 - 10 * number
        Image.fromarray(pixels).save(tmp_path / "more" / f"flat-{number}.png")
    console = RecordingConsole()
    result = started_from(data, tmp_path / "run", console, unlabelled=str(tmp_path / "more"), epochs=0)
    assert "left out: 4 images without labels that look like a validation or test image" in console.lines
    assert "left out: 3 images without labels that look like a training image" in console.lines
    unlike = next(line for line in console.lines if line.endswith("not like the training images"))
    assert 9 <= int(unlike.split()[2]) < 30
    assert rungs_of(result.folder)["unlabelled"]["details"]["images"] == 106 - left_out(console) > 0
    assert not any("are not read: with" in line for line in console.lines)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["compare_unlabelled_heads", "compute_frozen_features"])
def test_run__stopped_in_the_step_goes_on_to_the_same_model(data, tmp_path, monkeypatch, moment):
    monkeypatch.setattr(step, "compare_unlabelled_heads", won)
    given = {"unlabelled": str(tmp_path / "more"), "epochs": 0}
    whole = started_from(data, tmp_path / "whole", **given)
    with monkeypatch.context() as patch:
        patch.setattr(step, moment, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert isinstance(started_from(data, tmp_path / "run", **given), Stopped)
    assert (tmp_path / "run" / step.FEATURES_FILE).exists() == (moment == "compare_unlabelled_heads")
    assert rungs_of(tmp_path / "run")["unlabelled"] is None
    result = resume(TrainingJob(), tmp_path / "run", SilentConsole())
    ours, theirs = (load_trained(one.folder).module.state_dict() for one in (result, whole))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert result.report == whole.report


def test_run__of_few_images_reports_the_cross_validated_score_of_the_new_head(data, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "compare_unlabelled_heads", won)
    few = photos(tmp_path / "few", each=6)
    result = started_from(few, tmp_path / "run", unlabelled=str(tmp_path / "more"))
    assert rungs_of(result.folder)["unlabelled"]["score"] == pytest.approx(17 / 18)
    assert result.report.scores["top1"].value == pytest.approx(17 / 18)


@pytest.mark.parametrize("unlabelled", [False, True])
def test_run__of_fewer_features_than_images_stores_positions_among_all(data, tmp_path, monkeypatch, unlabelled):
    monkeypatch.setattr(step, "compare_unlabelled_heads", won)
    monkeypatch.setattr(first_model, "PROBE_ONLY_FRACTION", 1e-9)
    few, more = photos(tmp_path / "few", each=6), {"unlabelled": str(tmp_path / "more")} if unlabelled else {}
    console = RecordingConsole()
    result = started_from(few, tmp_path / "run", console, time="10m", **more)
    assert "note: the time allows features of 6 of the 18 training images" in console.lines
    assert (rungs_of(result.folder)["unlabelled"] is not None) == unlabelled
    held_out = read_held_out_logits(RunFolder(result.folder))
    assert len(held_out.rows.unique()) == 6
    labels = torch.from_numpy(open_images(few).labels)  # all images train
    torch.testing.assert_close(labels[held_out.rows], held_out.labels)


def test_run__goes_on_without_images_that_cannot_be_read(data, tmp_path):
    for image in (tmp_path / "more").iterdir():
        image.write_bytes(b"no image")
    console = RecordingConsole()
    result = started_from(data, tmp_path / "run", console, unlabelled=str(tmp_path / "more"), epochs=0)
    found = rungs_of(result.folder)["unlabelled"]["details"]
    assert (found["images"], found["kept"]) == (0, False)
    assert found["why"].startswith("--unlabelled: ")
    assert "cannot be read" in found["why"]
    assert f"note: {found['why']}" in console.lines
    assert result.report.images == 12


def test_run__without_time_for_them_gives_that_reason(data, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "max_time_fraction", lambda _: 0.0)
    console, more = RecordingConsole(), {"unlabelled": str(tmp_path / "more")}
    result = started_from(photos(tmp_path / "few", each=6), tmp_path / "run", console, time="10m", **more)
    why = "--unlabelled: there is no time left for the images without labels; give a longer --time"
    assert rungs_of(result.folder)["unlabelled"]["details"]["why"] == why
    assert f"note: {why}" in console.lines
    assert not any("usable image" in line for line in console.lines)


def test_run__with_many_labels_for_each_class_reads_none_in_a_limited_time(data, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "MANY_LABELS_PER_CLASS", 10)
    monkeypatch.setattr(step, "_is_tuned", lambda _: True)
    console = RecordingConsole()
    result = started_from(data, tmp_path / "run", console, unlabelled=str(tmp_path / "more"), time="10m")
    details = rungs_of(result.folder)["unlabelled"]["details"]
    assert "10 or more labelled images per class on average" in details["why"]
    assert details["images"] == 0
    assert any("are not read: with" in line for line in console.lines)


@pytest.mark.parametrize(("labelled", "many"), [(199, False), (200, True)])
def test_many_labels__are_a_hundred_per_class(labelled, many):
    data = SimpleNamespace(split_indices={"train": range(labelled)}.__getitem__)
    assert step.has_many_labels(SimpleNamespace(data=data, card=SimpleNamespace(classes=("a", "b")))) == many


@pytest.mark.parametrize(
    ("labelled", "is_tuned", "share"), [(2000, True, 0.05), (300, True, 0.05), (299, True, 0.4), (100, False, 0.7)]
)
def test_time_share__is_larger_the_less_tuning_can_gain(labelled, is_tuned, share, monkeypatch):
    monkeypatch.setattr(step, "_is_tuned", lambda _: is_tuned)
    setup = SimpleNamespace(data=SimpleNamespace(split_indices={"train": range(labelled)}.__getitem__))
    assert step.max_time_fraction(setup) == share


@pytest.mark.parametrize(
    ("left", "too_few", "most"), [(900.0, False, 3000), (300.0, False, 1000), (300.0, True, 3000), (900.0, True, 7000)]
)
def test_read_images__leave_two_thirds_of_the_time_that_is_left_for_tuning(left, too_few, most, monkeypatch, tmp_path):
    monkeypatch.setattr(step, "_is_tuned", lambda _: not too_few)

    def read(settings, data, max_images, console):
        raise UserError(f"at most {max_images}")

    monkeypatch.setattr(step, "read_unlabelled", read)
    data, card = SimpleNamespace(split_indices={"train": range(100)}.__getitem__), SimpleNamespace(classes=("a", "b"))
    setup = SimpleNamespace(settings=None, data=data, card=card)
    state = SimpleNamespace(
        run=SimpleNamespace(path=tmp_path),
        setup=setup,
        record=SimpleNamespace(budget=1000.0),
        seconds_left=lambda: left,
        precision=SimpleNamespace(speed=1.0),
        image_seconds=0.1,
        console=None,
    )
    with pytest.raises(UserError, match=rf"at most {most}$"):
        step._select_images(state, None)
    limit = {"max_images": torch.tensor(2222)}
    for stored, expected in ((limit, 2222), ({"features": torch.zeros(1)}, most)):  # of a stopped run, and an old one
        save_weights(tmp_path / step.FEATURES_FILE, stored)
        with pytest.raises(UserError, match=rf"at most {expected}$"):
            step._select_images(state, None)


def test_tuned_model__has_to_beat_the_better_of_both_first_models(data):
    given = {**SHORT, "data": str(data)}
    setup = assemble(TrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole().progress)
    for score, floor in ((0.80, 0.82), (0.84, 0.84)):
        more = EvaluatedModel("more", score, 1.0, {"images": 60, "kept": True})
        record = TuneRecord(probe=EvaluatedModel("probe", 0.82, 1.0), unlabelled=more)
        assert replace(setup, tune_record=record).validation().floor == floor
        assert record.first_model.score == score


def test_run__is_checked_again_after_unreadable_images_were_left_out(data, tmp_path):
    (data / "class0" / "broken.png").write_bytes(b"no image")
    given = {**SHORT, "data": str(data), "on_bad_image": "skip", "unlabelled": str(tmp_path / "nowhere")}
    del given["img_size"]
    with pytest.raises(UserError, match="nowhere does not exist"):
        assemble(TrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole().progress)
    given["unlabelled"] = str(tmp_path / "more")
    setup = assemble(TrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole().progress)
    assert [line for line in setup.remarks if "without labels" in line] == [
        f"90 images without labels in {tmp_path / 'more'}"
    ]


def test_run__of_a_model_without_linear_classifier_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "linear_classifier", lambda _: None)
    with pytest.raises(UserError, match=r"--unlabelled replaces the model's linear classifier, but .* has no linear"):
        started_from(data, tmp_path / "run", unlabelled=str(tmp_path / "more"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"unlabelled": "nowhere"}, "nowhere does not exist"),
        (
            {"init": None, "model": "vit_mini", "unlabelled": "my more"},
            r"no such features. Remove --unlabelled.*'paucal predict RUN 'my more' --to csv --output PREDICTIONS'"
            r".* train on \S*photos:PREDICTIONS with --val-fraction 0. Then \S*photos needs a 'test' folder",
        ),
    ],
)
def test_run__refuses_before_it_starts(data, tmp_path, given, words):
    given = {"unlabelled": str(tmp_path / "more"), **given}
    with pytest.raises(UserError, match=words):
        started_from(data, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
