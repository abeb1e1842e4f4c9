"""State dicts, compared and stored."""

import io

import torch


def fingerprint(state_dict):
    """To compare with ==: tensors as numbers, beside their dtype."""

    def plain(x):
        return (x.dtype, x.tolist()) if isinstance(x, torch.Tensor) else x

    states = {key: {name: plain(x) for name, x in entry.items()} for key, entry in state_dict["state"].items()}
    return states, [{name: plain(x) for name, x in group.items()} for group in state_dict["param_groups"]]


def saved(state_dict):
    """Through a file, with the safe loader."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
