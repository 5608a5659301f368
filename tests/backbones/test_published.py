"""Published checkpoints: recognised by their names, taken out of their wrapping, loaded or refused."""

import functools
import pickle
import re

import pytest
import timm
import torch

import paucal
from paucal.backbones.empty_models import build_empty, meta_device
from paucal.backbones.weights import start
from paucal.backbones.weights.checkpoints import PROGRAMS, possible_models, recognise_program
from paucal.backbones.weights.start import StartWeights, pick_network, start_from, suggest_model
from paucal.types import UserError
from vectors import recorded

# The recorded model, the program whose file it is, the name of ours.
FILES = {
    "cvt13_official": ("microsoft/CvT", "cvt_13"),
    "dhvt_tiny_cifar_patch2": ("ArieSeirack/DHVT", "dhvt_tiny_cifar_patch2"),
    "dhvt_tiny_cifar_patch4": ("ArieSeirack/DHVT", "dhvt_tiny_cifar_patch4"),
    "dhvt_small_cifar_patch2": ("ArieSeirack/DHVT", "dhvt_small_cifar_patch2"),
    "dhvt_small_cifar_patch4": ("ArieSeirack/DHVT", "dhvt_small_cifar_patch4"),
    "dhvt_tiny_domain_patch16": ("ArieSeirack/DHVT", "dhvt_tiny_domain_patch16"),
    "dhvt_tiny_imagenet_patch16": ("ArieSeirack/DHVT", "dhvt_tiny_imagenet_patch16"),
    "drloc_cvt13": ("yhlleo/VTs-Drloc", "drloc_cvt_13"),
    "drloc_resnet50": ("yhlleo/VTs-Drloc", "resnet50"),
    "drloc_vit_base_16": ("yhlleo/VTs-Drloc", "drloc_vit_base_patch16_224"),
    "drloc_swin_tiny": ("microsoft/Swin-Transformer", "swin_tiny_patch4_window7_224"),
    "drloc_t2t_vit_14": ("yitu-opensource/T2T-ViT", "t2t_vit_14"),
    "esvit_cvt_tiny": ("microsoft/esvit", "esvit_cvt_tiny"),
    "esvit_vil_tiny": ("microsoft/esvit", "esvit_vil_tiny"),
    "lvvit_l": ("zihangJiang/TokenLabeling", "lvvit_l"),
    "lvvit_m": ("zihangJiang/TokenLabeling", "lvvit_m"),
    "lvvit_s": ("zihangJiang/TokenLabeling", "lvvit_s"),
    "lvvit_t": ("zihangJiang/TokenLabeling", "lvvit_t"),
    "t2t_vit_14": ("yitu-opensource/T2T-ViT", "t2t_vit_14"),
    "t2t_vit_t_14": ("yitu-opensource/T2T-ViT", "t2t_vit_t_14"),
}
HEADS = ("head.mlp.0.weight", "head.last_layer.weight_g", "head.last_layer.weight_v", "head_dense.mlp.0.weight")


@functools.cache
def _empty_model(name):
    return build_empty(name, {})


@pytest.fixture
def built_once(monkeypatch):
    """Build each model that a file may be of once for all tests: nothing changes them."""
    monkeypatch.setattr(start, "build_empty", lambda name, arguments: _empty_model(name))


def empty_state(name):
    """The names and shapes of an original's state dict, without values."""
    return {key: torch.empty(shape, device="meta") for key, shape, _ in recorded.load(name)["state_dict"]}


@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize("name", FILES)
def test_recognise__knows_the_program_and_the_variant(name):
    state = empty_state(name)
    program, model = FILES[name]
    assert recognise_program(state).name == program
    assert suggest_model({"model": state}) == model
    assert suggest_model({"state_dict": {f"module.{key}": value for key, value in state.items()}}) == model


@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("esvit_swin_tiny_w7", "esvit_swin_tiny_patch4_window7_224"),
        ("esvit_swin_tiny_w14", "esvit_swin_tiny_patch4_window14_224"),
        ("esvit_deit_small", "esvit_deit_small_patch16_224"),
        ("esvit_cvt_tiny", "esvit_cvt_tiny"),
        ("esvit_vil_tiny", "esvit_vil_tiny"),
    ],
)
def test_recognise__esvit_by_its_region_head(name, model):
    state = {f"module.{key}": value for key, value in empty_state(name).items()}
    state |= {f"module.{key}": torch.empty(4, 4, device="meta") for key in HEADS}
    tree = {"student": state, "teacher": state, "dino_loss": {"center": torch.zeros(1, 4)}}
    assert recognise_program({key.removeprefix("module.") for key in state}).name == "microsoft/esvit"
    assert suggest_model(tree) == model


