"""Attribution: conservation of relevance, gradients that flow evenly, and the methods against their formulas."""

import importlib.util

import pytest
import timm
import torch
from torch import Tensor, nn

import paucal.backbones  # noqa: F401 (registers our models)
from paucal.explain.attention.reading import run_recorded
from paucal.explain.attribution import methods
from paucal.explain.attribution.gradients import gradient_features, gradient_rollout
from paucal.explain.attribution.methods import METHODS, attribute, methods_of, random_maps
from paucal.explain.attribution.pruning import PrunedGradients
from paucal.explain.attribution.relevance import layer_relevances, relevance
from paucal.explain.attribution.relevance_mode import LayerRule, RelevanceMode
from paucal.explain.prepared import prepare_for_hooks
from paucal.types import UserError

SIZE = (32, 48)
SMALL = {"depth": 2, "img_size": SIZE, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "num_classes": 4}
STAGED = {"img_size": SIZE, "patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4}
MODELS = {
    "vit_tiny_patch16_224": SMALL,
    "deit_tiny_distilled_patch16_224": SMALL,
    "lvvit_t": {**SMALL, "stem_width": 8},
    "dhvt_mini": SMALL,
    "vit_mini": {**SMALL, "patch_size": 1, "img_size": 32},
    "swin_tiny_patch4_window7_224": {**STAGED, "num_classes": 4},
    "esvit_swin_tiny_patch4_window7_224": {**STAGED, "num_classes": 4},
    "resnet18": {"num_classes": 4},
}
WITH_RULES = ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "lvvit_t", "dhvt_mini", "vit_mini"]
needs_captum = pytest.mark.skipif(importlib.util.find_spec("captum") is None, reason="captum is not installed")


def build(name: str, scale: float = 2.0) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, **MODELS[name]).eval()
    for parameter in model.parameters():
        parameter.data.mul_(scale if parameter.ndim > 1 else 1.0)
    return model


def images(name: str = "vit_tiny_patch16_224", count: int = 2) -> Tensor:
    size = (32, 32) if name == "vit_mini" else SIZE
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


CLASSES = torch.tensor([1, 3])


@pytest.mark.parametrize("name", WITH_RULES)
def test_relevance__is_conserved_from_the_class_to_every_block(name: str) -> None:
    model = build(name).double()
    kept: list[Tensor] = []
    blocks = list(model.get_submodule("blocks").children())
    if name == "lvvit_t":
        model.aux_weight = 0.0
    with prepare_for_hooks(model) as module:
        handles = [block.register_forward_hook(lambda m, i, out: kept.append(out)) for block in blocks]
        x = images(name).double().requires_grad_()
        with RelevanceMode():
            logits = module(x)
        one_hot = torch.zeros_like(logits).scatter(1, CLASSES[:, None], 1.0)
        found = torch.autograd.grad(logits, kept, one_hot)
        for handle in handles:
            handle.remove()
    assert len(found) == len(blocks)
    for part in found:
        # Quotients near zero, which are shifted by 1e-9, lose a little.
        torch.testing.assert_close(part.sum((1, 2)), torch.ones(2, dtype=torch.float64), rtol=1e-3, atol=0)


def test_relevance__of_a_linear_layer_is_shared_by_positive_products() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0]], requires_grad=True)
    weight = torch.tensor([[2.0, -1.0, -5.0]])
    out = LayerRule.apply(nn.functional.linear, x, weight, torch.tensor([100.0]))
    assert out.item() == 100.0 + 2 + 2 - 15
    (found,) = torch.autograd.grad(out, x, torch.tensor([[1.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5, 0.0]]))


def test_relevance__of_a_convolution_is_that_of_the_same_linear_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 5, 3, 4, generator=generator), torch.randn(6, 5, generator=generator)
    given = torch.rand(2, 6, 3, 4, generator=generator)
    cells = x.permute(0, 2, 3, 1).clone().requires_grad_()
    expected = torch.autograd.grad(
        LayerRule.apply(nn.functional.linear, cells, weight, None), cells, given.permute(0, 2, 3, 1)
    )[0]
    x.requires_grad_()
    out = LayerRule.apply(torch.conv2d, x, weight[:, :, None, None], None)
    torch.testing.assert_close(torch.autograd.grad(out, x, given)[0], expected.permute(0, 3, 1, 2))


@pytest.mark.parametrize("name", WITH_RULES)
def test_relevance__of_a_batch_is_that_of_single_images(name: str) -> None:
    model = build(name).double()
    together = relevance(model, images(name).double(), CLASSES)
    for row in range(2):
        alone = relevance(model, images(name)[row : row + 1].double(), CLASSES[row])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-6, atol=1e-12)
    other = relevance(model, images(name).double(), torch.tensor(0))
    assert not torch.allclose(together, other, rtol=1e-2)


