"""The optimizers of a run, over the groups of `groups.parameter_groups`."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.optim.lars import Lars
from torch.optim import SGD, AdamW, Optimizer

from paucal.training.plan import Optimization

TRUST = 1e-3  # LARS' coefficient in EsViT's program
UNAWARE = ("mps",)  # where torch's fused AdamW takes `found_inf` and makes the step all the same


def build_optimizer(groups: Sequence[dict[str, Any]], settings: Optimization) -> Optimizer:
    """Return the optimizer of a run; learning rates and weight decays of its groups are set before every step.

    SGD and LARS have momentum, and their weight decay is part of the gradient, as in EsViT's program. LARS (You et al.
    2017) scales the step of each tensor to its length; what is not decayed, such as norms and biases, it steps as SGD.

    Args:
        groups: Dictionaries with `params`, `names`, `label` and `decayed`.
        settings: Name and hyperparameters of the optimizer.
    """
    if settings.optimizer == "sgd":
        return SGD(list(groups), lr=0.0, momentum=settings.momentum)
    if settings.optimizer == "lars":
        # Else timm's would leave out the scaling whenever the decay of the moment is 0.
        scaled = [{**group, "always_adapt": group["decayed"]} for group in groups]
        numbers: Any = {
            "momentum": settings.momentum,
            "trust_coeff": TRUST,
        }  # timm's default of 0 passes for an integer
        return Lars(scaled, lr=0.0, **numbers)
    # The fused version supports `found_inf`, with which non-finite steps are skipped.
    return AdamW(list(groups), lr=0.0, betas=settings.betas, eps=settings.eps, fused=True)


def looks_at_found_inf(optimizer: Optimizer, device: torch.device) -> bool:
    """Return whether an optimizer skips a step by itself if `found_inf` is 1.

    SGD and LARS do not, fused SGD neither: torch leaves its momentum undefined where the first step is skipped, and
    refuses parameters whose gradients come later than those of others, as EsViT's prototypes' do.
    """
    return device.type not in UNAWARE and bool(getattr(optimizer, "_step_supports_amp_scaling", False))