def test_recognise__leaves_timms_own_names_alone():
    for name in ("resnet50", "vit_small_patch16_224", "swin_tiny_patch4_window7_224", "convnext_tiny"):
        with meta_device():
            model = timm.create_model(name)
        assert recognise_program(model.state_dict()) is None
        assert suggest_model(dict(model.state_dict())) is None


def test_programs__have_models_that_exist():
    assert all(possible_models(program) for program in PROGRAMS)


def small_swin(**changes):
    arguments = {"embed_dim": 24, "depths": (2, 2), "num_heads": (1, 2), "img_size": 56, "num_classes": 3}
    return timm.create_model("esvit_swin_tiny_patch4_window7_224", **{**arguments, **changes})


def original_names(model):
    """A Swin's state dict as the original programs name it."""
    state = {}
    for name, value in model.state_dict().items():
        name = re.sub(r"layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", name)
        state[name.replace("head.fc.", "head.")] = value
    return state


def esvit_file(student, teacher):
    tree = {}
    for part, model in (("student", student), ("teacher", teacher)):
        state = {key: value for key, value in original_names(model).items() if not key.startswith("head.")}
        tree[part] = {f"module.{key}": value for key, value in {**state, **{k: torch.ones(2) for k in HEADS}}.items()}
    return {**tree, "optimizer": {"state": {}}, "epoch": 3}


def test_esvit__gives_the_teacher_or_the_student_without_heads(tmp_path):
    student, teacher = small_swin(), small_swin()
    torch.save(esvit_file(student, teacher), tmp_path / "checkpoint.pth")
    for network, source in ((None, teacher), ("teacher", teacher), ("student", student)):
        model = small_swin()
        report = paucal.load_published(model, tmp_path / "checkpoint.pth", network)
        assert torch.equal(model.layers[1].blocks[0].mlp.fc1.weight, source.layers[1].blocks[0].mlp.fc1.weight)
        assert report.program == "microsoft/esvit"
        assert sorted(report.method) == sorted(HEADS)
        assert (report.share, report.unused, report.fresh) == (1, (), ())
        assert report.classifier == "fresh, since the loaded weights have none"
        assert "written by microsoft/esvit" in str(report)
    with pytest.raises(
        UserError, match=r"--init-network: the file checkpoint.pth has no network 'momentum'; it contains student"
    ):
        paucal.load_published(small_swin(), tmp_path / "checkpoint.pth", "momentum")


def test_dino__gives_the_backbone_of_its_teacher(tmp_path):
    arguments = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 0}
    source = timm.create_model("deit_tiny_patch16_224", **arguments)
    state = {f"module.backbone.{key}": value for key, value in source.state_dict().items()}
    state |= {f"module.head.{key.removeprefix('head.')}": torch.ones(2) for key in HEADS[:3]}
    torch.save({"student": {key: value + 1 for key, value in state.items()}, "teacher": state}, tmp_path / "dino.pth")
    model = timm.create_model("deit_tiny_patch16_224", **arguments)
    report = paucal.load_published(model, tmp_path / "dino.pth")
    assert torch.equal(model.blocks[1].attn.qkv.weight, source.blocks[1].attn.qkv.weight)
    assert (report.share, report.fresh) == (1, ())


def test_another_variant__is_refused_with_the_shapes():
    state = original_names(small_swin(depths=(2, 3)))
    state["layers.0.blocks.0.mlp.fc1.weight"] = torch.zeros(48, 24)
    with pytest.raises(
        UserError, match=r"was written by microsoft/Swin-Transformer, but 1 of its tensors .* 48x24 in the file"
    ):
        start_from(small_swin(), StartWeights({"model": state}, "a file"))


def test_another_architecture__is_refused(tmp_path):
    torch.save(original_names(small_swin()), tmp_path / "swin.pth")
    with pytest.raises(UserError, match="the right shape"):
        paucal.load_published(timm.create_model("vit_mini"), tmp_path / "swin.pth")


def test_code_in_a_file__does_not_run(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    (tmp_path / "bad.pth").write_bytes(pickle.dumps({"model": Hostile()}))
    with pytest.raises(UserError, match="refused"):
        paucal.load_published(small_swin(), tmp_path / "bad.pth")
    assert not (tmp_path / "ran").exists()


def test_pick_network__names_what_is_there():
    tree = {"student": {"a": torch.zeros(1)}, "teacher": {"a": torch.ones(1)}}
    assert pick_network(tree, "student", "it")["student"]["a"].item() == 0
    with pytest.raises(UserError, match="contains one network without a name"):
        pick_network({"a": torch.zeros(1)}, "student", "it")