@pytest.mark.parametrize("name", WITH_RULES)
def test_relevance_mode__leaves_values_as_they_are(name: str) -> None:
    model = build(name)
    with prepare_for_hooks(model) as module:
        x = images(name).requires_grad_()
        plain = module(x)
        with RelevanceMode():
            torch.testing.assert_close(module(x), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("products", ["halved", "values"])
@pytest.mark.parametrize("name", list(MODELS))
def test_pruned_gradients__leave_values_as_they_are(name: str, products: str) -> None:
    model = build(name, 1.0)
    with prepare_for_hooks(model) as module:
        x = images(name).requires_grad_()
        plain = module(x)
        with PrunedGradients(products):  # type: ignore[arg-type]
            torch.testing.assert_close(module(x), plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_pruned_gradients__times_input_add_up_to_the_logit_of_a_model_without_biases(name: str) -> None:
    model = build(name).double()
    for part, parameter in model.named_parameters():
        if part.endswith(("bias", "cls_token", "pos_embed")):
            parameter.data.zero_()
    with prepare_for_hooks(model) as module:
        x = images(name).double().requires_grad_()
        with PrunedGradients("values"):
            logit = module(x)[:, 1]
        found = torch.autograd.grad(logit.sum(), x)[0]
        plain = torch.autograd.grad(module(x)[:, 1].sum(), x)[0]
    torch.testing.assert_close((found * x).sum((1, 2, 3)), logit, rtol=1e-5, atol=1e-8)
    assert not torch.allclose((plain * x).sum((1, 2, 3)), logit, rtol=0.1)


def test_gradient_rollout__is_the_product_of_the_layers() -> None:
    model = build("vit_tiny_patch16_224")
    with prepare_for_hooks(model) as module:
        recorded = run_recorded(module, images().requires_grad_())
        one_hot = torch.zeros_like(recorded.logits).scatter(1, CLASSES[:, None], 1.0)
        gradients = recorded.gradients(one_hot)
    whole = torch.eye(25).expand(2, 25, 25)
    for one, gradient in zip(recorded.maps, gradients, strict=True):
        positive = (one.weights * gradient).clamp(min=0)[:, 0].mean(1).detach()
        whole = whole + positive @ whole
    expected = whole[:, 0, 1:].reshape(2, 4, 6)
    torch.testing.assert_close(gradient_rollout(model, images(), CLASSES), expected)


@pytest.mark.parametrize("name", ["lvvit_t", "dhvt_mini", "swin_tiny_patch4_window7_224", "vit_mini"])
@pytest.mark.parametrize("method", ["gradient-rollout", "libra-rollout", "libra"])
def test_methods__give_finite_maps_of_the_class(name: str, method: str) -> None:
    model = build(name)
    found = attribute(model, images(name), CLASSES, method)
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) > 0
    alone = attribute(model, images(name)[1:], CLASSES[1:], method)
    torch.testing.assert_close(found[1:], alone, rtol=1e-3, atol=1e-4 * float(found.abs().max()))
    assert not torch.allclose(found, attribute(model, images(name), torch.tensor(0), method), rtol=1e-2)


def test_gradient_features__of_a_convolutional_network_are_gradient_times_feature() -> None:
    model = build("resnet18", 1.0)
    found = gradient_features(model, images("resnet18"), CLASSES, pruned=False)
    assert found.shape == (2, 8, 12)
    kept: list[Tensor] = []
    handles = [
        block.register_forward_hook(lambda m, i, out: kept.append(out))
        for stage in range(1, 5)
        for block in model.get_submodule(f"layer{stage}").children()
    ]
    logits = model(images("resnet18"))
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(logits.gather(1, CLASSES[:, None]).sum(), kept)
    total = sum((one * g).sum((1, 2, 3)) for one, g in zip(kept, gradients, strict=True))
    torch.testing.assert_close(found.sum((1, 2)), (total / 8).detach(), rtol=1e-3, atol=1e-6)  # type: ignore


@needs_captum
def test_integrated_gradients__add_up_to_the_difference_from_the_mean_colour() -> None:
    model = build("vit_tiny_patch16_224", 1.0)
    found = attribute(model, images(), CLASSES, "integrated-gradients")
    assert found.shape == (2, *SIZE)
    with torch.no_grad():
        change = (model(images()) - model(torch.zeros(1, 3, *SIZE))).gather(1, CLASSES[:, None])[:, 0]
    torch.testing.assert_close(found.sum((1, 2)), change, rtol=2e-2, atol=1e-3)


@needs_captum
@pytest.mark.parametrize("name", ["resnet18", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224"])
def test_grad_cam__is_its_formula(name: str) -> None:
    model = build(name, 1.0)
    where = {"resnet18": "layer4.1", "vit_tiny_patch16_224": "blocks.0"}.get(name, "layers.1.blocks.1")
    kept: list[Tensor] = []
    handle = model.get_submodule(where).register_forward_hook(lambda m, i, out: kept.append(out))
    logits = model(images(name))
    handle.remove()
    gradient = torch.autograd.grad(logits.gather(1, CLASSES[:, None]).sum(), kept[0])[0]
    grids = []
    for one in (kept[0], gradient):
        if name.startswith("vit"):
            one = one[:, 1:].transpose(1, 2).unflatten(2, (4, 6))
        elif name.startswith("swin"):
            one = one.permute(0, 3, 1, 2)
        grids.append(one)
    expected = (grids[0] * grids[1].mean((2, 3), keepdim=True)).sum(1).clamp(min=0).detach()
    torch.testing.assert_close(attribute(model, images(name), CLASSES, "grad-cam"), expected)


def test_methods_of__follow_from_what_the_model_is() -> None:
    assert methods_of(build("vit_tiny_patch16_224")) == list(METHODS)
    assert "relevance" not in methods_of(build("swin_tiny_patch4_window7_224"))
    assert methods_of(build("resnet18")) == ["libra", "grad-cam", "integrated-gradients"]


def test_bad_input__is_told_in_one_sentence() -> None:
    model = build("vit_tiny_patch16_224")
    with pytest.raises(UserError, match="class 4 does not exist: the model has classes 0 to 3"):
        attribute(model, images(), torch.tensor(4), "relevance")
    with pytest.raises(UserError, match="got 3 classes for 2 images"):
        attribute(model, images(), torch.tensor([0, 1, 2]), "libra")
    with pytest.raises(UserError, match="the method is 'gradcam'; expected one of relevance"):
        attribute(model, images(), torch.tensor(0), "gradcam")
    with pytest.raises(UserError, match="supports only ViT, DeiT, LV-ViT and DHVT"):
        attribute(build("resnet18"), images("resnet18"), torch.tensor(0), "relevance")
    with pytest.raises(UserError, match="resnet18 has no attention weights to read"):
        attribute(build("resnet18"), images("resnet18"), torch.tensor(0), "gradient-rollout")
    with pytest.raises(UserError, match="has no classifier"):
        attribute(timm.create_model("vit_tiny_patch16_224", **{**SMALL, "num_classes": 0}), images(), CLASSES, "libra")


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "esvit_swin_tiny_patch4_window7_224", "resnet18"])
def test_models_without_a_classifier__have_no_class_to_explain(name: str) -> None:
    model = timm.create_model(name, **{**MODELS[name], "num_classes": 0}).eval()
    for method in methods_of(model):
        if METHODS[method].is_class_specific and (methods.has_captum() or method not in methods.CAPTUM_METHODS):
            with pytest.raises(UserError, match="has no classifier, so it has no classes to explain"):
                attribute(model, images(), CLASSES, method)


def test_half_precision__is_explained_in_float32() -> None:
    rounded = images().bfloat16()
    plain = layer_relevances(build("vit_tiny_patch16_224").bfloat16().float(), rounded.float(), CLASSES)
    found = layer_relevances(build("vit_tiny_patch16_224").bfloat16(), rounded, CLASSES).layers[-1].gradient
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, plain.layers[-1].gradient)  # the same network of rounded weights


def test_auto__takes_what_scored_best_and_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("dhvt_mini")
    for installed in (True, False):
        monkeypatch.setattr(methods, "has_captum", lambda installed=installed: installed)
        method, reason = methods.best_method(model)
        usable = [name for name in methods.BEST_METHODS["dhvt"] if installed or name not in methods.CAPTUM_METHODS]
        assert method == usable[0]
        assert "DHVT" in reason
    assert methods.family_of(build("swin_tiny_patch4_window7_224")) == "staged"
    assert methods.family_of(build("lvvit_t")) == "lvvit"
    assert methods.family_of(timm.create_model("test_vit")) == "vit"
    assert methods.family_of(timm.create_model("test_resnet")) == "convolutional"
    assert (
        methods.best_method(model, among=["rollout", *methods.BEST_METHODS["dhvt"][-1:]])[0]
        == methods.BEST_METHODS["dhvt"][-1]
    )


def test_random_maps__come_from_their_seed() -> None:
    assert torch.equal(random_maps(2, (3, 4), 5), random_maps(2, (3, 4), 5))
    assert not torch.equal(random_maps(2, (3, 4), 5), random_maps(2, (3, 4), 6))
