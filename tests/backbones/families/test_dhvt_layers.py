"""DHVT's parts against naive loops: the patch embedding, head tokens and every operation of the feed-forward."""

from typing import Any

import pytest
import torch
from timm.layers.attention import Attention
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.attention_maps import recorded_attention
from paucal.backbones.families.dhvt import (
    Daff,
    DhvtParts,
    FeedForward,
    HeadInteractedAttention,
    PlainFeedForward,
    Sope,
)

GRID, DIM, HIDDEN, HEADS = (2, 3), 8, 12, 2


def randomised(module: nn.Module) -> nn.Module:
    """Give every parameter and running statistic a value that shows in the output."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if name.endswith("running_var"):
                value.uniform_(0.5, 2, generator=generator)
            elif value.is_floating_point():
                value.normal_(0, 0.5, generator=generator)
    return module.eval().double()


def tokens(count: int = 2) -> Tensor:
    shape = (count, 1 + GRID[0] * GRID[1], DIM)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()


def sope(patch: int, width: int = 8, **parts: Any) -> Sope:
    return randomised(Sope((32, 32), patch, 3, width, DhvtParts(**parts)))


def picture(height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2)).double()


@pytest.mark.parametrize(("patch", "widths"), [(2, [16]), (4, [8, 16]), (8, [4, 8, 16]), (16, [2, 4, 8, 16])])
def test_sope__halves_the_grid_once_per_convolution(patch: int, widths: list[int]) -> None:
    layer = sope(patch, 16)
    convolutions = [module for module in layer.modules() if isinstance(module, nn.Conv2d)]
    assert [one.out_channels for one in convolutions] == widths
    x = picture() * layer.pre_affine.alpha + layer.pre_affine.beta
    for index, one in enumerate(convolutions):
        norm = layer.proj[2 * index][1]
        x = functional.conv2d(x, one.weight, None, stride=2, padding=1)
        x = functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        if patch == 2 or index < len(convolutions) - 1:
            x = functional.gelu(x)
    torch.testing.assert_close(layer(picture()), x * layer.post_affine.alpha + layer.post_affine.beta)


def test_sope__rounds_the_grid_up() -> None:
    layer = Sope((31, 33), 4, 3, 8, DhvtParts())
    assert layer.grid_size == (8, 9)
    assert layer(torch.zeros(1, 3, 31, 33)).shape == (1, 8, 8, 9)


def test_sope__can_normalise_the_channels_of_each_cell() -> None:
    layer = sope(4, sope_norm="layer", post_affine=False)
    norm = layer.proj[2][1]
    with torch.no_grad():
        norm.weight.fill_(1)
        norm.bias.fill_(0)
    cells = layer(picture())
    torch.testing.assert_close(cells.mean(1), torch.zeros(2, 8, 8).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(cells.var(1, unbiased=False), torch.ones(2, 8, 8).double(), atol=1e-3, rtol=0)
    assert not any("running" in name for name in layer.state_dict())


def test_sope__goes_without_either_affine() -> None:
    full = sope(4)
    for side, other in (("pre_affine", "post_affine"), ("post_affine", "pre_affine")):
        less = Sope((32, 32), 4, 3, 8, DhvtParts(**{side: False})).eval().double()
        kept = {name: value for name, value in full.state_dict().items() if side not in name}
        less.load_state_dict(kept)  # strict: the other affine is still there
        neutral = sope(4)
        neutral.load_state_dict(full.state_dict())
        nn.init.ones_(getattr(neutral, side).alpha)
        nn.init.zeros_(getattr(neutral, side).beta)
        torch.testing.assert_close(less(picture()), neutral(picture()))
        assert (less(picture()) - full(picture())).abs().max() > 0.1
        assert any(other in name for name in kept)


def test_sope__refuses_other_patches() -> None:
    with pytest.raises(
        ValueError, match=r"patch_size is 6; with SOPE it must be one of \(2, 4, 8, 16\): change it or use sope=False"
    ):
        Sope((32, 32), 6, 3, 8, DhvtParts())
    with pytest.raises(ValueError, match="embed_dim is 12; SOPE with patch_size 16 needs a multiple of 8"):
        Sope((32, 32), 16, 3, 12, DhvtParts())


def naive_attention(layer: HeadInteractedAttention, x: Tensor) -> Tensor:
    """Attend as the supplement's section 1.3 says, one image, head and query at a time."""
    width, count = DIM // HEADS, x.shape[1]
    rows = []
    for image in x:
        extra = []
        for head in range(HEADS):
            mean = torch.stack([token[head * width : (head + 1) * width] for token in image]).mean(0)
            wide = layer.ht_proj.weight @ mean + layer.ht_proj.bias
            parts = [wide[start : start + width] for start in range(0, DIM, width)]
            normed = [(p - p.mean()) / (p.var(unbiased=False) + 1e-5).sqrt() for p in parts]
            normed = [p * layer.ht_norm.weight + layer.ht_norm.bias for p in normed]
            extra.append(functional.gelu(torch.cat(normed)) + layer.pos_embed[0, head])
        sequence = torch.stack([*image, *extra])
        joint = sequence @ layer.qkv.weight.T + layer.qkv.bias
        query, key, value = joint[:, :DIM], joint[:, DIM : 2 * DIM], joint[:, 2 * DIM :]
        outputs = []
        for head in range(HEADS):
            part = slice(head * width, (head + 1) * width)
            for_head = []
            for q in query[:, part]:
                weights = torch.stack([q @ k / width**0.5 for k in key[:, part]]).exp()
                for_head.append(sum(w * v for w, v in zip(weights / weights.sum(), value[:, part], strict=True)))
            outputs.append(torch.stack(for_head))
        out = torch.cat(outputs, 1) @ layer.proj.weight.T + layer.proj.bias
        rows.append(torch.cat((out[:1] + out[count:].mean(0), out[1:count])))
    return torch.stack(rows)


