"""Features computed from stored outputs of the frozen stages, against the same network on the images."""

from types import SimpleNamespace

import pytest
import timm
import torch

from paucal.backbones.frozen_stages import FrozenStages
from paucal.backbones.layers import stage_parameters
from paucal.models.features import ClassifierInputExtractor, StageClassifierInputExtractor
from paucal.tasks.classification.auto_tune.record import EvaluatedModel
from paucal.tasks.classification.auto_tune.resumed_features import FrozenOutputs, ResumableFeatureExtractor
from paucal.tasks.classification.auto_tune.state import TuneState
from paucal.types import UserError

IMAGES, SIZE = 6, (64, 64)
# A network with pooled maps of frozen stages, one without, and one whose features are tokens.
NETWORKS = [("test_resnet", 2, 6), ("test_vit", 1, 0), ("test_efficientnet", 3, 6)]


def features_of(network, images, staged):
    inputs = StageClassifierInputExtractor(network, SIZE) if staged else ClassifierInputExtractor(network)
    with torch.inference_mode():
        features = inputs(images)
    inputs.close()
    return features


def stored_outputs(network, images, staged, frozen, max_bytes=1e9):
    """Return the features of the images, computed in two batches, and the stored outputs."""
    resumable = ResumableFeatureExtractor(network, SIZE, staged, frozen, len(images), max_bytes)
    with torch.inference_mode():
        features = torch.cat([resumable(images[:4]), resumable(images[4:])])
    resumable.close()
    return features, resumable.get_stored_outputs(2.0)


@pytest.fixture(params=[name for name, *_ in NETWORKS])
def network(request):
    torch.manual_seed(0)
    options = {"img_size": SIZE[0]} if request.param == "test_vit" else {}
    return timm.create_model(request.param, num_classes=5, **options).eval()


def frozen_stages(network):
    return next(frozen for name, frozen, _ in NETWORKS if name == network.default_cfg["architecture"])


@pytest.mark.parametrize("staged", [False, True])
def test_resumed__is_the_network_whose_other_stages_were_tuned(network, staged):
    images = torch.randn(IMAGES, 3, *SIZE, generator=torch.Generator().manual_seed(1))
    frozen = frozen_stages(network)
    features, outputs = stored_outputs(network, images, staged, frozen)
    torch.testing.assert_close(features, features_of(network, images, staged))
    assert outputs.activations.dtype == torch.float16
    assert len(outputs.activations) == len(outputs.pooled) == IMAGES
    with torch.no_grad():
        for name in stage_parameters(network, frozen + 1):
            parameter = network.get_parameter(name)
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    tuned = features_of(network, images, staged)
    assert not torch.allclose(tuned, features, atol=0.1 * float(tuned.std()))
    resumable = ResumableFeatureExtractor(network, SIZE, staged, frozen)
    rows = torch.tensor([4, 1, 0])
    torch.testing.assert_close(
        resumable.resume_all(outputs.select(rows)), tuned[rows], rtol=0, atol=0.02 * float(tuned.std())
    )
    resumable.close()
    torch.testing.assert_close(features_of(network, images, staged), tuned)  # no hook is left


def test_stored__through_tensors_is_the_same(network):
    images = torch.randn(IMAGES, 3, *SIZE)
    _, outputs = stored_outputs(network, images, True, frozen_stages(network))
    copy = FrozenOutputs.from_tensors(outputs.to_tensors())
    assert torch.equal(copy.activations, outputs.activations)
    assert torch.equal(copy.pooled, outputs.pooled)
    assert copy.seconds == outputs.seconds > 0


def test_stored__nothing_that_needs_more_than_the_given_bytes_or_does_not_give_the_features(network, monkeypatch):
    images = torch.randn(IMAGES, 3, *SIZE)
    _, outputs = stored_outputs(network, images, True, frozen_stages(network))
    n_bytes = outputs.activations.nbytes
    for max_bytes in (0, n_bytes - 1):
        features, nothing = stored_outputs(network, images, True, frozen_stages(network), max_bytes)
        torch.testing.assert_close(features, features_of(network, images, True))
        assert nothing is None
    assert stored_outputs(network, images, True, frozen_stages(network), n_bytes)[1] is not None
    with monkeypatch.context() as patch:  # as a network whose activations exceed the range of float16
        activations = FrozenStages.activations
        patch.setattr(FrozenStages, "activations", lambda *given: activations(*given).clamp(max=1e30) * 1e30)
        patch.setattr(ResumableFeatureExtractor, "_can_store", lambda *_: True)
        assert stored_outputs(network, images, True, frozen_stages(network))[1] is None
    resumed = ResumableFeatureExtractor._resume
    monkeypatch.setattr(ResumableFeatureExtractor, "_resume", lambda *given: resumed(*given) + 0.1)
    features, nothing = stored_outputs(network, images, True, frozen_stages(network))
    torch.testing.assert_close(features, features_of(network, images, True))
    assert nothing is None


def test_network__that_cannot_continue_is_refused_and_keeps_no_hook(network, monkeypatch):
    def refuse(*_):
        raise RuntimeError("shape '[2, 4]' is invalid")

    monkeypatch.setattr(ResumableFeatureExtractor, "_resume", refuse)
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules()]
    with pytest.raises(UserError, match="cannot continue after stage"):
        ResumableFeatureExtractor(network, SIZE, True, frozen_stages(network))
    assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules()] == hooks


@pytest.mark.parametrize(
    ("freeze", "pixel_ratio", "seconds"), [(2, 1.0, 300 * 0.01), (None, 1.0, 40 * 0.1), (2, 0.5, 0.5 * 40 * 0.1)]
)
def test_time__of_stored_outputs_is_reserved_where_tuning_leaves_the_stages_and_the_size(freeze, pixel_ratio, seconds):
    details = {"read_again": 40, "resumed": 300, "resume_seconds": 0.01, "frozen_stages": 2}
    record = SimpleNamespace(unlabelled=EvaluatedModel("", 0.0, 0.0, details))
    state = TuneState(None, None, record, None, 0.0, image_seconds=0.1, preset_freeze=freeze)
    assert state._unlabelled_seconds(pixel_ratio) == pytest.approx(seconds)
