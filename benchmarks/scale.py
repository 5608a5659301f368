"""Shards on object storage, read by killed processes: the images that each loader loses or repeats, and its cost.

Generated images of 32 pixels are stored in tar shards behind a local S3-compatible server that answers after 50 ms and
fails 1 % of the requests. Two processes (gloo) read one pass of them, exchange a number in every step as gradients
would be, and save the loader's state every `EVERY` steps. They are killed at random steps, one or both, and started
again with as many processes ("fixed") or with 1, 2, 1, ... ("changing"), each as the documentation of its loader says
to resume:

- paucal: the position in the order of the pass, as `paucal train --resume` does
- litdata: `StreamingDataLoader.state_dict` and `load_state_dict`, which allow another number of processes; its own
  chunks, as many as there are shards
- datasets: `IterableDataset.state_dict` and `load_state_dict` of each process, `split_dataset_by_node`, shuffle buffer
- webdataset: it has no state; `resampled=True` draws shards with replacement

Every step is written to a ledger of paucal's form, so that steps lost with a killed process are told apart from images
used twice. "memory_mib" is by how much the first process grew after all libraries were imported, and
"processor_us_per_image" is its processor time for each image that it read. Undisturbed passes take turns, and speeds
are compared within a round.

    python benchmarks/scale.py --images 25600 --shards 50 --store benchmarks/results/scale_cpu.json
    python benchmarks/scale.py --images 1024000 --shards 200 --systems paucal --kills 0    # a million

Needs, in an environment beside paucal's: moto flask flask-cors s3fs boto3 webdataset litdata datasets, and simplejpeg
(the extra `jpeg`).
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from typing import Any

import numpy as np

from scale_readers import BATCH, READERS
from scale_storage import free_port, index, make, make_chunks, serve, upload, wait_for

EVERY = 10  # steps between saved states
HANG = 90.0  # seconds without a step after which the processes count as hanging
MAX_STARTS = 12  # more than there are kills
WORLDS = {"fixed": (2,), "changing": (2, 1)}  # processes of each start in turn


def work(system: str, folder: Path, port: int, count: int) -> None:
    """Read what is left of the pass on this process."""
    import torch
    import torch.distributed as dist

    from paucal.runs.ledger import LedgerWriter, StartRecord

    inherited = memory()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    path = folder / "state.pt"
    saved = torch.load(path, weights_only=False) if path.exists() else {"step": 0, "states": None}  # our own file
    step = saved["step"]
    reader = READERS[system](folder, rank, world, port, count, saved["states"], step)
    writer = LedgerWriter(folder, StartRecord(int(os.environ["START"]), rank, world, step, BATCH, count // BATCH))
    batches = reader.batches()
    begin, spent, read = time.monotonic(), time.process_time(), 0
    while True:
        batch = next(batches, None)
        ready = torch.tensor([float(batch is not None)])
        dist.all_reduce(ready)  # stands for the gradients
        if ready.item() < world:
            break
        writer.write(step, np.asarray(batch, dtype=np.uint64))
        dist.all_reduce(torch.zeros(1))
        step, read = step + 1, read + BATCH
        if read == BATCH:
            begin, spent = time.monotonic(), time.process_time()  # the first batch opens connections
        if step % EVERY == 0:
            states: list[Any] = [None] * world
            dist.all_gather_object(states, reader.state())
            if rank == 0:
                torch.save({"step": step, "states": states}, path.with_suffix(".tmp"))
                path.with_suffix(".tmp").replace(path)
            dist.barrier()
    if rank == 0:
        seconds, used = time.monotonic() - begin, memory() - inherited
        rate, cost = None, None
        if read > BATCH:
            rate = (read - BATCH) / seconds
            cost = (time.process_time() - spent) * world * 1e6 / (read - BATCH)
        result = {"step": step, "images_per_second": rate, "processor_us_per_image": cost, "memory_mib": used}
        (folder / "done.json").write_text(json.dumps(result))


def memory() -> float:
    """Return the largest resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def preload() -> None:
    """Import every loader once, so that a start takes the time of its reading and not that of imports."""
    import datasets  # noqa: F401  # pyright: ignore[reportMissingImports]
    import litdata  # noqa: F401  # pyright: ignore[reportMissingImports]
    import s3fs  # noqa: F401  # type: ignore[import-not-found]
    import torch.distributed  # noqa: F401
    import webdataset  # noqa: F401  # pyright: ignore[reportMissingImports]

    import paucal.data.sampler
    import paucal.data.shards.opening
    import paucal.runs.ledger
    import paucal.verbs.runs.verify  # noqa: F401