@pytest.mark.parametrize("fused", [True, False])
def test_attention__is_joined_by_one_token_per_head(fused: bool) -> None:
    layer = randomised(HeadInteractedAttention(DIM, HEADS))
    layer.fused_attn = fused
    torch.testing.assert_close(layer(tokens()), naive_attention(layer, tokens()))


def test_attention__paths_have_equal_gradients() -> None:
    layer, outcomes = randomised(HeadInteractedAttention(DIM, HEADS)), []
    for fused in (True, False):
        layer.fused_attn, x = fused, tokens().requires_grad_()
        outcomes.append(torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()]))
    torch.testing.assert_close(*outcomes)


def test_attention__shows_weights_of_class_cells_and_head_tokens() -> None:
    layer = nn.ModuleDict({"attn": randomised(HeadInteractedAttention(DIM, HEADS))})
    with recorded_attention(layer) as maps:
        layer["attn"](tokens())
    assert maps["attn"].shape == (2, HEADS, 1 + 6 + HEADS, 1 + 6 + HEADS)
    torch.testing.assert_close(maps["attn"].sum(-1), torch.ones(2, HEADS, 9).double())


def test_attention__without_head_tokens_is_that_of_a_vit() -> None:
    layer = randomised(HeadInteractedAttention(DIM, HEADS, head_tokens=False))
    plain = Attention(DIM, HEADS, qkv_bias=True).double().eval()
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(tokens()), plain(tokens()))


