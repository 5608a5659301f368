"""What two processes measure is written down as the mean of both."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from paucal.training.meters import Meters
from paucal.types import LossTerms
from processes import run_together


def add(meters: Meters, value: float) -> None:
    loss = torch.tensor(value)
    meters.add(LossTerms({"class": loss}), loss)
    meters.add_step(torch.tensor(1.0), torch.tensor(1.0))


def measure(number: int, folder: Path) -> None:
    """Measure as one of two processes, and write down what it reads."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    sent = []
    reduce = dist.all_reduce
    dist.all_reduce = lambda tensor: (sent.append(1), reduce(tensor))[1]
    meters = Meters()
    for value in ((1.0, 2.0), (5.0, float("nan")))[number]:
        add(meters, value)
    steps = len(sent)
    whole, culprits = meters.read(), meters.nonfinite_losses()
    after = Meters()
    # The state of the first process is what both go on with.
    state = [meters.state_dict()]
    dist.broadcast_object_list(state)
    after.load_state_dict(state[0], torch.device("cpu"))
    add(after, (4.0, 8.0)[number])
    found = [steps, whole["train_class"], whole["skipped_steps"], culprits, after.read()["train_class"]]
    (folder / f"{number}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes__write_the_mean_of_both(tmp_path):
    run_together(measure, tmp_path)
    for number in range(2):
        steps, mean, skipped, culprits, resumed = json.loads((tmp_path / f"{number}.json").read_text())
        assert steps == 0  # nothing is sent in a step
        assert mean == pytest.approx((1 + 2 + 5) / 3)
        assert skipped == 2
        assert culprits == ["class"]
        assert resumed == pytest.approx((1 + 2 + 5 + 4 + 8) / 5)