def start(system: str, world: int, number: int, folder: Path, port: int, count: int) -> list[Process]:
    """Start the processes as copies of this one."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    shared |= {"START": str(number)}
    processes: list[Process] = [
        get_context("fork").Process(target=begin, args=(system, folder, port, count, {**shared, "RANK": str(rank)}))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    return processes


def begin(system: str, folder: Path, port: int, count: int, variables: dict[str, str]) -> None:
    """Be one of the processes; what it prints goes into a file."""
    os.environ |= variables | {"LOCAL_RANK": variables["RANK"]}
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    work(system, folder, port, count)


def written(folder: Path) -> int:
    """Return the bytes of the ledger."""
    return sum(file.stat().st_size for file in (folder / "ledger").glob("*.bin"))


def read_pass(
    system: str, home: Path, port: int, count: int, kills: int, worlds: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Read a pass while processes are killed, and return what became of the images."""
    dice, folder = random.Random(seed), home / system
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.environ |= {"PAUCAL_IMAGE_CACHE": str(folder / "cache"), "SHARDS": str(home / "data/tar")}
    happened = {"kills": 0, "starts": 0, "hangs": 0, "failed_starts": 0}
    while not (folder / "done.json").exists() and happened["starts"] < kills + MAX_STARTS:
        world = worlds[happened["starts"] % len(worlds)]
        processes = start(system, world, happened["starts"], folder, port, count)
        happened["starts"] += 1
        steps = dice.uniform(0, count / BATCH / kills) if happened["kills"] < kills else None
        how = watch(processes, folder, steps, dice)
        if how != "ended":
            happened[how] += 1
    return {**happened, **verdict(folder, count)}


def watch(processes: list[Process], folder: Path, steps: float | None, dice: random.Random) -> str:
    """Wait until the processes end; kill one or all some steps after their first one, or when they hang."""
    how, size, seen = "ended", written(folder), time.monotonic()
    # Each start of a process writes a line, and each step 8 bytes per image.
    first = size + 200 * len(processes)
    while any(process.is_alive() for process in processes):
        time.sleep(0.005)
        now, before, size = time.monotonic(), size, written(folder)
        if size > before:
            seen = now
        if how == "ended" and steps is not None and size > first + steps * 8 * BATCH:
            how = "kills"
            for process in processes if dice.random() < 0.5 else [dice.choice(processes)]:
                process.kill()
        if now - seen > HANG:
            how, seen = "hangs", now
            for process in processes:
                process.kill()
    failed = how == "ended" and any(process.exitcode for process in processes)
    return "failed_starts" if failed else how


