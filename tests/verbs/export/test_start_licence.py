"""The licence that an export states is that of the weights from which the run really started."""

import pytest

from paucal.backbones import BackboneSpec
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing
from paucal.models.trained import save_trained
from paucal.runs import RunFolder
from paucal.verbs.export.launch import NO_INITIAL_WEIGHTS, licence_of_initial_weights


def store_run(path, init):
    run = RunFolder(path)
    path.mkdir()
    spec = BackboneSpec("test_resnet", 2, in_chans=1, image_size=(64, 64))
    fed = Preprocessing((64, 64), 1.0, "bicubic", (0.5,), (0.5,))
    save_trained(run, spec.build().model, ModelCard(spec, ("a", "b"), fed))
    run.write_config({"init": init, "data": "digits"}, {}, "train")
    return run


@pytest.mark.parametrize(
    ("init", "licence"),
    [(None, NO_INITIAL_WEIGHTS), ("none", NO_INITIAL_WEIGHTS), ("timm", "apache-2.0"), ("auto", "apache-2.0")],
)
def test_the_licence_is_that_of_the_first_run(tmp_path, init, licence) -> None:
    first = store_run(tmp_path / "first", init)
    assert licence_of_initial_weights(first) == licence
    assert licence_of_initial_weights(store_run(tmp_path / "second", str(first.path))) == licence


def test_the_licence_of_a_weights_file_or_a_lost_run_is_not_stated(tmp_path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"")
    assert licence_of_initial_weights(store_run(tmp_path / "of-file", str(tmp_path / "weights.pth"))) is None
    assert licence_of_initial_weights(store_run(tmp_path / "of-lost", str(tmp_path / "lost"))) is None
