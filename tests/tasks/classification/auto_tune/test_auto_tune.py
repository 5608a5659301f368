"""Auto-tuning from packaged weights: each step is evaluated, stored and resumable, and the probe is the floor."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import paucal
from paucal.cli.main import main
from paucal.data.loader import make_eval_loader
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.predictions import predict_all
from paucal.methods.training_settings import TrainSettings
from paucal.models.precision import FLOAT32
from paucal.models.trained import load_trained
from paucal.runner import initial_weights
from paucal.runner.console import SilentConsole
from paucal.runner.images import open_again
from paucal.runner.life import Stopped, begin, resume
from paucal.runner.time_budget import choose_time_or_epochs
from paucal.runs import RunFolder
from paucal.tasks.classification import finishing
from paucal.tasks.classification.assembly import PROCESSES_REMARK, assemble
from paucal.tasks.classification.auto_tune import auto_tune as auto_tune_module
from paucal.tasks.classification.auto_tune import first_model, refit, trials, tuning
from paucal.tasks.classification.auto_tune.auto_tune import MAX_SCRATCH_EPOCHS
from paucal.tasks.classification.auto_tune.first_model import pick_fastest_good_candidate, select_affordable_candidates
from paucal.tasks.classification.auto_tune.heads import HEADS
from paucal.tasks.classification.auto_tune.record import EvaluatedModel
from paucal.tasks.classification.auto_tune.trials import best_trial_index
from paucal.tasks.classification.job import TrainingJob
from paucal.training.length_correction import RunClock
from paucal.types import UserError
from tasks.classification.auto_tune.carried import MODEL, ONE_WAY, install

SHORT = {"img_size": [32], "batch_size": 16, "workers": 0, "device": "cpu"}


def photos(folder, each=80, classes=3, side=40):
    """Write images of classes that differ in colour, with much noise."""
    draw = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 256, (side, side, 3))
            pixels[..., label % 3] = np.clip(pixels[..., label % 3] + 14, 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"class{label}" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def shared_photos(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("shared") / "photos", each=40)


@pytest.fixture
def data(shared_photos, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    # test_few_images makes runs with all repeats.
    monkeypatch.setattr("paucal.tasks.classification.auto_tune.heads.N_REPEATS", 1)
    return shared_photos


class RecordingConsole(SilentConsole):
    """Remembers what is said."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, text):
        self.lines.append(text)
        super().say(text)


def started_from(data, output, console=None, **settings):
    given = {**SHORT, **settings, "data": str(data), "output": str(output)}
    return begin(TrainingJob(), TrainSettings(**given), dict.fromkeys(given, "flag"), console or SilentConsole())


def rungs_of(run):
    return json.loads((run / "rungs.json").read_text())


def test_climb__probe_trials_and_tuning_in_one_run(data, tmp_path):
    console = RecordingConsole()
    result = started_from(data, tmp_path / "run", console, epochs=2, batch_size=8)
    found, rows = rungs_of(result.folder), RunFolder(result.folder).read_rows()
    assert found["probe"]["details"]["images"] == (result.folder / "split.csv").read_text().count(",train,")
    assert [trial["name"] for trial in found["trials"]] == [
        preset.name for preset in tuning.presets_for(load(result).module)
    ]
    assert len(rows) == 2
    settings = RunFolder(result.folder).settings
    tried = [EvaluatedModel(one["name"], one["score"], one["seconds"], one["details"]) for one in found["trials"]]
    judges = (result.folder / "split.csv").read_text().count(",val,")
    assert judges == 12
    chosen = found["trials"][best_trial_index(tried, judges, [settings["img_size"]] * len(tried))]
    assert settings["lr"] == chosen["details"]["lr"]
    assert settings["eval_mode"] == chosen["details"]["eval_mode"]
    assert settings["freeze"] == chosen["details"].get("freeze")
    assert settings["model"].startswith(MODEL)
    assert not (result.folder / "trials").exists()
    summary = json.loads((result.folder / "summary.json").read_text())
    assert [row["kept"] for row in summary["rungs"]].count(True) == 1
    said = "\n".join(console.lines)
    assert "first model after" in said
    assert "plan: 2 epochs, as given; about" in said
    assert "How this model was chosen" in (result.folder / "report.html").read_text()


