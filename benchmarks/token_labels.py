"""What token labels cost: making the maps, building the targets, and storing them.

    python benchmarks/token_labels.py
    python benchmarks/token_labels.py --device cuda --repeats 30

Maps: a teacher asked at every cell, its k strongest classes picked and written, over plain inference with the model.
Targets: K = 1000 classes and 128 images of 18x18 cells, over the dense way of the published program (plain/); the
results are compared first. Loader processes name the classes of a map, so a step waits only for the rest of our way,
which is timed alone as well.
"""

import argparse
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor

from measuring import interleaved, ratio, store, surroundings
from paucal.data.maps.reader import list_map_classes
from paucal.data.maps.store import LabelMapMetadata, MapWriter
from paucal.data.views.transforms import crop_geometry
from paucal.labeling import DenseTeacher
from paucal.labeling.teacher import largest_logits
from paucal.losses.label_targets import compact_maps, map_targets
from plain.token_targets import dense_targets

CLASSES, TOP, GRID, TOKENS, SMOOTHING = 1000, 5, 18, 14, 0.1
NAMED = 30  # different classes in a map


def make_maps(options: argparse.Namespace, folder: Path) -> dict[str, Callable[[], object]]:
    """Return plain inference, and what `paucal label` does with a batch."""
    model = timm.create_model(options.teacher, num_classes=CLASSES).eval().to(options.device)
    images = torch.randn(options.images, 3, options.size, options.size, device=options.device)
    teacher = DenseTeacher(copy.deepcopy(model), (options.size, options.size))
    names = tuple(str(number) for number in range(CLASSES))
    keys = [str(number) for number in range(options.images)]
    writer = MapWriter(folder, LabelMapMetadata("a teacher", names, teacher.grid, TOP), keys, keys)

    @torch.inference_mode()
    def plainly() -> Tensor:
        return model(images).cpu()

    @torch.inference_mode()
    def densely() -> None:
        values, indices = largest_logits(teacher(images)[0], TOP)
        writer.write(range(options.images), values.cpu().numpy(), indices.cpu().numpy())

    return {"maps": densely, "plain": plainly}


def make_batch(count: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, indices and boxes of random maps and crops."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.rand(count, CLASSES, generator=generator).argsort(1)[:, :NAMED]
    logits = torch.randn(count, NAMED, GRID, GRID, generator=generator) * 3 + 6
    values, places = logits.topk(TOP, 1)
    indices = classes[:, :, None, None].expand_as(logits).gather(1, places)
    corners = torch.rand(count, 2, generator=generator) * 0.5
    sides = 0.1 + torch.rand(count, 2, generator=generator) * (0.9 - corners)
    boxes = torch.cat((corners, torch.minimum(corners + sides, torch.ones(()))), 1)
    return values.half().to(device), indices.to(device), boxes.to(device)


def make_targets(options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Return our targets, from the loader's work on and without it, and the dense ones."""
    values, indices, boxes = make_batch(options.batch, options.device)
    thetas = [crop_geometry(tuple(box), (1, 1)) for box in boxes.tolist()]
    theta, on_cpu = torch.stack(thetas).to(options.device), indices.cpu()

    prepared = [part.to(options.device) for part in list_map_classes(on_cpu)]

    def sparsely() -> list[Any]:
        return prepared_targets(*(part.to(options.device) for part in list_map_classes(on_cpu)))

    def prepared_targets(named: Tensor, slots: Tensor) -> list[Any]:
        maps = compact_maps(values, slots, named.shape[1])
        sizes = ((1, 1), (TOKENS, TOKENS))
        return [map_targets(maps, named, theta, size, CLASSES).smoothed(SMOOTHING) for size in sizes]

    def densely() -> Tensor:
        return dense_targets(values.float(), indices, boxes, TOKENS, CLASSES, SMOOTHING)

    return {"sparse": sparsely, "sparse in the step": lambda: prepared_targets(*prepared), "dense": densely}


def difference(steps: dict[str, Callable[[], Any]]) -> float:
    """Return the largest difference between the two ways."""
    ours = torch.cat([part.dense() for part in steps["sparse"]()], 1).transpose(1, 2)
    return (ours - steps["dense"]()).abs().max().item()


def storage() -> dict[str, int]:
    """Return bytes per image: 18x18 cells of k = 5, with 1000 classes as the published maps, and with up to 256."""
    facts = {count: LabelMapMetadata("", tuple(map(str, range(count))), (GRID, GRID), TOP) for count in (CLASSES, 256)}
    return {f"{count} classes": fact.bytes_per_image for count, fact in facts.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return what maps, targets and their storage cost."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        making = interleaved(make_maps(options, Path(folder) / "maps"), options.repeats, options.device)
    building = make_targets(options)
    apart = difference(building)
    seconds = interleaved(building, options.repeats, options.device)
    return {
        "maps_over_plain_inference": ratio(making, "maps", "plain"),
        "dense_over_sparse_targets": ratio(seconds, "dense", "sparse"),
        "dense_over_sparse_in_the_step": ratio(seconds, "dense", "sparse in the step"),
        "largest_difference_of_targets": apart,
        "bytes_per_image": storage(),
        "settings": {**vars(options), "classes": CLASSES, "top": TOP, "grid": GRID, "named": NAMED},
        "surroundings": surroundings(options.device),
        "seconds": {**making, **seconds},
    }


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    store(f"token_labels_{options.device}", measure(options))


if __name__ == "__main__":
    main()
