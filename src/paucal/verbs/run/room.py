"""What a run or an evaluation takes of the memory, found before it is taken."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from paucal.backbones.cost import BYTES, Cost, image_cost
from paucal.backbones.layout import Size
from paucal.backbones.sizing import fit_to_image_size
from paucal.backbones.spec import BackboneSpec
from paucal.memory import available_memory
from paucal.settings.groups import JobSettings
from paucal.training.memory import is_out_of_memory
from paucal.types import UserError
from paucal.wording import counted

GIB = 2**30
COPIES = {"adamw": 4, "sgd": 3, "lars": 3}  # of the weights: themselves, their gradients, the optimizer's moments
USUAL = 16 * 224 * 224  # pixels of a step that every machine can make
MOST_IMAGES = 1 << 20  # of an optimizer step
CHANNELS = 3


def check_room(settings: JobSettings, spec: BackboneSpec, views: float = 1.0) -> list[str]:
    """Refuse a run whose steps cannot fit in the memory, and return a remark on one that takes much.

    What is counted is a lower bound: the weights with their optimizer, and what one forward pass keeps for the
    backward pass. Nothing is built for it.

    Args:
        settings: resolved.
        spec: of the backbone.
        views: of each image, counted in pixels of the size of the backbone.

    Raises:
        UserError: it cannot fit.
    """
    check_step(settings.effective_batch)
    batch = 1 if settings.batch_size == "auto" else settings.images_per_pass
    pixels = spec.image_size[0] * spec.image_size[1]
    if batch * pixels * views <= USUAL and not spec.arguments:
        return []
    cost = cost_of(spec)
    if cost is None:
        return []
    half = 1 if (settings.precision or "32-true") == "32-true" else 2
    copies = COPIES[getattr(settings, "optimizer", "adamw")]
    weights, image = copies * BYTES * cost.parameters, round(views * cost.kept / half)
    local = 1 if settings.device == "cuda" else settings.devices or 1
    room = _memory(settings) // local
    needed = weights + batch * image
    if needed <= room // 2:
        return []
    size = _times(spec.image_size)
    step = f"a step of {counted(batch, 'image')} of {size} pixels"
    words = f"{step} takes {spec.name} at least {needed / GIB:.3g} GiB of memory"
    there = f"{room / GIB:.3g} GiB{' for each process' if local > 1 else ''}"
    if needed <= room:
        return [f"{words}, and there are {there}"]
    fitting = (room - weights) // max(image, 1)
    advice = f"give --batch-size {fitting} or less, or lower --img-size" if fitting >= 1 else "lower --img-size"
    raise UserError(f"{words}, and this machine has {there}: {advice}, or choose a smaller --model.")


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn a failure to get memory for networks into a sentence; heads are not counted beforehand.

    Raises:
        UserError: the memory does not suffice.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        raise UserError(
            "the networks and the heads of their losses do not fit in this machine's memory: choose a smaller --model "
            "or narrower heads."
        ) from problem


def check_batch(batch: int, image_size: Size) -> None:
    """Refuse a batch to look at that cannot fit in the memory.

    Raises:
        UserError: it cannot.
    """
    height, width = image_size
    one = CHANNELS * height * width * BYTES
    free = available_memory()
    if batch * one > free:
        raise UserError(
            f"--batch-size {batch} takes {batch * one / GIB:.3g} GiB for images of {height}x{width} pixels alone, and "
            f"{free / GIB:.3g} GiB of this machine's memory are free: give {max(1, free // (4 * one))} or less."
        )


def check_step(images: int) -> None:
    """Refuse optimizer steps of more images than anybody has a use for.

    Raises:
        UserError: there are more than a million.
    """
    if images > MOST_IMAGES:
        raise UserError(
            f"an optimizer step would take {images:,} images (--batch-size times --accumulate times the processes), "
            f"expected {MOST_IMAGES:,} at most: give less."
        )


def cost_of(spec: BackboneSpec) -> Cost | None:
    """Return what an image costs the backbone of a spec; None where that cannot be found."""
    arguments: Mapping[str, Any] = fit_to_image_size(spec.name, spec.image_size, spec.arguments).arguments
    return image_cost(spec.name, spec.image_size, {**spec.arguments, **arguments})


def _memory(settings: JobSettings) -> int:
    if settings.device == "cuda" and torch.cuda.is_available():
        return torch.cuda.mem_get_info()[1]
    return available_memory()


def _times(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
