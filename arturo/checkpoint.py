"""Saving and loading state: dtypes survive, foreign state dicts are refused.

``Optimizer.load_state_dict`` casts every floating state tensor to its parameter's dtype. Ours is float32 or wider under
half-precision parameters, and the multiplier is float64: tensors travel through the base class inside :class:`Sealed`,
which it passes on untouched, and ``__setstate__`` opens them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from arturo import sharding
from arturo.kernels.batch import sum_dtype
from arturo.state import FACTORS, HALF, MODEL, PLAIN, apart, buffer_dtype, buffer_names
from arturo.surrogates import FORMS, form_of
from arturo.surrogates.kalman import FACTORED

_SIGNATURES = {  # an option that only its owner has; unlike state it exists before the first step
    "nesterov": "SGD",
    "amsgrad": "Adam or AdamW",
    "momentum_decay": "NAdam",
    "lr_decay": "Adagrad",
    "rho": "Adadelta",
    "centered": "RMSprop",
    "etas": "Rprop",
    "lambd": "ASGD",
    "weight_lr_power": "ScheduleFree",
    "covariance": "AdaArturo",
    "betas": "an optimizer of Adam's family",
}


OURS = {*MODEL, *(name for form in FORMS for name in form.buffers), "mean", *PLAIN}


class Sealed:
    """A tensor that the base class must not cast."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def seal(state_dict: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The state dict with its tensors sealed; a foreign one, or one of another surrogate than these groups', is refused."""
    refuse_foreign(state_dict)
    refuse_other_surrogate(state_dict, groups)
    return sealed_tensors(state_dict)


def sealed_tensors(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dict with the tensors of its parameters sealed; entries under other keys stay as they are."""
    params = {key for group in state_dict["param_groups"] for key in group["params"]}
    state = {
        key: {name: Sealed(v) if isinstance(v, Tensor) else v for name, v in entry.items()}
        if key in params and isinstance(entry, Mapping)
        else entry  # kept by a wrapper under a separate key
        for key, entry in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


@torch.no_grad()
def unseal(param: Tensor, entry: dict[str, Any]) -> None:
    """Open the tensors of one parameter's state, on its device; buffers in their own dtype, in place of ``entry``."""
    if sharding.is_sharded(param):
        here: dict[str, Any] = {
            name: Sealed(_shard(param, name, x.tensor)) if isinstance(x, Sealed) and name in OURS else x
            for name, x in entry.items()
        }
        unseal(sharding.to_local(param), here)
        entry.clear()
        entry.update({name: sharding.like(x, param) if name in OURS and name not in PLAIN else x for name, x in here.items()})
        return
    for name in PLAIN:
        if isinstance(entry.get(name), (int, float)):  # torch's own tests, and old formats, have a number there
            dtype = torch.float32 if name == "step" else sum_dtype(param.device)
            entry[name] = torch.tensor(float(entry[name]), dtype=dtype, device=param.device)
    names = buffer_names(entry)
    own = {name: torch.bfloat16 if form_of(entry) is FACTORED else buffer_dtype(param) for name in names}
    own["mean"] = buffer_dtype(param)
    for name, value in entry.items():
        if isinstance(value, Sealed):
            tensor = value.tensor.to(device=param.device)
            place = names.index(name) + 1 if name in names else 0
            entry[name] = apart(tensor, own.get(name, tensor.dtype), place).copy_(tensor)
    real = torch.view_as_real(param.detach()) if param.is_complex() else param.detach()
    if "prec" not in entry:
        return
    if real.dtype not in HALF:
        entry.pop("mean", None)
    elif "mean" not in entry:
        entry["mean"] = real.to(torch.float32)


def _shard(param: Tensor, name: str, tensor: Any) -> Tensor:
    """The part of a loaded tensor that belongs here."""
    if name in PLAIN:
        return sharding.to_local(tensor)
    if not sharding.is_sharded(tensor):
        raise ValueError(
            f"state {name!r} of shape {tuple(tensor.shape)} is a plain tensor, its parameter of shape {tuple(param.shape)} a "
            "DTensor: load whole state with torch.distributed.checkpoint.state_dict.set_optimizer_state_dict, which shards it"
        )
    return sharding.to_local(tensor.redistribute(param.device_mesh, param.placements))  # type: ignore[attr-defined]


def refuse_foreign(state_dict: Mapping[str, Any]) -> None:
    """Raise ValueError for a state dict of another optimizer: one that lacks our entries.

    Other keys (a user's average under a parameter, a wrapper's entry) are left alone.
    """
    groups = state_dict["param_groups"]
    params = {key for g in groups for key in g["params"]}
    entries = [e for key, e in state_dict["state"].items() if key in params and isinstance(e, Mapping)]
    ours = [e for e in entries if any(name in e for name in OURS)]
    lacking = sorted({name for e in ours for name in (*buffer_names(e), "step", "eta") if name not in e})
    if all("prior_weight" in g for g in groups) and not lacking:
        return
    foreign = sorted({str(name) for e in entries for name in e if name not in OURS})
    name = owner({option: None for g in groups for option in g})
    options = ", ".join(sorted(set(groups[0]) - {"params"})) if groups else "none"
    raise ValueError(
        f"this is a state dict of {name}, not of Arturo: its options are {options}; "
        f"its state has {', '.join(foreign) or 'no other entries'} and lacks {', '.join(lacking) or 'nothing'}. "
        "Arturo's state cannot be made from it: start with a fresh optimizer"
    )


def owner(group: Mapping[str, Any]) -> str:
    """Whose options these are."""
    return next((name for option, name in _SIGNATURES.items() if option in group), "another optimizer")


def load_planner() -> Any:
    """For ``torch.distributed.checkpoint.load(..., planner=load_planner())`` on another number of processes.

    There a shard of :class:`arturo.AdaArturo`'s state may be cut into tiles of another size, and the saved factors do not fit.
    The planner skips them, and loading the state dict then resets the state of these parameters. Everything else must be
    present, and fit.
    """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_local_load_plan

    class FittingLoadPlanner(DefaultLoadPlanner):
        def create_local_plan(self) -> Any:
            assert self.metadata is not None
            saved = self.metadata.state_dict_metadata
            for key in list(self.state_dict):
                entry, _, name = key.rpartition(".")
                ours = name in FACTORS and f"{entry}.M" in self.state_dict  # a model's parameters may have such names too
                if ours and getattr(saved.get(key), "size", None) != self.state_dict[key].size():
                    del self.state_dict[key]
            return create_default_local_load_plan(self.state_dict, self.metadata, strict=True)

    return FittingLoadPlanner()


def refuse_other_surrogate(state_dict: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
    """Raise ValueError where a group's surrogate, or the form of its state, is not the optimizer's."""
    for i, (saved, own) in enumerate(zip(state_dict["param_groups"], groups, strict=False)):
        name, entries = own["surrogate"], [state_dict["state"].get(key) for key in saved["params"]]
        other = saved.get("surrogate", name)
        if other == name:
            forms = {form_of(entry).keeps_averages for entry in entries if entry and "prec" in entry}
            if not forms or forms == {name != "kalman"}:
                continue
            other = "kalman" if name != "kalman" else "one that keeps running averages"
        raise ValueError(
            f"this state is of surrogate={other!r}, and parameter group {i} has surrogate={name!r}: the state of one cannot be "
            "made from that of the other. Load it into an optimizer with its surrogate, or start with a fresh one"
        )