def verdict(folder: Path, count: int) -> dict[str, Any]:
    """Return what the ledger says: images of a pass that were lost, and used more than once."""
    from paucal.runs.ledger import read_records
    from paucal.verbs.runs.verify import kept_records

    done = folder / "done.json"
    records = list(read_records(folder))
    if not done.exists():
        return {"finished": False}
    starts = {record.start.number: record.start for record in records}
    kept = [record.hashes for record in kept_records(records, starts)]
    counts = np.bincount(np.concatenate(kept).astype(np.int64), minlength=count)
    return {
        "finished": True,
        "used": int(counts.sum()),
        "lost": max(0, int((counts == 0).sum()) - count % BATCH),  # an incomplete last step is left over
        "doubled": int(np.maximum(counts - 1, 0).sum()),
        **json.loads(done.read_text()),
    }


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw what each loader lost and used twice, and how fast it was beside paucal."""
    import matplotlib.pyplot as plt

    figure, panes = plt.subplots(1, 3, figsize=(9, 2.6), sharey=True, layout="constrained")
    names = list(results)
    for pane, world in zip(panes, WORLDS, strict=False):
        for offset, what in ((-0.2, "lost"), (0.2, "doubled")):
            values = [sum(run.get(what, 0) for run in results[name].get(world, [])) for name in names]
            pane.barh(np.arange(len(names)) + offset, values, 0.4, label=what)
        for row, name in enumerate(names):
            if not results[name].get(world):
                pane.text(0, row, " not run", va="center", fontsize=8)
        pane.set_xlim(0, max(1, pane.get_xlim()[1]))
        pane.set_title(f"{'same' if world == 'fixed' else 'changing'} number of processes", fontsize=9)
        pane.set_xlabel("images")
        pane.set_yticks(range(len(names)), names)
    panes[0].legend(frameon=False, fontsize=8)
    panes[2].barh(range(len(names)), [results[name]["speed_beside_paucal"] for name in names], 0.6, color="0.5")
    panes[2].set_title("images per second beside paucal", fontsize=9)
    panes[0].invert_yaxis()
    figure.savefig(path, dpi=150)


def summarised(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results with the median ratio of images per second to paucal's, in rounds that ran side by side."""
    speeds = {name: [run.get("images_per_second") for run in kinds["undisturbed"]] for name, kinds in results.items()}
    for name, kinds in results.items():
        pairs = zip(speeds[name], speeds.get("paucal", []), strict=False)
        ratios = [theirs / ours for theirs, ours in pairs if theirs and ours]
        kinds["speed_beside_paucal"] = round(float(np.median(ratios)), 3) if ratios else 0.0
    return results


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=25_600, help="a multiple of 128 for each shard")
    parser.add_argument("--shards", type=int, default=50)
    parser.add_argument("--kills", type=int, default=8, help="in each pass")
    parser.add_argument("--rounds", type=int, default=3, help="undisturbed passes of each loader")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the kills")
    parser.add_argument("--systems", nargs="+", default=list(READERS))
    parser.add_argument("--store", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--serve", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Make the shards, start the server, and disturb each loader."""
    options = parse()
    if options.serve:
        serve(options.port)
        return
    home = options.folder or Path(tempfile.mkdtemp())
    port, faults = free_port(), home / "faults"
    faults.unlink(missing_ok=True)
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "FAULTS": str(faults), "OMP_NUM_THREADS": "1"}
    if not (home / "data").exists():
        make(home / "data", options.images, options.shards)
        index(home / "data" / "tar")
    if "litdata" in options.systems and not (home / "data" / "chunks").exists():
        make_chunks(home / "data")
    preload()
    server = subprocess.Popen([sys.executable, __file__, "--serve", "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        uploading = get_context("fork").Process(target=upload, args=(home / "data", port))
        uploading.start()
        uploading.join()
        faults.touch()
        measure(options, home, port)
    finally:
        server.kill()


def measure(options: argparse.Namespace, home: Path, port: int) -> None:
    """Read every pass that the stored file lacks, and store it."""
    store: Path | None = options.store
    results: dict[str, Any] = {}
    if store is not None and store.exists():
        results = json.loads(store.read_text())["results"]
    plan = [("undisturbed", number, 0, (2,)) for number in range(options.rounds)]
    if options.kills:
        plan += [(name, seed, options.kills, worlds) for seed in options.seeds for name, worlds in WORLDS.items()]
    for kind, number, kills, worlds in plan:
        for system in options.systems:
            runs = results.setdefault(system, {}).setdefault(kind, [])
            if any(run["number"] == number for run in runs):
                continue
            run = read_pass(system, home, port, options.images, kills, worlds, number)
            runs.append({"number": number, **run})
            print(system, kind, runs[-1], flush=True)
            if store is not None:
                store.write_text(json.dumps(describe(options, summarised(results)), indent=1) + "\n")
    if store is not None:
        draw(results, store.with_suffix(".png"))


def describe(options: argparse.Namespace, results: dict[str, Any]) -> dict[str, Any]:
    """Return the results with what they were measured on."""
    from measuring import surroundings

    peers = {
        name: version(name) for name in ("litdata", "datasets", "webdataset", "s3fs", "moto", "simplejpeg", "pillow")
    }
    size = {"images": options.images, "shards": options.shards, "batch": BATCH, "every": EVERY}
    return {**size, **surroundings("cpu"), **peers, "results": results}


if __name__ == "__main__":
    main()
