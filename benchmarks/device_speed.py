"""The measurements of time and memory that need an accelerator, with the functions of the other benchmarks."""

import os
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import backbones
import drloc_overhead
import esvit_loss
import esvit_step
import paucal
import token_labels
import training
from device_state import Piece, Row, Session
from measuring import interleaved, peak_memory, spread, synchronize
from paucal.backbones import BackboneSpec
from paucal.cores import count_usable_cores
from paucal.objectives import Supervised
from paucal.training import largest_batch
from paucal.types import Batch

SWIN = "swin_tiny_patch4_window7_224"
Parts = Mapping[str, Callable[[], Row]]


def _step_options(session: Session, precision: str, compiled: bool = False, batch: int = 128) -> Namespace:
    """Return the options of `drloc_overhead`."""
    small = {"model": "vit_mini", "size": 16, "batch": 4, "repeats": 3}
    large = {"model": SWIN, "size": 224, "batch": batch, "repeats": 30}
    how = {"device": session.device, "precision": precision, "compile": compiled, "backend": session.backend}
    return Namespace(**(small if session.toy else large), pairs=64, **how)


def overhead(session: Session) -> Parts:
    """DrLoc's share of a training step."""
    cases = {"eager bf16": ("bf16", False), "compiled bf16": ("bf16", True), "eager fp32": ("fp32", False)}
    return {
        name: partial(drloc_overhead.measure, _step_options(session, precision, compiled))
        for name, (precision, compiled) in cases.items()
    }


def overhead_summary(parts: Mapping[str, Row]) -> Row:
    """The share in percent."""
    return {name: {"percent": round(100 * (row["ratio"]["median"] - 1), 2)} for name, row in parts.items()}


def losses(session: Session) -> Parts:
    """EsViT's losses alone."""
    options = Namespace(
        device=session.device,
        precision="bf16",
        prototypes=256 if session.toy else esvit_loss.PROTOTYPES,
        repeats=2 if session.toy else 20,
        timed_up_to=1 << 20,
    )
    counts = (2,) if session.toy else (8, 32, 64, 128)

    def measured(images: int) -> Row:
        return {**esvit_loss.measure(images, options), "settings": vars(options)}

    return {f"{count} images": partial(measured, count) for count in counts}


def losses_summary(parts: Mapping[str, Row]) -> Row:
    """How many times the plain way takes of time and memory."""
    return {name: {"time": row.get("time_ratio"), "memory": row["memory_ratio"]} for name, row in parts.items()}


def steps(session: Session) -> Parts:
    """A whole step of EsViT."""
    sizes = {"batch": 2, "prototypes": 64, "repeats": 2} if session.toy else {"batch": 128, "prototypes": 65536}
    options = {"repeats": 20, "device": session.device, **sizes}
    return {name: partial(esvit_step.measure, Namespace(**options, precision=name)) for name in ("bf16", "fp32")}


def steps_summary(parts: Mapping[str, Row]) -> Row:
    """How many times as long the plain step takes, and the memory of both."""
    return {name: {"time": row["ratio"], "peak_memory_mib": row["peak_memory_mib"]} for name, row in parts.items()}


def families(session: Session) -> Parts:
    """Our backbones beside plain ones."""
    cases = backbones.CASES[:1] if session.toy else backbones.CASES
    parts: dict[str, Callable[[], Row]] = {}
    for compiled in (False, True):
        options = Namespace(
            batch=2 if session.toy else 64,
            repeats=3 if session.toy else 20,
            device=session.device,
            precision="bf16",
            compile=compiled,
            backend=session.backend,
        )
        for case in cases:
            name = f"{case[0]} at {case[2]}, {'compiled' if compiled else 'eager'}"
            parts[name] = partial(_compared, case, options)
    return parts


def _compared(case: tuple[str, str, int, int], options: Namespace) -> Row:
    torch.compiler.reset()
    return {**backbones.compare(*case, options), "settings": vars(options)}


def families_summary(parts: Mapping[str, Row]) -> Row:
    """How many times as fast ours are."""
    return {name: {task: row[task]["ratio"]["median"] for task in ("forward", "step")} for name, row in parts.items()}


