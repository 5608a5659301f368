"""A training step with low-rank adapters against one of all weights, on an accelerator."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from device_state import Piece, Row, Session
from measuring import interleaved, peak_memory, spread
from paucal.backbones import BackboneSpec
from paucal.objectives import Supervised
from paucal.objectives.finetuning import FineTuning
from paucal.types import Batch, Progress

MODEL, TOY_MODEL = "vit_base_patch16_224", "vit_mini"
RANKS = {"all weights": None, "rank 4": 4, "rank 16": 16}


def adapters(session: Session) -> Mapping[str, Callable[[], Row]]:
    """Return the training steps, by what learns."""
    return {name: partial(_step, session, rank) for name, rank in RANKS.items()}


def _step(session: Session, rank: int | None) -> Row:
    model, side, batch, repeats = (TOY_MODEL, 16, 4, 2) if session.toy else (MODEL, 224, 64, 30)
    device = torch.device(session.device)
    backbone = BackboneSpec(model, 100, image_size=(side, side)).build()
    objective = Supervised(backbone, tuning=FineTuning(lora_rank=rank)).to(device).train()
    learning = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-4)
    images = Batch(torch.arange(batch), [torch.randn(batch, 3, side, side)], torch.arange(batch) % 100).to(device)
    progress = Progress(0, 1, 1)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            total = objective(images, progress).total
        total.backward()
        objective.before_step(progress)
        optimizer.step()
        objective.after_step(progress)
        optimizer.zero_grad(set_to_none=True)

    seconds = interleaved({"step": step}, repeats, session.device)["step"]
    return {
        "images_per_second": spread([batch / value for value in seconds]),
        "peak_memory_mib": peak_memory(step, session.device),
        "learning": sum(parameter.numel() for parameter in learning),
        "settings": {"model": model, "side": side, "batch": batch, "rank": rank},
    }


def adapters_summary(parts: Mapping[str, Row]) -> Row:
    """Return the middle speed and the memory of each."""
    return {name: [row["images_per_second"]["median"], row["peak_memory_mib"]] for name, row in parts.items()}


PIECES = (
    Piece("adapters", "a step of ViT-B with low-rank adapters and with all weights", 0.5, adapters, adapters_summary),
)
