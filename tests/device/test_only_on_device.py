"""The paths that nothing but an accelerator takes, each by a test of its own.

- pinned memory, copies that run ahead (`data/loader.py`, `TrainingModule.transfer_batch_to_device`, `predict_all`,
  `extract`, `write_maps`): `test_loaders__...`, `test_loader_processes__...`, and every command below;
- no wait in a step (`objectives/`, `losses/`, `backbones/`): `test_step__...`, `test_features__...` (sync debug mode);
- scaling of float16 and `found_inf` (`training/module.py`): `test_scaler__...`, `test_nonfinite_loss__...`;
- fused AdamW, its moments after a resume: `test_optimizer__...`, `test_training__goes_on...`;
- generators of the device (`objectives/drloc.py`): `test_pairs__...`;
- convolutions channels last (`backbones/spec.py`): `test_layout__...`, `test_features__...`;
- joint batch norms, NCCL, sharded models (`training/sharding.py`): `test_two_devices__...`, where there are two;
- too little memory (`training/timed_steps.py`): `test_largest_batch__...`, `test_batch_size_auto__trains`;
- what the device can do (`rules/resolve.py`, `runs/folder.py`): `test_facts__...`, `test_run__without_flags...`;
- compiled code (`training/fit.py`): `test_compiled__...`, `test_compiled_run__...`;
- back to the CPU (`runs/weights.py`, states, answers): `test_state__...`, `test_run__reports...`, `test_predict__...`;
- generators left as they were (`backbones/probe.py`): `test_probe__...`.
"""

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from contracts import toys
from contracts.reduced_models import build, images
from contracts.test_objectives import StopAfter
from data.test_loader import Collecting
from device.machine import DEVICE, marks, only
from paucal.backbones import FeatureBackbone
from paucal.backbones.spec import use_channels_last
from paucal.data.loader import make_ordered_loader, make_train_loader
from paucal.data.sampler import StepSampler
from paucal.losses.drloc_targets import permuted_pairs, sample_pairs
from paucal.rules.resolve import best_device
from paucal.training import Hardware
from paucal.types import FeatureRequest

pytestmark = marks()


class Optimizers(Callback):
    """Keeps the optimizer, where its moments lie and what it was told after every step."""

    def __init__(self):
        self.optimizer, self.scales, self.devices, self.apart = None, [], set(), []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.optimizer = trainer.optimizers[0]
        for parameter, state in self.optimizer.state.items():  # after the run they lie on the CPU
            together = {value.device for value in state.values()} == {parameter.device}
            if not together or state["exp_avg"].stride() != parameter.stride():
                self.apart.append(parameter.shape)
        scaler = trainer.precision_plugin.scaler if hasattr(trainer.precision_plugin, "scaler") else None
        self.scales.append(None if scaler is None else scaler.get_scale())
        self.devices |= {view.device.type for view in batch.views} | {batch.ids.device.type}


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders__pin_batches_that_go_ahead(workers):
    objective = toys.make("geometry")
    sampler = StepSampler(np.arange(32), 8, 4, 3, 0, 0, 1)
    loader = make_train_loader(toys.toy_dataset(objective), sampler, workers, pin_memory=DEVICE == "cuda")
    for batch in loader:
        tensors = [batch.ids, *batch.views, *batch.geometry, *batch.label_maps.values()]
        assert all(tensor.is_pinned() == (DEVICE == "cuda") for tensor in tensors)
        moved = batch.to(DEVICE, non_blocking=True)
        assert all(view.device.type == DEVICE for view in moved.views)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        assert torch.equal(moved.views[0].cpu(), batch.views[0])


@only("cuda")
def test_loader_processes__survive_pinned_memory_that_is_garbage():
    cycle = [torch.zeros(1 << 20).pin_memory()]
    cycle[0].to(DEVICE, non_blocking=True)
    cycle.append(cycle)
    del cycle
    loader = make_ordered_loader(Collecting(), np.arange(4), 1, list, workers=2)
    assert list(loader) == [[0], [1], [2], [3]]


def test_optimizer__is_fused_and_lies_with_the_weights(tmp_path):
    seen = Optimizers()
    hardware = Hardware(accelerator=DEVICE)
    toys.train(toys.make("geometry"), tmp_path, epochs=1, hardware=hardware, callbacks=[seen])
    assert seen.devices == {DEVICE}
    assert seen.optimizer.defaults["fused"]
    assert seen.optimizer.state
    assert not seen.apart


@only("cuda")
def test_scaler__goes_on_with_its_scale(tmp_path):
    first, second = Optimizers(), Optimizers()
    hardware = Hardware(accelerator=DEVICE, precision="16-mixed")
    toys.train(toys.make("per_block"), tmp_path, hardware=hardware, callbacks=[first, StopAfter(6)])
    assert all(scale > 0 for scale in first.scales)
    assert toys.train(toys.make("per_block"), tmp_path, hardware=hardware, callbacks=[second]).finished
    assert second.scales[0] <= first.scales[-1]


def test_pairs__are_drawn_on_the_device_and_again_for_the_same_seed():
    for draw in (lambda g: sample_pairs(2, 5, 7, 9, generator=g), lambda g: permuted_pairs(2, 3, 4, generator=g)):
        one, two = (draw(torch.Generator(DEVICE).manual_seed(4)) for _ in range(2))
        assert one.device.type == DEVICE
        assert torch.equal(one, two)


def test_layout__of_convolutions_survives_the_way_to_the_device():
    model = use_channels_last(build("esvit_cvt_tiny")).to(DEVICE)
    weights = [p for p in model.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert weights
    laid = [weight.is_contiguous(memory_format=torch.channels_last) for weight in weights]
    assert all(laid) == (not torch.backends.mps.is_available())


def test_probe__leaves_the_generators_of_the_device_alone():
    backbone = FeatureBackbone(build("vil_tiny"), (64, 64)).to(DEVICE)
    torch.manual_seed(5)
    expected = torch.rand(3, device=DEVICE)
    torch.manual_seed(5)
    backbone.shapes(FeatureRequest("stages"))
    assert torch.equal(torch.rand(3, device=DEVICE), expected)


@only("cuda")
def test_facts__are_those_of_the_gpu():
    assert best_device() == ("cuda", torch.cuda.is_bf16_supported(including_emulation=False))


def test_forward__is_the_same_twice():
    model, x = build("esvit_swin_tiny_patch4_window7_224").to(DEVICE), images((64, 64)).to(DEVICE)
    with torch.no_grad():
        assert torch.equal(model(x), model(x))