def load(result):
    return load_trained(result.folder)


def test_probe__is_the_model_that_tuning_begins_with(data, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(auto_tune_module, "choose_preset", stop)
    stopped = started_from(data, tmp_path / "run", epochs=1)
    assert isinstance(stopped, Stopped)
    found = rungs_of(tmp_path / "run")
    rows = [line.split(",") for line in (tmp_path / "run" / "split.csv").read_text().splitlines()]
    part, path = rows[0].index("split"), rows[0].index("key")
    label = rows[0].index("class") if "class" in rows[0] else None
    model = load_trained(tmp_path / "run")
    val = [row for row in rows[1:] if row[part] == "val"]
    right = 0
    for row in val:
        name = row[path].split("/")[0] if label is None else row[label]
        given = model.probabilities([Image.open(data / row[path])])[0].argmax()
        right += model.classes[int(given)] == name
    assert right / len(val) == pytest.approx(found["probe"]["score"])


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["prepare_first_model", "choose_preset", "run_trial"])
def test_climb__stopped_anywhere_goes_on_to_the_same_model(data, tmp_path, monkeypatch, moment):
    whole = started_from(data, tmp_path / "whole", epochs=1, batch_size=8)
    place = tuning if moment == "run_trial" else auto_tune_module
    real, calls = getattr(place, moment), []

    def interrupted(*arguments, **settings):
        calls.append(1)
        if len(calls) == (2 if moment == "run_trial" else 1):  # between the two trials
            raise KeyboardInterrupt
        return real(*arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(place, moment, interrupted)
        if moment == "prepare_first_model":
            with pytest.raises(KeyboardInterrupt):
                started_from(data, tmp_path / "run", epochs=1, batch_size=8)
        else:
            assert isinstance(started_from(data, tmp_path / "run", epochs=1, batch_size=8), Stopped)
    assert rungs_of(tmp_path / "run")["plan"] == ""
    result = resume(TrainingJob(), tmp_path / "run", SilentConsole())
    assert [t["score"] for t in rungs_of(result.folder)["trials"]] == [
        t["score"] for t in rungs_of(whole.folder)["trials"]
    ]
    ours, theirs = load(result).module.state_dict(), load(whole).module.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_probe__is_the_floor(data, tmp_path, monkeypatch):
    monkeypatch.setattr(finishing, "refit_head", lambda *_: None)  # on some processors, its features are good enough
    result = started_from(
        data, tmp_path / "run", epochs=1, lr=20.0, label_smoothing=0.0, **ONE_WAY
    )  # no network survives such a rate
    summary = json.loads((result.folder / "summary.json").read_text())
    assert [row["name"].split(":")[0] for row in summary["rungs"] if row["kept"]] == ["probe"]
    assert summary["best_epoch"] is None
    assert not RunFolder(result.folder).best.exists()


@pytest.mark.parametrize("losses", [5.0, 0.0])
def test_tuning__that_accuracy_cannot_tell_from_the_probe_is_kept_for_lower_losses(data, tmp_path, monkeypatch, losses):
    """Nothing learns at such a rate, so every epoch is as accurate as the probe of the last features."""
    monkeypatch.setattr(first_model, "calibrated_losses", lambda found: [losses] * len(found))
    monkeypatch.setattr(first_model, "last_stage_poolings", lambda *_: ())  # no other head than the probe
    worse = SimpleNamespace(score=0.0, losses=[9.0] * 12, deployed=lambda *_: pytest.fail("written"))
    monkeypatch.setattr(finishing, "refit_head", lambda *_: worse)
    result = started_from(data, tmp_path / "run", epochs=1, lr=1e-12, **ONE_WAY)
    summary, best = json.loads((result.folder / "summary.json").read_text()), RunFolder(result.folder).best
    assert not best.exists()  # no epoch was better
    assert rungs_of(result.folder)["probe"]["details"]["losses"] == [losses] * 12
    kept = [row["name"].split(":")[0] for row in summary["rungs"] if row["kept"]]
    assert kept == (["epoch 1"] if losses else ["probe"])  # without "a head fitted to its features"
    assert ("lower than the first model's" in summary["kept"]) == bool(losses)


def test_head__that_is_fitted_to_tuned_features_is_the_model_where_validation_prefers_it(data, tmp_path, monkeypatch):
    name = "logistic regression on the last stages"
    scores = []
    monkeypatch.setattr(refit, "HEADS", {name: HEADS[name]})
    monkeypatch.setattr(refit, "min", lambda found, key: found[-1], raising=False)  # the last one fitted
    monkeypatch.setattr(finishing, "is_better", lambda *found: scores.append(found) or True)
    result = started_from(data, tmp_path / "run", epochs=1, lr=1e-4, **ONE_WAY)
    summary, model = json.loads((result.folder / "summary.json").read_text()), load(result)
    kept = [row["name"] for row in summary["rungs"] if row["kept"]]
    assert model.card.reads_stages
    with pytest.raises(
        UserError, match=r"this classifier reads several stages.* run 'paucal train DATA --init \S*run', which"
    ):
        paucal.export_model(result.folder, format=["hub"])
    given = {**SHORT, "data": str(data), "epochs": 1, "init": str(result.folder)}
    again = assemble(TrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole().progress)
    assert (again.card.reads_stages, again.tune_record) == (False, None)  # what the message says
    assert kept == ["epoch 1, with a head fitted to its features (logistic regression on the last stages)"]
    assert summary["kept"].startswith(kept[0])
    run = RunFolder(result.folder)
    images = open_again(run)
    rows = read_split(run.split, images).indices("val")
    found = predict_all(
        model.module, make_eval_loader(images, rows, model.card.preprocessing.transform(), 16, 0), "cpu"
    )
    accuracy = (found.predicted == found.labels).double().mean().item()
    assert accuracy == summary["kept_val_top1"] == scores[-1][0]  # the stored model is the one that was judged
    assert len(scores[-1][1]) == 12


def test_climb__few_images_keep_the_probe(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    result = started_from(photos(tmp_path / "photos", each=8, classes=2), tmp_path / "run", time="30s")
    found = rungs_of(result.folder)
    assert not found["tune"]
    assert "the probe is the final model" in found["plan"]
    assert RunFolder(result.folder).read_rows() == []
    assert result.report.images > 0


def test_processes__that_are_several_tune_at_once_and_say_so(data):
    def setup(devices):
        given = {**SHORT, "data": str(data), "epochs": 1, "devices": devices}
        return assemble(TrainSettings(**given), dict.fromkeys(given, "flag"), SilentConsole().progress)

    alone, together = setup(1), setup(2)
    assert (len(alone.tune_record.candidates), together.tune_record.candidates) == (1, ())
    assert together.settings.init == alone.settings.init == "auto"
    assert PROCESSES_REMARK in together.remarks
    assert PROCESSES_REMARK not in alone.remarks


def test_memory__that_no_way_to_tune_fits_in_keeps_the_probe(data, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "measure_seconds_per_image", no_memory)
    console = RecordingConsole()
    result = started_from(data, tmp_path / "run", console, epochs=2)
    found = rungs_of(result.folder)
    assert (found["tune"], found["trials"], set(found["sizes"].values())) == (False, [], {None})
    assert (
        found["plan"]
        == "the memory is too small for tuning (--batch-size 8 needs half of it): the probe is the final model"
    )
    assert "note: the memory is too small for tuning on images of 32" in console.lines
    assert result.report.images > 0


@pytest.mark.slow
def test_memory__leaves_the_ways_that_fit(data, tmp_path, monkeypatch):
    real = trials._fit_trial

    def tight(setup, *others):
        return real(setup, *others) if setup.settings.freeze else no_memory()

    monkeypatch.setattr(trials, "_fit_trial", tight)
    console = RecordingConsole()
    result = started_from(data, tmp_path / "run", console, epochs=1, batch_size=8)
    first, *others = rungs_of(result.folder)["trials"]
    assert first["score"] > 0
    assert len(others) > 0
    assert {other["score"] for other in others} == {0.0}
    assert sum("the memory of the device (cpu) is too small" in line for line in console.lines) == len(others)
    assert RunFolder(result.folder).settings["freeze"]
    assert len(RunFolder(result.folder).read_rows()) == 1


def no_memory(*_):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")


@pytest.mark.slow
def test_race__takes_the_better_candidate(tmp_path, monkeypatch):
    first, second = install(tmp_path, monkeypatch, (MODEL, "resnet14t"))
    result = started_from(photos(tmp_path / "photos"), tmp_path / "run", epochs=1)
    race = [
        EvaluatedModel(rung["name"], rung["score"], rung["seconds"], rung["details"])
        for rung in rungs_of(result.folder)["race"]
    ]
    assert {rung.name for rung in race} == {first.name, second.name}
    assert RunFolder(result.folder).settings["model"] == pick_fastest_good_candidate(race).name


@pytest.mark.parametrize(("scores", "winner"), [((0.70, 0.75), "slow"), ((0.70, 0.72), "quick"), ((0.8, 0.7), "quick")])
def test_race__is_won_by_the_quickest_of_nearly_equal_ones(scores, winner):
    quick, slow = (
        EvaluatedModel(name, score, seconds, {"images": 300})
        for name, score, seconds in zip(("quick", "slow"), scores, (5, 9), strict=True)
    )
    assert pick_fastest_good_candidate([slow, quick]).name == winner  # the standard error is 2.5 %


def test_race__leaves_time_to_tune_the_winner():
    quick, slow = (EvaluatedModel(name, 0.7, seconds, {"images": 300}) for name, seconds in (("quick", 6), ("slow", 9)))
    assert select_affordable_candidates([slow, quick], seconds=600, n_images=20_000) == [
        slow,
        quick,
    ]  # 600 and 400 seconds
    assert select_affordable_candidates([slow, quick], seconds=500, n_images=20_000) == [quick]
    assert select_affordable_candidates([slow, quick], seconds=100, n_images=20_000) == [quick]


@pytest.mark.parametrize(
    ("train", "val", "epochs", "seconds"), [(900, 90, None, 30), (900, 90, 0, 150), (900, 0, None, 150)]
)
def test_probe__leaves_most_of_the_time_to_tuning_if_there_is_any(train, val, epochs, seconds):
    data = SimpleNamespace(counts=lambda: {"train": train, "val": val, "test": 90})
    setup = SimpleNamespace(data=data, settings=SimpleNamespace(epochs=epochs), origins={})
    state = SimpleNamespace(setup=setup, record=SimpleNamespace(budget=300.0))
    assert first_model._max_probe_seconds(state) == seconds


@pytest.mark.parametrize(("minutes", "compares"), [(5, False), (15, True)])
def test_race__is_left_out_where_a_larger_network_would_leave_no_time_to_tune(monkeypatch, minutes, compares):
    said = []

    def read(*given):
        raise InterruptedError

    counts = {"train": 2761, "val": 307, "test": 372}  # 20,006 forward passes with three epochs of tuning
    images = SimpleNamespace(targets=np.arange(3440) % 10)
    split = SimpleNamespace(groups=None)
    data = SimpleNamespace(
        split_indices=lambda name: np.arange(2761), images=images, split=split, counts=lambda: counts
    )
    state = SimpleNamespace(
        setup=SimpleNamespace(
            data=data,
            settings=SimpleNamespace(seed=0, model="first", epochs=None),
            objective=SimpleNamespace(deployable=lambda: None),
            card=SimpleNamespace(preprocessing=None),
            origins={},
        ),
        record=SimpleNamespace(budget=60.0 * minutes, candidates=("first", "second"), candidate_scores=(), probe=None),
        console=SilentConsole(),
        spent_seconds=10.0,
    )
    monkeypatch.setattr(state.console, "say", said.append)
    with monkeypatch.context() as patch:
        patch.setattr(first_model, "choose_feature_precision", lambda setup: FLOAT32)
        patch.setattr(first_model, "compute_frozen_features", lambda *given: None)
        times = iter([0, 16 * 0.015] * 2)  # of 16 images
        patch.setattr(first_model.time, "perf_counter", lambda: next(times))
        first_model.prepare_first_model(state)
    assert ("to compare weights" in said.pop()) == compares
    monkeypatch.setattr(first_model, "compute_frozen_features", read)
    with pytest.raises(InterruptedError) if compares else nullcontext():
        first_model.compare_candidates(state)
    assert said == ([] if compares else ["note: no time to compare first with second; choose a model with --model"])


def test_time__plans_the_passes_that_fit(data, tmp_path, monkeypatch):
    monkeypatch.setattr(auto_tune_module, "measure_seconds_per_image", lambda setup, choose_threads: 1.0)
    monkeypatch.setattr(RunClock, "_find_change", lambda *_: None)  # these steps are quicker than that
    small = {"model": "vit_mini", "model_args": ["depth=1", "embed_dim=16", "num_heads=2"], "img_size": [16]}
    result = started_from(data, tmp_path / "run", time="400s", init="none", **small)
    epochs = RunFolder(result.folder).settings["epochs"]
    rows = (tmp_path / "run" / "split.csv").read_text().splitlines()
    per_pass = sum("train" in row for row in rows)
    assert 1 < 400 * 0.5 / per_pass < epochs <= 400 / per_pass
    assert len(RunFolder(result.folder).read_rows()) == epochs
    assert "fit in the time" in rungs_of(result.folder)["plan"]
    kept = json.loads((result.folder / "time_plan.json").read_text())
    assert (kept["budget"], kept["most_steps"]) == (
        400.0,
        MAX_SCRATCH_EPOCHS * (sum("train" in row for row in rows) // 16),
    )
    assert kept["step"] == pytest.approx(per_pass / (per_pass // 16))
    assert 0 < kept["spent"] < 400


def test_time__that_does_not_suffice_for_a_pass_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr(auto_tune_module, "measure_seconds_per_image", lambda setup, choose_threads: 10.0)
    with pytest.raises(UserError, match=r"--time is 1m, and one epoch of \d+ training images takes"):
        started_from(data, tmp_path / "run", time="1m", init="none", model="vit_mini")


def test_time__and_epochs_are_one_too_many(data):
    with pytest.raises(UserError, match="--time 1m and --epochs 3 both set the length"):
        paucal.train(data, time="1m", epochs=3)


@pytest.mark.parametrize("said", [{"init": "none"}, {"recipe": "small-images"}, {"attention_init": "mimetic"}])
def test_start__is_not_looked_for_where_somebody_has_said_how_a_run_begins(data, monkeypatch, said):
    monkeypatch.setattr(initial_weights, "choose_weights", None)

    def begun(**settings):
        given = {**SHORT, "data": str(data), "epochs": 1, "model": "vit_mini", **settings}
        settings, origins = TrainingJob().check(TrainSettings(**given), dict.fromkeys(given, "flag"))
        return assemble(settings, origins, SilentConsole().progress)

    assert begun(**said).settings.init is None
    with pytest.raises(TypeError, match="not callable"):
        begun()  # here it is looked for


def test_start__without_any_weights_says_what_would_help(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, ())
    console = RecordingConsole()
    started_from(photos(tmp_path / "photos", each=8), tmp_path / "run", console, epochs=1, img_size=[16])
    assert any('pip install "paucal[weights]"' in line for line in console.lines)
    assert RunFolder(tmp_path / "run").settings["init"] is None


def test_epochs__none_at_all_keep_the_probe_and_the_method_whose_own_settings_are_given(data, tmp_path):
    result = started_from(data, tmp_path / "run", epochs=0, drloc_weight=0.3)
    found = rungs_of(result.folder)
    assert (found["tune"], found["trials"]) == (False, [])
    assert RunFolder(result.folder).settings["method"] == "drloc"
    assert not (result.folder / "learning_curve.json").exists()  # it was not asked for
    with pytest.raises(UserError, match="--epochs 0 keeps the linear probe"):
        started_from(data, tmp_path / "other", epochs=0, init="none", model="vit_mini")


@pytest.mark.slow
def test_climb__is_repeated_by_its_config(data, tmp_path):
    whole = started_from(data, tmp_path / "whole", epochs=1, batch_size=8)
    out = tmp_path / "again"
    assert main(["train", "--config", str(whole.folder / "config.yaml"), "--output", str(out)]) == 0
    assert rungs_of(out)["trials"] == []
    ours, theirs = load_trained(out).module.state_dict(), load(whole).module.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"epochs": 0}, {"init": "none", "model": "vit_mini", "epochs": 1}])
def test_config__of_a_probe_and_of_a_run_from_scratch_repeat_them(data, tmp_path, settings):
    whole, out = started_from(data, tmp_path / "whole", **settings), tmp_path / "again"
    assert main(["train", "--config", str(whole.folder / "config.yaml"), "--output", str(out)]) == 0
    ours, theirs = load_trained(out).module.state_dict(), load(whole).module.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.slow
def test_trials__keep_the_steps_and_the_size_that_they_were_begun_with(data, tmp_path, monkeypatch):
    real, seen = tuning.run_trial, []

    def slower(run, setup, preset, steps, console, time_plan):
        seen.append((steps, list(setup.settings.img_size)))
        if len(seen) == 2:
            raise KeyboardInterrupt
        assert time_plan is None  # so many passes were asked for
        return real(run, setup, preset, steps, console)

    monkeypatch.setattr(tuning, "run_trial", slower)
    assert isinstance(started_from(data, tmp_path / "run", epochs=1, batch_size=8), Stopped)
    monkeypatch.setattr(tuning, "TRIALS_FRACTION", 1e-9)  # as if the machine had become slow
    monkeypatch.setattr(tuning, "measure_seconds_per_image", lambda setup: 1e6)
    resume(TrainingJob(), tmp_path / "run", SilentConsole())
    assert len(seen) == 4  # three ways, the second one twice
    assert all(one == seen[0] for one in seen)


@pytest.mark.slow
def test_climb__with_frozen_epochs_and_no_validation_makes_the_passes_that_were_given(data, tmp_path):
    result = started_from(data, tmp_path / "run", epochs=2, freeze_epochs=1, val_fraction=0.0)
    assert len(RunFolder(result.folder).read_rows()) == 2
    assert rungs_of(result.folder)["trials"] == []


def test_time__goes_before_the_epochs_of_a_recipe(tmp_path):
    settings = TrainSettings(recipe="small-images", time="5m", epochs=30, warmup_epochs=3.0)
    origins = {"time": "flag", "epochs": "recipe small-images", "warmup_epochs": "recipe small-images"}
    found = choose_time_or_epochs(settings, origins)
    assert (found.time, found.epochs, found.warmup_epochs) == ("5m", None, None)
    repeated = choose_time_or_epochs(settings, dict.fromkeys(origins, "config"))
    assert (repeated.time, repeated.epochs) == (None, 30)


@pytest.mark.slow
def test_run__that_climbed_may_be_replaced(data, tmp_path):
    first = started_from(data, tmp_path / "run", epochs=1)
    for name in ("head-128.safetensors", "head-128x96.safetensors"):  # as of a run that tuned on smaller images
        (first.folder / name).write_bytes((first.folder / "probe.safetensors").read_bytes())
    (first.folder / "trials").mkdir()
    again = started_from(data, tmp_path / "run", epochs=0, overwrite=True)
    assert not (again.folder / "head-128.safetensors").exists()
    (again.folder / "head-mine.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"head-mine\.safetensors"):
        started_from(data, tmp_path / "run", epochs=0, overwrite=True)
