"""What two processes measure is written down as the mean of both."""

import json
import subprocess
import sys

import pytest
import torch

from paucal.training import meters

PROCESS = """
import importlib.util, json, sys
sys.argv[0] = "paucal"  # as in the command, so that importing paucal does not load timm
import torch
import torch.distributed as dist
from paucal.types import LossTerms

number, store = int(sys.argv[1]), sys.argv[2]
# Alone, since all of the package takes seconds to import.
spec = importlib.util.spec_from_file_location("meters", sys.argv[3])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
Meters = module.Meters
dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)

def add(meters, value):
    loss = torch.tensor(value)
    meters.add(LossTerms({"class": loss}), loss)
    meters.add_step(torch.tensor(1.0), torch.tensor(1.0))

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
print(json.dumps([steps, whole["train_class"], whole["skipped_steps"], culprits, after.read()["train_class"]]))
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes__write_the_mean_of_both(tmp_path):
    words = [str(tmp_path / "store"), str(meters.__file__)]
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(number), *words], stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    for process in processes:
        steps, mean, skipped, culprits, resumed = json.loads(process.communicate(timeout=300)[0])
        assert steps == 0  # nothing is sent in a step
        assert mean == pytest.approx((1 + 2 + 5) / 3)
        assert skipped == 2
        assert culprits == ["class"]
        assert resumed == pytest.approx((1 + 2 + 5 + 4 + 8) / 5)
