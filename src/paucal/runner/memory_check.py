"""Check whether a run or an evaluation fits in memory, before it starts."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paucal.backbones.cost import FLOAT_BYTES, image_cost
from paucal.backbones.layout import Size
from paucal.backbones.sizing import fit_to_image_size
from paucal.backbones.spec import BackboneSpec
from paucal.memory import is_out_of_memory, read_available_memory
from paucal.settings.shared import JobSettings
from paucal.types import UserError
from paucal.wording import counted

GIB = 2**30
# Memory of weights, gradients and optimizer state, as a multiple of the memory of the weights, by optimizer
MEMORY_FACTORS = {"adamw": 4, "sgd": 3, "lars": 3}
SMALL_STEP_PIXELS = 16 * 224 * 224  # forward passes with at most this number of pixels are not checked
MAX_STEP_IMAGES = 1 << 20  # maximum number of images per optimizer step
CHANNELS = 3  # number of channels that are assumed if the images are unknown


def check_memory(settings: JobSettings, spec: BackboneSpec, views: float = 1.0) -> list[str]:
    """Refuse a run whose steps cannot fit in memory; return a remark if a step needs more than half of the memory.

    The estimate is a lower bound, computed without building the model: weights, gradients, optimizer state, and the
    activations of a forward pass. `views` is the total number of pixels in all views of an image, relative to one image
    of the backbone's size.
    """
    check_step_size(settings.effective_batch)
    batch_size = 1 if settings.batch_size == "auto" else settings.batch_size_or_1
    pixels = spec.image_size[0] * spec.image_size[1]
    if batch_size * pixels * views <= SMALL_STEP_PIXELS and not spec.arguments:
        return []
    arguments = fit_to_image_size(spec.name, spec.image_size, spec.arguments).arguments
    cost = image_cost(spec.name, spec.image_size, {**spec.arguments, **arguments})
    if cost is None:
        return []
    activation_divisor = 1 if settings.precision == "32-true" else 2
    weight_factor = MEMORY_FACTORS[getattr(settings, "optimizer", "adamw")]
    weight_bytes = weight_factor * FLOAT_BYTES * cost.parameters
    image_bytes = round(views * cost.activation_bytes / activation_divisor)
    local_processes = 1 if settings.device == "cuda" else settings.devices
    on_gpu = settings.device == "cuda" and torch.cuda.is_available()
    available_bytes = (torch.cuda.mem_get_info()[1] if on_gpu else read_available_memory()) // local_processes
    needed_bytes = weight_bytes + batch_size * image_bytes
    if needed_bytes <= available_bytes // 2:
        return []
    height, width = spec.image_size
    step = f"a step of {counted(batch_size, 'image')} of {height}x{width} pixels"
    text = f"{step} needs at least {needed_bytes / GIB:.3g} GiB of memory with {spec.name}"
    available_text = f"{available_bytes / GIB:.3g} GiB{' for each process' if local_processes > 1 else ''}"
    if needed_bytes <= available_bytes:
        return [f"{text}, of {available_text}"]
    largest_batch = (available_bytes - weight_bytes) // max(image_bytes, 1)
    advice = f"give --batch-size {largest_batch} or less, or lower" if largest_batch >= 1 else "lower"
    raise UserError(f"{text}, but this machine has {available_text}: {advice} --img-size, or choose a smaller --model.")


@contextmanager
def explain_memory_errors() -> Iterator[None]:
    """Raise a UserError if memory runs out while networks are built, since `check_memory` does not count the heads."""
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        raise UserError(
            "the networks and the heads of their losses do not fit in this machine's memory: choose a smaller --model "
            "or narrower heads."
        ) from problem


@contextmanager
def seeded_random_weights(seed: int) -> Iterator[None]:
    """Within the block, draw the random weights of networks from a seed; raise a UserError if memory runs out.

    The weights do not depend on earlier random numbers, and later random numbers do not depend on the weights.
    """
    with torch.random.fork_rng(devices=[]), explain_memory_errors():
        torch.manual_seed(seed)
        yield


def check_batch_memory(batch_size: int, image_size: Size) -> None:
    """Refuse an evaluation batch whose images alone do not fit in the free memory."""
    height, width = image_size
    image_bytes = CHANNELS * height * width * FLOAT_BYTES
    free_bytes = read_available_memory()
    if batch_size * image_bytes > free_bytes:
        raise UserError(
            f"--batch-size {batch_size} takes {batch_size * image_bytes / GIB:.3g} GiB for the images of {height}x"
            f"{width} pixels alone, but only {free_bytes / GIB:.3g} GiB are free: give --batch-size "
            f"{max(1, free_bytes // (4 * image_bytes))} or less."
        )


def check_step_size(images: int) -> None:
    """Refuse optimizer steps of more than `MAX_STEP_IMAGES` images."""
    if images > MAX_STEP_IMAGES:
        raise UserError(
            f"an optimizer step would take {images:,} images (--batch-size times --accumulate times the processes), "
            f"expected {MAX_STEP_IMAGES:,} at most: lower --batch-size or --accumulate."
        )
