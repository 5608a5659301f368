"""Two processes with half of the images each make the step that one makes with all of them."""

import os
import subprocess
import sys

import pytest
import torch

from transfer import joined

Found = dict[str, tuple[dict[str, float], dict[str, torch.Tensor]]]
LOSSES = {
    "segmentation": {"pixels", "auxiliary"},
    "detection": {"class", "box"},
    "cascade": {f"{what}_{n}" for what in ("class", "box") for n in (1, 2, 3)},
}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("joined")
    words = [str(folder / "store"), str(folder / "found.pt")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    processes = [
        subprocess.Popen([sys.executable, str(joined.__file__), str(number), *words], env=environment)
        for number in range(2)
    ]
    assert [process.wait(timeout=500) for process in processes] == [0, 0]
    return torch.load(words[1], weights_only=True)


@pytest.mark.slow  # two more processes import everything
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize("task", joined.TASKS)
def test_two_processes__equal_one(together: Found, task: str):
    alone, whole = joined.gradients(task, range(joined.IMAGES))
    losses, found = together[task]
    assert set(alone) == LOSSES[task]
    assert losses == pytest.approx(alone, rel=1e-5)
    assert min(alone.values()) > 0
    assert set(found) == set(whole)
    for name, gradient in whole.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6, msg=name)
    # One process with its own half alone would be found out.
    half = joined.gradients(task, range(joined.IMAGES // 2))[1]
    assert any(bool((half[name] - whole[name]).abs().max() > 1e-3) for name in whole)
