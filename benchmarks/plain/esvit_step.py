"""A whole step of EsViT as its published program makes it: all scores kept, loops over tensors for clip and teacher."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from plain.esvit_loss import PlainHead, plain_losses


class PlainNetwork(nn.Module):
    """A backbone that gives (N, H, W, P) or (N, T, P) tokens, with a head for crops and one for cells."""

    def __init__(self, model: nn.Module, view: PlainHead, region: PlainHead) -> None:
        super().__init__()
        self.model, self.view, self.region = model, view, region

    def forward(self, crops: Sequence[Tensor]) -> tuple[tuple[Tensor, Tensor, Tensor], list[int]]:
        """Return scores of crops and of cells, features of cells, and the cells of each crop; one pass per size."""
        pooled, cells, counts, first = [], [], [], 0
        while first < len(crops):
            last = first
            while last < len(crops) and crops[last].shape == crops[first].shape:
                last += 1
            tokens = self.model.forward_features(torch.cat(list(crops[first:last])))  # type: ignore[operator]
            tokens = tokens.flatten(1, -2)
            pooled.append(tokens.mean(1))
            cells.append(tokens.flatten(0, 1))
            counts += [tokens.shape[1]] * (last - first)
            first = last
        flat = torch.cat(cells)
        return (self.view(torch.cat(pooled)), self.region(flat), flat), counts


class PlainStep:
    """Student, teacher, centres and optimizer.

    Args:
        student: Network that AdamW trains.
        low: Temperature of the student.
        high: Temperature of the teacher.
        momentum: Share of the old teacher in the new one.
        clip: L2 norm to which the gradient of each tensor is clipped separately.
        lr: Learning rate.
    """

    def __init__(self, student: PlainNetwork, low: float, high: float, momentum: float, clip: float, lr: float) -> None:
        self.student, self.teacher = student, copy.deepcopy(student).requires_grad_(False)
        self.temperatures, self.momentum, self.clip = (low, high), momentum, clip
        device = next(student.parameters()).device
        names = ("view", "region")
        self.centres = [torch.zeros(1, getattr(student, n).last_layer.weight.shape[0], device=device) for n in names]
        # As published: weight decay on everything with two axes or more.
        trained = [p for p in student.parameters() if p.requires_grad]
        groups = [{"params": [p for p in trained if p.ndim > 1]}, {"params": [p for p in trained if p.ndim < 2]}]
        self.optimizer = torch.optim.AdamW(
            [{**groups[0], "weight_decay": 0.04}, {**groups[1], "weight_decay": 0.0}], lr=lr
        )

    def __call__(self, crops: Sequence[Tensor]) -> Tensor:
        """Make a step on 2 global crops and any number of local ones of one size; return the loss."""
        images = len(crops[0])
        with torch.no_grad():
            goal, _ = self.teacher(crops[:2])
        seen, counts = self.student(crops)
        own = (seen[0], seen[1], seen[2].detach())
        centres = (self.centres[0], self.centres[1])
        view, region = plain_losses(own, goal, counts, images, centres, self.temperatures)
        total = 0.5 * view + 0.5 * region
        self.optimizer.zero_grad()
        total.backward()
        for parameter in self.student.parameters():
            if parameter.grad is not None:
                share = self.clip / (parameter.grad.norm(2) + 1e-6)
                if share < 1:
                    parameter.grad.mul_(share)
        self.optimizer.step()
        with torch.no_grad():
            for number in range(2):
                mean = goal[number].float().mean(0, keepdim=True)
                self.centres[number] = 0.9 * self.centres[number] + 0.1 * mean
            for theirs, ours in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                ours.mul_(self.momentum).add_((1 - self.momentum) * theirs)
        return total.detach()
