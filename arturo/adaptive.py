"""The recommended optimizer: parameter groups and state. The step is in ``adaptive_step.py``, formulas in ``learned.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler with arturo
from torch.amp.autocast_mode import is_autocast_available
from torch.optim.optimizer import ParamsT

from arturo import adaptive_checkpoint, sharding
from arturo.adaptive_rows import Layouts, row_of
from arturo.adaptive_state import initial_state
from arturo.adaptive_step import MOST_LR, are_on_host, take_step
from arturo.advice import warn
from arturo.base import TrustRegionOptimizer, refuse_nan
from arturo.hyperparameters import ADAPTIVE
from arturo.kernels.adaptive.row import AdaptiveRow
from arturo.posterior import sampling

_DEFAULT = ADAPTIVE.default
FOREIGN = {  # arguments of AdamW that must be false, and why
    "amsgrad": "AdaArturo has no second moments to take maxima of",
    "differentiable": "autograd cannot follow the step",
}


class AdaArturo(TrustRegionOptimizer):
    r"""arTuRO that learns its noise and its geometry: a drop-in for AdamW.

    Keeps a Gaussian over the weights whose mean *is* the parameters. A Kalman filter tracks the gradient ``M`` and its noise
    ``r``; the Gaussian is diagonal in the eigenbasis of two Kronecker factors of the noise, with a precision proportional to
    :math:`\sqrt r / (\tau\sigma)`, where :math:`\sigma` is the tensor's size and :math:`\tau` = 20 lr its drift per step. A
    step goes as far as that drift would, in KL, over all tensors together, and less far where the gradient is mostly noise:

    .. math:: \Delta = -\tau\,\sigma\,k\,Q_L \frac{Q_L^T M Q_R}{\sqrt{r}} Q_R^T

    with one :math:`k` for the whole network. Scaling the loss changes nothing, and no warm-up is needed. An anchor also shrinks
    matrices by what the step would make them grow, in proportion to the square of lr: at lr = 1e-3 like a weight decay of 0.2
    where gradients are clear, and of 0.7 to 1.7 where they are mostly noise.

    Args:
        params: parameters, named parameters, or dicts defining groups. Every option can be set per group; all
            groups share one trust region.
        lr: step size in AdamW's unit: a matrix whose weights have a root mean square of 0.05 moves by about ``lr`` per weight
            and step, others in proportion to their size (relative step 20 lr). Keep the lr and schedule of your AdamW recipe.
            Steps at more than 0.003 are as long as at 0.003, 6 % of a tensor's size (it warns once); weight decay follows lr.
        betas: ``betas[0]`` sets the gain of the filter, 1 - betas[0] once settled; ``betas[1]`` is the averaging constant of
            the noise.
        eps: added to the noise's standard deviation, in gradient units.
        weight_decay: decoupled, as in AdamW: weights are multiplied by ``1 - lr * weight_decay`` before the step.
        covariance: ``"kronecker"``, or ``"diagonal"``, which needs no matrix products and AdamW's 8 bytes per weight.
        block: sides of a matrix longer than this are cut into blocks, of half this length where both sides are longer
            (:func:`arturo.kronecker.tiling`).
        refresh: steps between two refreshes of a basis.
        state_dtype: ``torch.bfloat16`` halves the state, rounded stochastically by a hash of step and position: less memory.
            The diagonal step takes as long as with float32 state, or up to a third longer; the Kronecker one has no C++ passes
            and takes some 14 times as long (``benchmarks/training_step.py --contenders ada-kronecker ada-kronecker-bf16``).
        foreach, fused: as in AdamW. ``foreach=False`` is a loop over tensors, ``foreach=True`` uses ``torch._foreach``,
            ``fused=True`` one C++ kernel per pass (or generated code where the extension was not built); None picks the best.
        capturable: no state on the host, so that the step can be captured in a graph; ``covariance="diagonal"`` only.
        maximize: maximize the objective instead.

    Example:
        >>> import torch, arturo
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = arturo.AdaArturo(model.parameters(), lr=3e-3)
        >>> x = torch.randn(64, 2)
        >>> y = x @ torch.tensor([[1.0], [-2.0]])
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     loss = (model(x) - y).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(loss < 1e-3), optimizer.last_step.kl <= optimizer.last_step.bound * 1.001
        (True, True)
    """

    declared = ADAPTIVE
    unseen = "the filter's last estimate"
    _layouts: Layouts
    _warned_lr: bool

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = _DEFAULT["lr"],
        betas: tuple[float, float] = _DEFAULT["betas"],
        eps: float = _DEFAULT["eps"],
        weight_decay: float = _DEFAULT["weight_decay"],
        amsgrad: bool = False,
        *,
        covariance: str = _DEFAULT["covariance"],
        block: int = _DEFAULT["block"],
        refresh: int = _DEFAULT["refresh"],
        maximize: bool = _DEFAULT["maximize"],
        state_dtype: torch.dtype | None = _DEFAULT["state_dtype"],
        foreach: bool | None = _DEFAULT["foreach"],
        capturable: bool = _DEFAULT["capturable"],
        differentiable: bool = False,
        fused: bool | None = _DEFAULT["fused"],
    ) -> None:
        refuse_foreign({"amsgrad": amsgrad, "differentiable": differentiable})
        # One curvature and one level of noise for all groups, stored in the first. Loading a flattened checkpoint looks only
        # for keys that exist.
        super().__init__(params, {**ADAPTIVE.chosen(locals()), "curvature": (0.0,) * 6})

    def _complete(self, group: dict[str, Any]) -> None:
        refuse_foreign(group)
        super()._complete(group)

    def _unsaved(self) -> dict[str, Any]:
        return {**super()._unsaved(), "_layouts": {}, "_warned_lr": False}

    def _init_group(self, group: dict[str, Any], rows: list[AdaptiveRow], start: int, shards: sharding.Shards | None) -> None:
        """Append what takes part in this step to ``rows``, creating missing state. Dynamo runs this eagerly."""
        sampling.refuse_draws(group["params"])
        lr = group["lr"]
        on_device = isinstance(lr, Tensor) and (group["capturable"] or lr.device.type != "cpu")
        moves = on_device or lr > 0  # a schedule that ends at 0 may round below it
        if not moves:
            refuse_nan(lr)
        if not self._warned_lr and not on_device and lr > MOST_LR:
            self._warn_lr(float(lr))
        for number, p in enumerate(group["params"], start):
            grad = p.grad
            if grad is None:
                continue
            if grad.is_sparse:
                raise RuntimeError("AdaArturo does not support sparse gradients, please consider SparseAdam instead")
            state = self.state[p]
            if "M" not in state:  # the user may keep other entries there
                if shards is None and not any("M" in other for other in self.state.values()):
                    self._forget_curvature()
                state.update(initial_state(group, p))
            if self._info is None:
                self._make_info(p.device)
            if moves:
                rows.append(row_of(group, p, state, number, shards, self._layouts))

    def _warn_lr(self, lr: float) -> None:
        """Warn once that steps do not get longer with lr."""
        self._warned_lr = True
        warn(
            f"lr={lr:g} counts as {MOST_LR:g} for the length of AdaArturo's steps, where they are 6 % of a tensor's size; "
            "weight decay follows lr itself. This warning is given once."
        )

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: re-evaluates the model and returns the loss; called once, with gradients enabled.

        Returns:
            What the closure returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._take_step()
        return loss

    @_disable_dynamo
    def _take_step(self) -> None:
        device = next((p.device.type for group in self.param_groups for p in group["params"]), "cpu")
        if is_autocast_available(device) and torch.is_autocast_enabled(device):  # whose products are in half precision
            with torch.autocast(device, enabled=False):
                return self._take_step()
        shards, start = sharding.find(self.param_groups), 0
        rows: list[AdaptiveRow] = []
        for group in self.param_groups:
            self._init_group(group, rows, start, shards)
            start += len(group["params"])
        if not rows and shards is None:
            if self._info is not None:
                self._info.zero_()
                self._place_curvature(self._info)
            return
        members = [] if shards is None else [(p, group) for group in self.param_groups for p in group["params"]]
        if self._info is None:
            self._make_info(members[0][0].device)
        assert self._info is not None
        first = self.param_groups[0]
        memory = 1 - first["betas"][0]
        info, first["curvature"] = take_step(rows, self._info, first["curvature"], memory, shards, members)
        if info is not None:
            self._warn_broken(info[1])
            if info[-1] > 0:
                self._warn_missing(info[-1])
        if len(self._layouts) > len(self.state):  # somebody has deleted state: layouts would keep it, and its parameter, alive
            known = set(map(id, self.state))
            self._layouts = {i: layout for i, layout in self._layouts.items() if i in known}

    def _forget_curvature(self) -> None:
        """As in a fresh optimizer: all state was deleted, to begin anew."""
        first = self.param_groups[0]
        if isinstance(first["curvature"], Tensor):
            first["curvature"].zero_()
        else:
            first["curvature"] = (0.0,) * len(first["curvature"])

    def _place_curvature(self, info: Tensor) -> None:
        """A tensor where steps will make it one, from the time when there is state: a checkpoint loads into what it finds."""
        first = self.param_groups[0]
        stepping = ((p, group) for group in self.param_groups for p in group["params"] if p in self.state)
        if not isinstance(first["curvature"], Tensor) and not are_on_host(stepping):
            first["curvature"] = info.new_tensor(first["curvature"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._layouts.clear()  # they hold the state that a load replaces
        for group in self.param_groups[:1]:
            known = group["curvature"]
            new = 6 - len(known)  # saved before noise had a level, or that a mark
            if new:
                group["curvature"] = (
                    torch.cat([known, known.new_zeros(new)]) if isinstance(known, Tensor) else (*known, *[0.0] * new)
                )

    def _sealed(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return adaptive_checkpoint.sealed(state_dict)

    def _unseal(self, group: Mapping[str, Any], p: Tensor, entry: dict[str, Any]) -> bool:
        return adaptive_checkpoint.unsealed(group, p, entry)


def refuse_foreign(options: Mapping[str, Any]) -> None:
    """Raise ValueError for what AdamW can do and AdaArturo cannot, from the constructor or in a group."""
    for name, advice in FOREIGN.items():
        if options.get(name):
            raise ValueError(f"Invalid {name} value: {options[name]!r} ({advice}; leave it out)")
