import pytest
import torch
import torch.distributed as dist
from torch import nn

from paucal.evaluation.predictions import Predictions, majority_classes, predict_all
from paucal.types import Batch, UserError
from processes import run_together


class Doubler(nn.Module):
    """Logits are twice the pixels; remembers the mode, the dtype and whether gradients were recorded."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Dropout(0.5).eval()
        self.seen = []

    def forward(self, images):
        self.seen.append((self.training, torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
        return self.frozen(images.flatten(1)) * self.weight


def batch(ids, labels=True):
    ids = torch.tensor(ids)
    views = [ids[:, None].float() * torch.tensor([1.0, -1.0, 0.5]), torch.full((len(ids), 3), 99.0)]
    return Batch(ids, [view[:, :, None, None] for view in views], ids % 3 if labels else None)


def test_predict_all__rows_are_sorted_by_id_and_unique():
    predictions = predict_all(Doubler(), [batch([5, 1]), batch([3, 1])], "cpu")
    assert predictions.ids.tolist() == [1, 3, 5]
    torch.testing.assert_close(predictions.logits, torch.tensor([1.0, 3, 5])[:, None] * torch.tensor([2.0, -2, 1]))
    assert predictions.labels.tolist() == [1, 0, 2]
    assert not predictions.logits.requires_grad
    assert not predictions.logits.is_inference()


def test_predict_all__runs_in_evaluation_mode_and_restores_every_flag():
    model = Doubler().train()
    model.frozen.eval()
    predict_all(model, [batch([0])], "cpu")
    assert model.seen == [(False, True, False)]
    assert model.training
    assert not model.frozen.training


def test_predict_all__restores_the_mode_after_an_error():
    model = Doubler().train()
    with pytest.raises(ZeroDivisionError):
        predict_all(model, (1 / 0 for _ in range(1)), "cpu")
    assert model.training


def test_predict_all__autocast_changes_the_computation_and_not_the_result_type():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    exact = predict_all(model, [batch([1, 2])], "cpu")
    low = predict_all(model, [batch([1, 2])], "cpu", autocast=torch.bfloat16)
    assert low.logits.dtype == torch.float32
    assert not torch.equal(low.logits, exact.logits)
    assert torch.equal(low.logits, low.logits.bfloat16().float())


def test_predict_all__reports_progress_in_images():
    done = []
    predict_all(Doubler(), [batch([0, 1]), batch([2])], "cpu", progress=done.append)
    assert done == [2, 3]


def test_predict_all__unlabelled_images_get_minus_one():
    assert predict_all(Doubler(), [batch([4, 7], labels=False)], "cpu").labels.tolist() == [-1, -1]


def test_predict_all__no_images_is_the_users_mistake():
    with pytest.raises(UserError, match="no images to evaluate"):
        predict_all(Doubler(), [], "cpu")


def test_predict_all__mixed_labels_and_wrong_outputs_are_refused():
    mixed = batch([0, 1])
    mixed.labels = torch.rand(2, 3)
    with pytest.raises(ValueError, match="integer labels"):
        predict_all(Doubler(), [mixed], "cpu")
    with pytest.raises(ValueError, match=r"\(2, K\) logits"):
        predict_all(nn.Identity(), [batch([0, 1])], "cpu")


def test_predictions__shapes_are_checked():
    with pytest.raises(ValueError, match="expected ids"):
        Predictions(torch.arange(3), torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))


def test_majority_class__ignores_unlabelled_rows():
    assert majority_classes(torch.tensor([-1, -1, -1, 3, 3, 0])) == [3]
    with pytest.raises(ValueError, match="no image has a label"):
        majority_classes(torch.tensor([-1]))


def predict_as_rank(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    shards = {"uneven": [[0, 2, 4], [1, 0]], "empty": [[], [1, 0]]}
    lines = []
    for name, shard in shards.items():
        ids = torch.tensor(shard[rank])
        images = ids[:, None, None, None] + torch.arange(3.0)[:, None, None]
        loader = [Batch(ids, [images], ids % 2)] if len(ids) else []
        got = predict_all(nn.Flatten(), loader, "cpu")
        lines.append(f"{name} {got.ids.tolist()} {got.logits.tolist()} {got.labels.tolist()}")
    (folder / f"{rank}.txt").write_text("\n".join(lines))
    dist.destroy_process_group()


def test_predict_all__two_processes_both_get_the_rows_of_both(tmp_path):
    run_together(predict_as_rank, tmp_path)
    outputs = [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)]
    rows = {i: [float(i), i + 1.0, i + 2.0] for i in (0, 1, 2, 4)}
    expected = [
        f"uneven [0, 1, 2, 4] {[rows[i] for i in (0, 1, 2, 4)]} [0, 1, 0, 0]",
        f"empty [0, 1] {[rows[i] for i in (0, 1)]} [0, 1]",
    ]
    assert [output.splitlines() for output in outputs] == [expected, expected]