def naive_norm(norm: nn.Module | None, x: Tensor) -> Tensor:
    """Normalise one token's channels (C,)."""
    if isinstance(norm, nn.BatchNorm2d):
        return (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    if norm is None:
        return x
    return (x - x.mean()) / (x.var(unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias


def naive_local(layer: FeedForward, cells: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    if options["local"] == "none":
        return cells
    rows, columns = GRID
    convolution = layer.conv2 if isinstance(layer, Daff) else layer.local
    mixed = []
    for row in range(rows):
        for column in range(columns):
            total = torch.zeros(HIDDEN).double()
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    r, c = row + down, column + right
                    if not (0 <= r < rows and 0 <= c < columns):
                        continue
                    weight = convolution.weight[:, 0, down + 1, right + 1] if options["local"] == "conv" else 1 / 9
                    total = total + weight * cells[r * columns + c]
            total = total + (convolution.bias if options["local"] == "conv" else 0)
            if isinstance(layer, Daff):
                total = functional.gelu(naive_norm(layer.bn2, total))
            mixed.append(total + cells[row * columns + column] if options["shortcut"] else total)
    return mixed


def naive_feed_forward(layer: Daff | PlainFeedForward, x: Tensor, options: dict[str, Any]) -> Tensor:
    """Compute a feed-forward with these operations, one token at a time."""
    daff = isinstance(layer, Daff)
    first, last = (layer.conv1, layer.conv3) if daff else (layer.fc1, layer.fc2)
    rows = []
    for image in x:
        inside = [first.weight.flatten(1) @ token + first.bias for token in image]
        hidden = [functional.gelu(naive_norm(layer.bn1 if daff else None, token)) for token in inside]
        hidden = [hidden[0], *naive_local(layer, hidden[1:], options)]
        out = [naive_norm(layer.bn3 if daff else None, last.weight.flatten(1) @ h + last.bias) for h in hidden]
        if options["split_cls"]:
            out[0] = image[0]
        if options["aggregate"] != "none":
            squeezed = layer.compress.weight @ torch.stack(out[1:]).mean(0) + layer.compress.bias
            gate = layer.excitation.weight @ functional.gelu(squeezed) + layer.excitation.bias
            out = [t * gate if index == 0 or options["aggregate"] == "all" else t for index, t in enumerate(out)]
        rows.append(torch.stack(out))
    return torch.stack(rows)


OPERATIONS = [
    {},
    {"daff_norm": "layer"},
    {"shortcut": False},
    {"aggregate": "all"},
    {"aggregate": "none"},
    {"local": "pool"},
    {"local": "none"},
    {"split_cls": False},
    {"split_cls": False, "aggregate": "none", "local": "pool", "shortcut": False},
    {"daff": False},
    {"daff": False, "split_cls": True},
    {"daff": False, "split_cls": True, "aggregate": "cls"},
    {"daff": False, "split_cls": True, "local": "pool"},
    {"daff": False, "aggregate": "all", "local": "conv", "shortcut": True},
]


def feed_forward(**parts: Any) -> Daff | PlainFeedForward:
    chosen = DhvtParts(**parts)
    return randomised((Daff if chosen.daff else PlainFeedForward)(DIM, HIDDEN, chosen))


@pytest.mark.parametrize("parts", OPERATIONS, ids=str)
def test_feed_forward__does_each_operation(parts: dict[str, Any]) -> None:
    layer = feed_forward(**parts)
    expected = naive_feed_forward(layer, tokens(), DhvtParts(**parts).feed_forward_options())
    torch.testing.assert_close(layer(tokens(), GRID), expected)


def test_feed_forward__has_gradients_through_the_sum_in_place() -> None:
    torch.manual_seed(0)
    layer = randomised(Daff(4, 4, DhvtParts())).train()
    x = torch.randn(2, 1 + 6, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda value: layer(value, GRID), (x,))


def test_dropout__acts_where_it_is_asked_for() -> None:
    daff = randomised(Daff(DIM, HIDDEN, DhvtParts(), drop=0.5)).train()
    assert 0.2 < (daff(tokens(64), GRID) == 0).double().mean() < 0.8
    layer = randomised(HeadInteractedAttention(DIM, HEADS, attn_drop=0.5, proj_drop=0.5)).train()
    assert (layer.attn_drop.p, layer.proj_drop.p) == (0.5, 0.5)
    assert 0.2 < (layer(tokens(64)) == 0).double().mean() < 0.8
