"""Change of a pre-training run to its next stage, whose objective has more parameters.

EsViT (section 4.1, figure 4) may add its region task at epoch 200 of 300 to a run that began with only the view task.
The published code then silently loses the optimizer state, since the sizes of the parameter groups change. Here the
optimizer's moments are matched by the names of their parameters, and only the moments of the new head start at zero.
"""

from typing import Any

import torch
from torch import nn

from paucal.objectives import Objective
from paucal.runs import RunFolder
from paucal.runs.weights import load_checkpoint
from paucal.training import checkpoint_rows
from paucal.training.module import parameter_groups
from paucal.writing import write_atomically

OBJECTIVE_PREFIX = "objective."  # prefix of parameter names in the checkpoint's state dict


def epochs_done(run: RunFolder | None) -> int:
    """Return the number of epochs that the run's checkpoint was trained for; 0 for a new run."""
    return len(checkpoint_rows(run.last)) if run else 0


def lacks_parameters(run: RunFolder, objective: nn.Module) -> bool:
    """Return whether the run has a checkpoint in which parameters of an objective are missing."""
    if not run.last.exists():
        return False
    saved_state = load_checkpoint(run.last)["state_dict"]
    return any(OBJECTIVE_PREFIX + name not in saved_state for name in objective.state_dict())


def add_parameters(run: RunFolder, objective: Objective) -> None:
    """Rewrite a run's checkpoint so that an objective with more parameters can resume from it.

    Stored parameters and their moments are kept; missing parameters are taken from the objective.
    """
    state = load_checkpoint(run.last)
    parameters = {OBJECTIVE_PREFIX + name: value for name, value in objective.state_dict().items()}
    state["state_dict"] = {name: state["state_dict"].get(name, value) for name, value in parameters.items()}
    state["optimizer_states"] = [_renumber(optimizer_state, objective) for optimizer_state in state["optimizer_states"]]
    write_atomically(run.last, lambda file: torch.save(state, file))


def _renumber(optimizer_state: dict[str, Any], objective: Objective) -> dict[str, Any]:
    """Return the optimizer state with its parameters renumbered to match the parameter groups of an objective."""
    numbers = [number for group in optimizer_state["param_groups"] for number in group["params"]]
    names = [name for group in optimizer_state["param_groups"] for name in group["names"]]
    moments = {
        name: optimizer_state["state"][number]
        for name, number in zip(names, numbers, strict=True)
        if number in optimizer_state["state"]
    }
    old_groups = {(group["label"], group["decayed"]): group for group in optimizer_state["param_groups"]}
    state, groups = {}, []
    for group in parameter_groups(objective, objective.parameter_group, objective.decays_tables):
        first = sum(len(earlier["params"]) for earlier in groups)
        indices = list(range(first, first + len(group["names"])))
        state |= {index: moments[name] for index, name in zip(indices, group["names"], strict=True) if name in moments}
        old_group = old_groups.get((group["label"], group["decayed"]), optimizer_state["param_groups"][0])
        groups.append({**old_group, **{key: group[key] for key in ("names", "label", "decayed")}, "params": indices})
    return {**optimizer_state, "state": state, "param_groups": groups}
