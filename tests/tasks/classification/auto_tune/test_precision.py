"""bfloat16 on a CPU in a run that starts from trained weights: for the features, and for tuning where steps gain."""

import pytest
import torch

from paucal.models.precision import PrecisionChoice
from paucal.runner import images as run_images
from paucal.runner.console import SilentConsole
from paucal.runner.life import Stopped, resume
from paucal.runs import RunFolder
from paucal.tasks.classification.auto_tune import auto_tune, precision
from paucal.tasks.classification.job import TrainingJob
from tasks.classification.auto_tune.carried import ONE_WAY, install
from tasks.classification.auto_tune.test_auto_tune import RecordingConsole, photos, rungs_of, started_from

GIVEN = {**ONE_WAY, "lr": 1e-3, "epochs": 1}
FASTER = PrecisionChoice(
    torch.bfloat16, "bfloat16: 2.0 times as fast as float32 here, with the same predictions", 2.0, True
)


@pytest.fixture(scope="module")
def shared_photos(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("shared") / "photos", each=20)


@pytest.fixture
def data(shared_photos, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    # test_few_images makes runs with all repeats.
    monkeypatch.setattr("paucal.tasks.classification.auto_tune.heads.N_REPEATS", 1)
    monkeypatch.setattr(precision, "bfloat16_flags", lambda: ("avx512_bf16",))
    monkeypatch.setattr(precision, "choose_precision", lambda *_, **__: FASTER)
    return shared_photos


def stop(*_):
    raise KeyboardInterrupt


def stopped_before_tuning(monkeypatch, *given, **settings):
    """Begin a run and stop it when both precisions are chosen and stored."""
    with monkeypatch.context() as patch:
        patch.setattr(auto_tune, "choose_preset", stop)
        assert isinstance(started_from(*given, **settings), Stopped)


@pytest.fixture
def read(monkeypatch):
    """Return the precisions in which features are read."""
    real, seen = run_images.predict_in_order, []

    def recorded(inputs, loader, indices, device, progress=None, autocast=None):
        seen.append(autocast)
        return real(inputs, loader, indices, device, progress, autocast)

    monkeypatch.setattr(run_images, "predict_in_order", recorded)
    return seen


@pytest.mark.parametrize(("speed", "expected"), [(1.5, "bf16-mixed"), (1.2, "32-true")])
def test_run__takes_bfloat16_where_it_was_measured_to_gain(data, read, tmp_path, monkeypatch, speed, expected):
    steps = []

    def measure(step, images, key):
        steps.append((step(images).shape, key))
        return speed

    monkeypatch.setattr(precision, "measure_speed", measure)
    console = RecordingConsole()
    if speed > 1.3:
        started_from(data, tmp_path / "run", console, **GIVEN)
    else:
        stopped_before_tuning(monkeypatch, data, tmp_path / "run", console, **GIVEN)
    settings, said = RunFolder(tmp_path / "run").settings, "\n".join(console.lines)
    assert steps == [((), f"{settings['model']}, tuned with --freeze 2")]
    assert settings["precision"] == expected
    assert rungs_of(tmp_path / "run")["probe"]["details"]["arithmetic"] == "bf16-mixed"
    assert read[:2] == [None, None]  # timed in float32
    assert read[2] is torch.bfloat16
    assert f"precision of the features: {FASTER.reason}" in said
    assert f"a step is {speed:.1f} times as fast in bfloat16 here" in said


def test_run__of_a_given_precision_measures_nothing(data, read, tmp_path, monkeypatch):
    for name in ("choose_precision", "measure_speed"):
        monkeypatch.setattr(precision, name, lambda *_, **__: pytest.fail("measured"))
    stopped_before_tuning(monkeypatch, data, tmp_path / "run", precision="32-true", **GIVEN)
    assert RunFolder(tmp_path / "run").settings["precision"] == "32-true"
    assert set(read) == {None}


def test_run__on_a_processor_without_bfloat16_is_as_before(data, read, tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "bfloat16_flags", lambda: ())
    console = RecordingConsole()
    stopped_before_tuning(monkeypatch, data, tmp_path / "run", console, **GIVEN)
    assert RunFolder(tmp_path / "run").settings["precision"] == "32-true"
    assert set(read) == {None}
    assert not any("precision of" in line for line in console.lines)


def test_resumed_run__tunes_in_the_precision_of_one_that_was_not_stopped(data, tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "measure_speed", lambda *_: 1.5)
    with monkeypatch.context() as patch:
        patch.setattr(auto_tune, "choose_training_precision", stop)
        assert isinstance(started_from(data, tmp_path / "run", **GIVEN), Stopped)
    details = rungs_of(tmp_path / "run")["probe"]["details"]
    assert (details["arithmetic_speed"], details["arithmetic_measured"]) == (2.0, True)
    seen, real = [], auto_tune.choose_training_precision
    monkeypatch.setattr(
        auto_tune, "choose_training_precision", lambda state: (seen.append(state.precision), real(state))
    )
    resume(TrainingJob(), tmp_path / "run", SilentConsole())
    assert [(one.dtype, one.speed, one.measured) for one in seen] == [(torch.bfloat16, 2.0, True)]
    assert RunFolder(tmp_path / "run").settings["precision"] == "bf16-mixed"


def test_run__of_given_bfloat16_reads_features_in_it_on_any_processor(data, read, tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "bfloat16_flags", lambda: ())
    stopped_before_tuning(monkeypatch, data, tmp_path / "run", precision="bf16-mixed", **GIVEN)
    assert torch.bfloat16 in read