def loaders(session: Session) -> Parts:
    """Images per second, to the device, by loader processes."""
    cores = os.cpu_count() or 1
    counts = [0, 2] if session.toy else sorted({0, 2, 4, 8, min(16, cores - 1)} & set(range(cores)))
    sides = {"cifar10": 32} if session.toy else {"cifar10": 32, "clothing": 224}
    return {
        f"{name} at {side}, {count} processes": partial(_loaded, session, name, side, count)
        for count in reversed(counts)  # the more processes, the shorter and the more telling
        for name, side in sides.items()
    }


def _loaded(session: Session, name: str, side: int, workers: int) -> Row:
    images, batch, epochs = (64, 8, 3) if session.toy else (3000, 128, 4)
    options = Namespace(size=side, batch=batch, epochs=epochs, workers=workers, device=session.device)
    folder = _exported(session, name, images)
    count = images // batch
    plain = training.plain_loader(folder, options)
    again = (pair for _ in range(epochs) for pair in plain)
    speeds = {
        "ours": training.loading_speeds(_moved(training.our_batches(folder, options), session.device), count, options),
        "plain": training.loading_speeds(_moved(again, session.device), count, options),
    }
    return {"images_per_second": {way: spread(values) for way, values in speeds.items()}, "settings": vars(options)}


def _exported(session: Session, name: str, images: int) -> Path:
    """Return a folder of some images of a set, written when it is first asked for."""
    folder = session.work / f"png-{name}-{images}"
    if not folder.exists():
        source = session.source(name)
        assert source is not None
        draft = folder.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)  # of a call that was cut short
        training.export(str(source / "train.parquet"), images, draft)
        draft.rename(folder)
    return folder


def _moved(batches: Iterable[Any], device: str) -> Iterator[Any]:
    for batch in batches:
        if isinstance(batch, Batch):
            there: Any = batch.to(device, non_blocking=True)
        else:
            there = [part.to(device) for part in batch]
        synchronize(device)
        yield there


def loaders_summary(parts: Mapping[str, Row]) -> Row:
    """Ours alone."""
    return {name: row["images_per_second"]["ours"]["median"] for name, row in parts.items()}


def whole_epochs(session: Session) -> Parts:
    """Training beside timm's parts in a plain loop."""
    small = ["patch_size=4", "embed_dim=64", "depth=6", "num_heads=2"]
    cases = {"ViT of 0.3 M at 32": ("cifar10", 32, "vit_tiny_patch16_224", small)}
    if not session.toy:
        cases["Swin-T at 224"] = ("clothing", 224, SWIN, [])
    return {name: partial(_trained, session, *case) for name, case in cases.items()}


def _trained(session: Session, name: str, side: int, model: str, arguments: list[str]) -> Row:
    sizes = {"images": 64, "batch": 8, "epochs": 3, "turns": 1} if session.toy else {"images": 3000, "batch": 128}
    options = Namespace(
        **{"model": model, "model_args": arguments, "size": side, "epochs": 4, "turns": 2, **sizes},
        workers=0 if session.toy else min(15, count_usable_cores() - 1),
        device=session.device,
        precision="bf16",
    )
    return {**training.measure(_exported(session, name, options.images), options), "settings": vars(options)}


def whole_epochs_summary(parts: Mapping[str, Row]) -> Row:
    """How many times as fast ours is, in whole epochs and in loading alone."""
    return {name: {key: row[f"{key}_ratio"]["median"] for key in ("speed", "loading")} for name, row in parts.items()}


def targets(session: Session) -> Parts:
    """Token labels: maps and targets."""
    small = {"teacher": "resnet10t", "size": 64, "images": 2, "batch": 2, "repeats": 2}
    large = {"teacher": "resnet50", "size": 224, "images": 64, "batch": 128, "repeats": 30}
    options = Namespace(device=session.device, **(small if session.toy else large))
    return {"token labels": partial(token_labels.measure, options)}


def search(session: Session) -> Parts:
    """The largest batch that fits."""
    precisions = {"bf16": "bf16-mixed", "fp32": "32-true"}
    return {name: partial(_searched, session, name, precision) for name, precision in precisions.items()}


