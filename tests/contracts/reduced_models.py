"""A reduced build of every model that paucal registers: its architecture, narrower and shallower."""

from typing import Any, NamedTuple

import timm
import torch
from torch import nn

from paucal.backbones.families.common.contract import PAPERS


class Reduced(NamedTuple):
    """How to build one small, and the image sizes it takes then.

    Attributes:
        arguments: of the constructor.
        size: (height, width) it is built for.
        others: further sizes that one build takes; empty where a build is bound to its size.
        bound: whether `img_size` has to be given for another size.
    """

    arguments: dict[str, Any]
    size: tuple[int, int] = (64, 64)
    others: tuple[tuple[int, int], ...] = ()
    bound: bool = False


# By the beginning of the name; the longest that fits counts.
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}
BOUND = {**SMALL, "img_size": (64, 64)}
STAGES = {"embed_dims": (16, 24, 32, 48), "num_heads": (1, 2, 2, 3)}
FREE = ((64, 96), (96, 64))
SWIN = {"embed_dim": 16, "depths": (1, 2, 2, 1), "num_heads": (1, 2, 2, 4), "window_size": 4, "img_size": (64, 64)}
REDUCED: dict[str, Reduced] = {
    "cvt_": Reduced({"embed_dims": (16, 24, 32), "depths": (1, 1, 2), "num_heads": (1, 2, 2)}, others=FREE),
    "dhvt_": Reduced(SMALL, others=FREE),
    "dhvt_mini": Reduced(SMALL, (16, 16), ((16, 24), (24, 16))),
    "dhvt_tiny_cifar": Reduced(SMALL, (16, 16), ((16, 24), (24, 16))),
    "dhvt_small_cifar": Reduced(SMALL, (16, 16), ((16, 24), (24, 16))),
    "drloc_cvt_": Reduced({"embed_dims": (16, 24, 32), "depths": (1, 1, 2), "num_heads": (1, 2, 2)}, others=FREE),
    "drloc_vit": Reduced(BOUND, bound=True),
    "esvit_cvt": Reduced({**STAGES, "depths": (1, 1, 2, 1)}, others=FREE),
    "esvit_deit": Reduced(BOUND, others=FREE),
    "esvit_vit": Reduced(BOUND, others=FREE),
    "esvit_swin": Reduced(SWIN, others=FREE),
    "esvit_vil": Reduced({**STAGES, "depths": (1, 1, 2, 1), "window_size": 3, "img_size": (64, 64)}, others=FREE),
    "lvvit_": Reduced({**BOUND, "stem_width": 8}, bound=True),
    "lvvit_vit_s": Reduced(BOUND, bound=True),
    "padded_swin": Reduced(SWIN, others=FREE),
    "resnet18_cifar": Reduced({"channels": (8, 16, 24, 32), "zero_init_last": False}, (32, 32), ((32, 48), (48, 32))),
    "t2t_vit_": Reduced({**BOUND, "token_dim": 16}, bound=True),
    "t2t_vit_t_": Reduced({**BOUND, "token_dim": 24}, bound=True),
    "vil_": Reduced({**STAGES, "depths": (1, 1, 2, 1), "window_size": 3, "img_size": (64, 64)}, others=FREE),
    "vit_mini": Reduced({**SMALL, "img_size": (32, 32)}, (32, 32), bound=True),
    "vit_small_cifar": Reduced({**SMALL, "img_size": (16, 16)}, (16, 16), bound=True),
    "vit_tiny_cifar": Reduced({**SMALL, "img_size": (16, 16)}, (16, 16), bound=True),
}


def reduced(name: str) -> Reduced:
    found = [start for start in REDUCED if name.startswith(start)]
    assert found, f"{name} has no reduced build: add one to tests/contracts/reduced_models.py"
    return REDUCED[max(found, key=len)]


def build(name: str, seed: int = 0, **changes: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return timm.create_model(name, **{"num_classes": 5, **reduced(name).arguments, **changes}).eval()


def images(size: tuple[int, int], count: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(1))


OURS = [name for name in timm.list_models() if name in PAPERS]
# One per reduced build: further variants would repeat the same test.
ONE_EACH = list({str(reduced(name)): name for name in reversed(OURS)}.values())
