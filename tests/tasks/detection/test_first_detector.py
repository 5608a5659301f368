"""The first detector of a run: layers behind a frozen backbone, stopped and resumed, and what tuning makes of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paucal.backbones import BackboneSpec
from paucal.backbones.stage_maps import build_pyramid_backbone
from paucal.runner.console import SilentConsole
from paucal.runner.initial_weights import without_none_init
from paucal.runner.life import begin
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights
from paucal.tasks.detection.assembly import DetectionSetup, assemble
from paucal.tasks.detection.batches import BoxBatch
from paucal.tasks.detection.first_detector import (
    FeatureMapCache,
    count_heads_steps,
    make_frozen_backbone_objective,
    make_unaugmented_loader,
    train_first_detector,
)
from paucal.tasks.detection.job import DetectionJob, detect
from paucal.tasks.detection.model import BACKBONE_PREFIX, read_first_detector
from paucal.tasks.detection.settings import DetectSettings
from paucal.types import Progress, UserError
from tasks.detection.made import TINY
from tasks.detection.test_detect_runs import GIVEN
from tasks.pretraining.short_runs import StopAfter


def setup_of(images: Path, **changes) -> DetectionSetup:
    settings = without_none_init(DetectSettings(data=str(images), **{"steps": 4, **TINY, **changes}))
    return assemble(settings, GIVEN, SilentConsole().progress)


def layers_behind(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights.items() if not name.startswith(BACKBONE_PREFIX)}


def test_grids__of_a_mixed_batch_do_not_depend_on_what_is_kept():
    """Images of two sizes in one batch, with room for all grids, for none, and a second time from the memory."""
    stages = build_pyramid_backbone(BackboneSpec("resnet10t", 0, image_size=(64, 64)), None, 8).eval()
    pixels = torch.rand(2, 3, 64, 64)
    pixels[1, :, 40:] = 0
    nothing = [torch.zeros(0, 4)] * 2
    sizes = torch.tensor([[64, 64], [40, 64]])
    batch = BoxBatch(torch.tensor([5, 9]), pixels, sizes, nothing, [torch.zeros(0, dtype=torch.int64)] * 2, sizes)
    roomy, small = FeatureMapCache(stages, 10**9), FeatureMapCache(stages, 0)
    first, again, without = roomy.maps(batch), roomy.maps(batch), small.maps(batch)
    assert [tuple(grid.shape[-2:]) for grid in first] == [(8, 8), (4, 4)]
    for one, two, three in zip(first, again, without, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    alone = stages(pixels[:1])
    assert all(
        torch.allclose(ours[:1], theirs, rtol=2e-3, atol=2e-3) for ours, theirs in zip(first, alone, strict=True)
    )
    assert not any(grid.requires_grad for grid in first)


def test_stage__changes_everything_but_the_backbone(images: Path):
    objective = make_frozen_backbone_objective(setup_of(images))
    objective.train()
    objective(next(iter(make_unaugmented_loader(setup_of(images), 1))), Progress(0, 1, 1)).total.backward()
    graded = {name.removeprefix("detector.") for name, p in objective.named_parameters() if p.grad is not None}
    assert graded
    assert not any(name.startswith(BACKBONE_PREFIX) for name in graded)
    trained = {name for name, p in objective.detector.named_parameters() if not name.startswith(BACKBONE_PREFIX)}
    assert graded == trained


def test_stopped_stage__ends_with_the_weights_of_one_that_was_not(images: Path, tmp_path: Path):
    weights = []
    for name, stop in (("whole", []), ("stopped", [StopAfter(3)])):
        run, setup = RunFolder(tmp_path / name), setup_of(images, heads_steps=5)
        run.path.mkdir()
        validation = DetectionJob().validation(setup)
        first = train_first_detector(run, setup, validation, SilentConsole(), stop)
        if stop:
            assert first is None
            assert read_first_detector(run) is None
            first = train_first_detector(run, setup_of(images, heads_steps=5), validation, SilentConsole())
        assert first is not None
        assert first == read_first_detector(run)
        assert first.steps == 5
        weights.append(read_weights(run.weights))
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    before = setup_of(images).objective.deployable().state_dict()
    changed = {name for name, value in weights[0].items() if not torch.equal(value, before[name])}
    assert changed
    assert not any(name.startswith(BACKBONE_PREFIX) for name in changed)


def test_run__tunes_from_the_first_detector_and_keeps_what_validation_prefers(images: Path, tmp_path: Path):
    run = RunFolder(tmp_path / "run")
    result = detect(images, output=str(run.path), heads_steps=4, steps=2, lr=1e-12, eval_mode=True, **TINY)
    first = read_first_detector(run)
    assert first is not None
    summary = run.read_json("summary.json")
    assert summary["best_val_ap"] == first.score  # so small a rate improves nothing
    assert summary["first_detector"]["steps"] == 4
    assert "the first detector, the best on the validation images" in run.log.read_text()
    kept, stored = read_weights(run.weights), read_weights(run.path / "first_detector.safetensors")
    assert layers_behind(kept).keys() == stored.keys()
    assert all(torch.equal(kept[name], value) for name, value in stored.items())
    assert result.metrics["ap"] == summary["test_ap"]


def test_steps_of_the_stage__fit_in_the_time(images: Path):
    setup = setup_of(images)
    passes = len(setup.data.split_indices("train")) // 2
    assert count_heads_steps(setup, 0.01) == 0
    assert count_heads_steps(setup, 10_000.0) == 12 * passes


def test_time__is_shared_with_the_first_detector_if_the_backbone_is_trained(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("paucal.tasks.detection.job.count_heads_steps", lambda setup, seconds: round(seconds))
    job, console = DetectionJob(), SilentConsole()
    for init, devices, expected, reason in (
        (None, 1, 0, "the backbone starts from random weights"),
        ("somewhere", 1, 12, "a fifth of 1m"),
        ("somewhere", 2, 0, "this stage is not supported with several processes"),
    ):
        setup = setup_of(images, steps=None, time="1m")
        setup = replace(setup, settings=replace(setup.settings, init=init, devices=devices))
        run = RunFolder(tmp_path / f"{init}{devices}")
        run.path.mkdir()
        run.write_config({}, {}, "detect")
        planned = job._plan_first_detector(run, setup, console)
        assert planned.settings.heads_steps == expected
        assert planned.origins["heads_steps"] == f"auto: {reason}"
        with_steps = replace(planned, settings=replace(planned.settings, steps=3))
        assert job.needs_preliminary_work(with_steps) is bool(expected)


def test_damaged_record__is_refused(tmp_path: Path):
    (tmp_path / "first_detector.json").write_text('{"steps": 3}')
    with pytest.raises(UserError, match="is damaged"):
        read_first_detector(RunFolder(tmp_path))


def test_several_processes__are_refused(images: Path):
    with pytest.raises(UserError, match="--heads-steps is not supported with several processes"):
        begin(
            DetectionJob(),
            DetectSettings(data=str(images), **{**TINY, "heads_steps": 3, "steps": 2, "devices": 2}),
            GIVEN,
            SilentConsole(),
        )
