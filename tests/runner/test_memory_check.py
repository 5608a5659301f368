"""What cannot fit in the memory is refused before it is taken."""

import re
import time

import pytest

from paucal.backbones import BackboneSpec
from paucal.backbones import spec as backbone_spec
from paucal.backbones.cost import image_cost
from paucal.cli.main import main
from paucal.methods.pretraining_settings import PretrainSettings
from paucal.methods.training_settings import TrainSettings
from paucal.runner import inference, trainer_plan
from paucal.runner.inference import check_batch_memory
from paucal.runner.trainer_plan import check_memory, check_step_size, explain_memory_errors
from paucal.types import UserError

GIB = 2**30
RESOLVED = {"device": "cpu", "devices": 1, "precision": "32-true"}


@pytest.fixture(autouse=True)
def eight_gib(monkeypatch):
    for module in (trainer_plan, inference):
        monkeypatch.setattr(module, "read_available_memory", lambda: 8 * GIB)
    monkeypatch.setattr(backbone_spec, "read_available_memory", lambda: 8 * GIB)


def test_image_cost__of_a_resnet_is_what_is_known_of_it():
    cost = image_cost("resnet18", (224, 224), {})
    assert cost is not None
    assert cost.parameters == 11_689_512
    assert round(cost.macs / 1e9, 2) == 1.81
    assert cost.largest_tensor_bytes == 64 * 112 * 112 * 4  # what the first norm and its activation read
    twice = image_cost("resnet18", (448, 448), {})
    assert twice is not None
    assert 3.9 < twice.activation_bytes / cost.activation_bytes < 4.1
    assert twice.parameters == cost.parameters


def test_image_cost__leaves_out_the_matrix_of_attention():
    small, large = (image_cost("vit_tiny_patch16_224", (s, s), {"img_size": s}) for s in (224, 896))
    assert small is not None
    assert large is not None
    assert 15 < large.activation_bytes / small.activation_bytes < 17  # sixteen times the cells, not its square


def test_check_room__refuses_steps_that_cannot_fit_and_says_what_would():
    spec = BackboneSpec("swin_tiny_patch4_window7_224", 10, image_size=(1024, 1024))
    begin = time.monotonic()
    with pytest.raises(
        UserError, match=r"64 images of 1024x1024 .* at least 1\d\d GiB.*has 8 GiB: give --batch-size 3 "
    ):
        check_memory(TrainSettings(batch_size=64, **RESOLVED), spec)
    assert time.monotonic() - begin < 60
    assert "at least" in check_memory(TrainSettings(batch_size=3, **RESOLVED), spec)[0]
    with pytest.raises(UserError, match="8 GiB: lower --img-size, or choose"):
        check_memory(TrainSettings(batch_size=1, **RESOLVED), BackboneSpec("resnet50", 10, image_size=(4096, 4096)))


def test_check_room__knows_that_sgd_keeps_one_moment_less(monkeypatch):
    monkeypatch.setattr(trainer_plan, "read_available_memory", lambda: 12 * GIB)

    def least(optimizer):
        settings = PretrainSettings(batch_size=5, **RESOLVED, optimizer=optimizer)
        spec = BackboneSpec("vit_large_patch16_224", 0, image_size=(448, 448))
        return float(re.search(r"at least (\S+) GiB", check_memory(settings, spec)[0])[1])

    assert least("adamw") - least("sgd") == pytest.approx(0.304 * 4e9 / GIB, abs=0.11)  # its 304 M parameters
    assert least("lars") == least("sgd")


def test_check_room__says_nothing_of_usual_steps():
    spec = BackboneSpec("resnet18", 10, image_size=(224, 224))
    assert check_memory(TrainSettings(batch_size=64, **RESOLVED), spec) == []


def test_check_batch__counts_the_pixels_alone():
    check_batch_memory(256, (224, 224))
    with pytest.raises(
        UserError, match=r"--batch-size 256 takes 48 GiB for the images of 4096x4096.*give --batch-size 10 or less"
    ):
        check_batch_memory(256, (4096, 4096))


def test_check_step__has_an_end():
    check_step_size(1 << 20)
    with pytest.raises(UserError, match="would take 4,294,967,296 images"):
        check_step_size(1 << 32)


def test_build__refuses_models_and_images_beyond_the_memory():
    with pytest.raises(
        UserError, match=r"M parameters, which need \S+ GiB, but only 8 GiB of this machine's memory are free"
    ):
        BackboneSpec("vit_tiny_patch16_224", 2, arguments={"embed_dim": 49152, "num_heads": 2}).build()
    with pytest.raises(UserError, match=r"one image of 16384x16384 pixels needs at least .* with resnext101_64x4d"):
        BackboneSpec("resnext101_64x4d", 2, image_size=(16384, 16384)).build()


@pytest.mark.parametrize("arguments", [{"depth": 10**9}, {"embed_dim": 10**12}, {"depth": [2, [10**6]]}])
def test_spec__refuses_numbers_that_would_be_built_for_hours(arguments):
    with pytest.raises(UserError, match=r"is above the limit of (1,000|1,048,576)"):
        BackboneSpec("vit_mini", 2, arguments=arguments)


def test_spec__refuses_classes_and_channels_beyond_reason():
    with pytest.raises(UserError, match="number of classes is 1000000000; it must be a whole number"):
        BackboneSpec("vit_mini", 10**9)
    with pytest.raises(UserError, match="number of image channels is 1000000000"):
        BackboneSpec("vit_mini", 10, in_chans=10**9)


def test_enough_memory__says_so_of_heads_that_do_not_fit_and_hides_nothing_else():
    with (
        pytest.raises(
            UserError, match="do not fit in this machine's memory: choose a smaller --model or narrower heads"
        ),
        explain_memory_errors(),
    ):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 17179344900 bytes")
    with pytest.raises(RuntimeError, match="a shape"), explain_memory_errors():
        raise RuntimeError("a shape")


def test_train__builds_its_heads_where_too_little_memory_is_a_sentence(monkeypatch, capsys):
    def no_room(settings, spec):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("paucal.tasks.classification.assembly.build_objective", no_room)
    assert main(["train", "--img-size", "16", "--model", "vit_mini", "--print-config"]) == 2
    assert "narrower heads" in capsys.readouterr().err
