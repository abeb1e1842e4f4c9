"""Saving and loading the state of :class:`arturo.AdaArturo`, see :mod:`arturo.checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from arturo import checkpoint, sharding
from arturo.adaptive_state import initial_state
from arturo.state import FACTORS


def sealed(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dict with its tensors sealed against casts (:mod:`arturo.checkpoint`); another optimizer's is refused."""
    for saved in state_dict["param_groups"]:
        lacking = [name for name in ("covariance", "betas") if name not in saved]
        if lacking:
            options = ", ".join(sorted(set(saved) - {"params"}))
            owner = "Arturo" if "prior_weight" in saved else checkpoint.owner(saved)
            raise ValueError(
                f"this is a state dict of {owner}, not of AdaArturo: a group lacks {', '.join(lacking)} (it has {options}). "
                "AdaArturo's state cannot be made from it: start with a fresh optimizer"
            )
    for key in (key for saved in state_dict["param_groups"] for key in saved["params"]):
        entry, names = state_dict["state"].get(key), ("step", "M", "r")
        lacking = [name for name in names if isinstance(entry, Mapping) and name not in entry]
        if 0 < len(lacking) < len(names):  # an entry with none of them is the user's
            raise ValueError(f"this is not a state dict of AdaArturo: the state of parameter {key} lacks {', '.join(lacking)}")
    return checkpoint.sealed_tensors(state_dict)


@torch.no_grad()
def unsealed(group: Mapping[str, Any], p: Tensor, entry: dict[str, Any]) -> bool:
    """Open the tensors of one parameter's state, on its device and in the dtype that its own state would have.

    State saved in tiles of another size is in other bases, and in another order: it is reset, as if this parameter had not
    stepped yet. Returns whether that happened.
    """
    if "M" not in entry or not isinstance(entry["M"], checkpoint.Sealed):
        _open(entry)
        return False
    own = initial_state(group, p)
    _open(entry)
    factors = [name for name in own if name in FACTORS]
    same_shapes = all(name in entry and entry[name].shape == own[name].shape for name in factors)
    restarts = _tile(entry) != _tile(own) or not same_shapes
    loaded = [name for name in own if name in entry and (name in ("start", "mean") or not restarts)]
    lacking = [name for name in own if name not in entry and name != "mean" and not restarts]
    if lacking:
        raise ValueError(
            f"the state of a parameter of shape {tuple(p.shape)} lacks {', '.join(lacking)}: it was saved under other options"
        )
    for name in ("M", "r", *loaded):
        if name != "step" and entry[name].shape != own[name].shape:
            raise ValueError(
                f"state {name!r} of shape {tuple(entry[name].shape)} does not fit a parameter of shape {tuple(p.shape)}, which "
                f"needs {tuple(own[name].shape)}"
            )
    for name in loaded:
        _copy(own[name], entry[name], name, p)
    for name in (*FACTORS, "tile", "mean"):
        entry.pop(name, None)
    entry.update(own)
    return restarts


def _open(entry: dict[str, Any]) -> None:
    entry.update({name: x.tensor for name, x in entry.items() if isinstance(x, checkpoint.Sealed)})


def _tile(state: Mapping[str, Any]) -> list[int] | None:
    return sharding.to_local(state["tile"]).tolist() if "tile" in state else None


def _copy(own: Tensor, loaded: Any, name: str, p: Tensor) -> None:
    """Into this process's shard; ``step`` may be a number, as old versions of torch keep it."""
    if not isinstance(loaded, Tensor):
        own.fill_(loaded)
    elif sharding.is_sharded(own) == sharding.is_sharded(loaded):
        if sharding.is_sharded(own):
            loaded = loaded.redistribute(own.device_mesh, own.placements)  # type: ignore[attr-defined]
        sharding.to_local(own).copy_(sharding.to_local(loaded))
    else:
        kinds = [type(x).__name__ for x in (loaded, p)]
        raise ValueError(
            f"state {name!r} of shape {tuple(loaded.shape)} is a {kinds[0]}, its parameter of shape {tuple(p.shape)} a "
            f"{kinds[1]}: load it with torch.distributed.checkpoint.state_dict.set_optimizer_state_dict, which shards it"
        )
