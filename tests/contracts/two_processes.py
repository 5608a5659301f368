"""Train every toy on two processes; started by torchrun from the test."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from contracts import toys
from paucal.training import Hardware

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in toys.TOYS:
        objective = toys.make(name)
        outcome = toys.train(
            objective,
            folder / "two" / name,
            epochs=2,
            batch=8,
            hardware=Hardware(devices=2, strategy="ddp"),
        )
        if dist.get_rank() == 0:
            torch.save(objective.state_dict(), folder / f"{name}.pt")
            (folder / f"{name}.json").write_text(json.dumps(list(outcome.rows)))