def _searched(session: Session, name: str, precision: str) -> Row:
    options = _step_options(session, name)
    side = options.size
    sizes = [8, 4] if session.toy else [2**n for n in range(13, 3, -1)]
    torch.manual_seed(0)
    objective = Supervised(BackboneSpec(options.model, 100, image_size=(side, side)).build(drop_path_rate=0.2))

    def make(size: int) -> Batch:
        few = torch.randn(4, 3, side, side)  # to draw thousands takes longer than the search
        return Batch(torch.arange(size), [few.repeat(size // 4, 1, 1, 1)], torch.arange(size) % 100)

    begin = time.perf_counter()
    found = largest_batch(objective, make, sizes, torch.device(session.device), precision)
    seconds = time.perf_counter() - begin
    options.batch = found
    step = drloc_overhead.make_step(options, False)
    step()  # what was found must fit with the optimizer's state, which the first step makes
    peak = peak_memory(step, session.device)
    return {
        "largest": found,
        "seconds": seconds,
        "peak_memory_mib": peak,
        "settings": {**vars(options), "sizes": sizes},
    }


def search_summary(parts: Mapping[str, Row]) -> Row:
    """What was found."""
    return {name: row["largest"] for name, row in parts.items()}


def memory(session: Session) -> Parts:
    """Memory and speed of a training step, by what lowers it."""
    cases = {
        "fp32": ("fp32", False, False),
        "bf16": ("bf16", False, False),
        "bf16, compiled": ("bf16", True, False),
        "bf16, checkpointed": ("bf16", False, True),
    }
    return {name: partial(_weighed, session, *case) for name, case in cases.items()}


def _weighed(session: Session, precision: str, compiled: bool, checkpointing: bool) -> Row:
    torch.compiler.reset()
    options = _step_options(session, precision, compiled)
    step = drloc_overhead.make_step(options, False, checkpointing)
    seconds = interleaved({"step": step}, options.repeats, session.device)["step"]
    speeds = [options.batch / value for value in seconds]
    peak = peak_memory(step, session.device)
    return {"peak_memory_mib": peak, "images_per_second": spread(speeds), "settings": vars(options)}


def memory_summary(parts: Mapping[str, Row]) -> Row:
    """Memory and the middle speed."""
    return {name: [row["peak_memory_mib"], row["images_per_second"]["median"]] for name, row in parts.items()}


TOY_ROWS = ["DeiT-S/16", "Swin-T W7"]


def throughput(session: Session) -> Parts:
    """EsViT's table 7: images per second of its models, and the same on the paper's scale."""
    return {"esvit-table-7": partial(_timed, session, "esvit-table-7")}


def _timed(session: Session, name: str) -> Row:
    rows = TOY_ROWS if session.toy else None
    output = session.work / f"study-{name}{'-toy' if session.toy else ''}"
    found = paucal.study(name, rows=rows, device=session.device, output=str(output))
    measured = [(line, line.measured) for line in found.lines if line.measured is not None]
    return {
        "settings": {"study": name, "rows": rows or "all"},
        "lines": [
            {
                **{"row": line.row.name, "column": line.column.name, "published": line.published},
                **{"median": one.value, "lower_quartile": one.low, "upper_quartile": one.high},
            }
            for line, one in measured
        ],
    }


PIECES = (
    Piece("drloc_overhead", "DrLoc's share of a step of Swin-T at 224 pixels", 2, overhead, overhead_summary),
    Piece("esvit_loss", "EsViT's losses: time and memory against the plain way", 0.5, losses, losses_summary),
    Piece("esvit_step", "a step of EsViT against the published program's", 0.2, steps, steps_summary),
    Piece("backbones", "our backbones against plain ones, eager and compiled", 10, families, families_summary),
    Piece("loaders", "images a second to the device", 4, loaders, loaders_summary, ("cifar10", "clothing")),
    Piece(
        "epochs",
        "whole training epochs beside a plain loop",
        2,
        whole_epochs,
        whole_epochs_summary,
        ("cifar10", "clothing"),
    ),
    Piece("token_labels", "making label maps and targets", 0.1, targets),
    Piece("batch_size", "the search for the largest batch, Swin-T at 224 pixels", 0.2, search, search_summary),
    Piece("memory", "memory and speed of a step of Swin-T at 224 pixels", 1.5, memory, memory_summary),
    Piece("throughput", "images per second of the models of EsViT's table 7", 3, throughput),
)
