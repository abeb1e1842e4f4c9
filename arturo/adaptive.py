"""The recommended optimizer: parameter groups and state. The step is in ``adaptive_step.py``, formulas in ``learned.py``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler with arturo
from torch.optim.optimizer import Optimizer, ParamsT

from arturo import checkpoint, hyperparameters, sampling, sharding
from arturo.adaptive_state import initial_state
from arturo.adaptive_step import row_of, take_step
from arturo.curvature import Data, Loss
from arturo.kernels.adaptive.row import Row
from arturo.kernels.batch import sum_dtype
from arturo.posterior import Posterior
from arturo.snapshot import Curvature, posterior_of
from arturo.state import FACTORS
from arturo.step import StepInfo


class AdaArturo(Optimizer):
    r"""arTuRO that learns its noise and its geometry: a drop-in for AdamW.

    Keeps a Gaussian over the weights whose mean *is* the parameters. A Kalman filter tracks the gradient ``M`` and its noise
    ``r``; the Gaussian is diagonal in the eigenbasis of two Kronecker factors of the noise, with a precision proportional to
    :math:`\sqrt r / (\tau\sigma)`, where :math:`\sigma` is the tensor's size and :math:`\tau` = 20 lr its drift per step. A
    step goes as far as that drift would, in nats, over all tensors together, and less far where the gradient is mostly noise:

    .. math:: \Delta = -\tau\,\sigma\,k\,Q_L \frac{Q_L^T M Q_R}{\sqrt{r}} Q_R^T

    with one :math:`k` for the whole network. Scaling the loss changes nothing, and no warm-up is needed.

    Args:
        params: parameters, named parameters, or dicts defining groups. Every option can be set per group; the trust region is
            one for all groups.
        lr: step size in AdamW's unit: a matrix whose weights have a root mean square of 0.05 moves by about ``lr`` per weight
        and step,
            others in proportion to their size (relative step 20 lr). Keep the lr and the schedule of your AdamW recipe.
        betas: ``betas[0]`` sets the gain of the filter, 1 - betas[0] once settled; ``betas[1]`` is the averaging constant of
        the noise.
        eps: added to the noise's standard deviation, in gradient units.
        weight_decay: decoupled, as in AdamW: weights are multiplied by ``1 - lr * weight_decay`` before the step.
        covariance: ``"kronecker"``, or ``"diagonal"``, which needs no matrix products: AdamW's cost and memory.
        block: sides of a matrix longer than this are cut into blocks (:func:`arturo.kronecker.tiling`).
        refresh: steps between two refreshes of a basis.
        foreach, fused: accepted as in AdamW; there is one implementation so far.
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

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.995),
        eps: float = 1e-30,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        covariance: str = "kronecker",
        block: int = 128,
        refresh: int = 10,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        fused: bool | None = None,
    ) -> None:
        if amsgrad:
            raise ValueError(
                f"Invalid amsgrad value: {amsgrad!r} (there are no second moments to take maxima of; leave it out)"
            )
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "covariance": covariance,
            "block": block,
            "refresh": refresh,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "fused": fused,
        }
        hyperparameters.check_adaptive(defaults)
        super().__init__(params, hyperparameters.plain(defaults))
        self._info: Tensor | None = None
        self._warned_missing = False

    @property
    def last_step(self) -> StepInfo:
        """What the last step did; all zeros before the first. Reading it waits for the device the parameters are on."""
        if self._info is None:
            return StepInfo(0.0, 0.0, 0.0, 0, False, 0)
        eta, kl, bound, evaluations, active, skipped = self._info.tolist()
        return StepInfo(eta, kl, bound, int(evaluations), bool(active), int(skipped))

    @_disable_dynamo
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set comes from the constructor's arguments."""
        if isinstance(param_group, dict):
            hyperparameters.check_adaptive({**self.defaults, **param_group})
            param_group.update(hyperparameters.plain(param_group))
        super().add_param_group(param_group)
        try:
            sharding.refuse_flat(param_group["params"])
        except RuntimeError:
            self.param_groups.pop()
            raise

    def _init_group(self, group: dict[str, Any], rows: list[Row], start: int, shards: sharding.Shards | None) -> None:
        """Append what takes part in this step to ``rows``, making state where there is none. Dynamo runs this eagerly."""
        sampling.refuse_draws(group["params"])
        lr = group["lr"]
        on_device = isinstance(lr, Tensor) and (group["capturable"] or lr.device.type != "cpu")
        moves = on_device or lr > 0  # a schedule that ends at 0 may round below it
        for number, p in enumerate(group["params"], start):
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError("AdaArturo does not support sparse gradients, please consider SparseAdam instead")
            state = self.state[p]
            if "M" not in state:  # the user may keep something of their own there
                state.update(initial_state(group, p))
            if self._info is None:
                self._info = torch.zeros(len(StepInfo._fields), dtype=sum_dtype(p.device), device=p.device)
            if moves:
                rows.append(row_of(group, p, state, number, shards))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
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
        self._take_step()
        return loss

    @_disable_dynamo
    def _take_step(self) -> None:
        members = [(p, group) for group in self.param_groups for p in group["params"]]
        shards, start = sharding.find(self.param_groups), 0
        rows: list[Row] = []
        for group in self.param_groups:
            self._init_group(group, rows, start, shards)
            start += len(group["params"])
        if not rows and shards is None:
            if self._info is not None:
                self._info.zero_()
            return
        if self._info is None:
            device = members[0][0].device
            self._info = torch.zeros(len(StepInfo._fields), dtype=sum_dtype(device), device=device)
        if take_step(rows, self._info, shards, members) and not self._warned_missing:
            self._warned_missing = True
            warnings.warn(
                f"{int(self._info[-1])} gradient entries were not finite or too large to square and were skipped: their "
                "weights follow the filter's last estimate (nothing moves where no entry was seen). last_step.skipped counts "
                "them; this warning is given once.",
                stacklevel=7,  # this, two wrappers of Dynamo, step, its no_grad, torch's profiling wrapper, the caller
            )

    def posterior(
        self,
        *,
        ess: float,
        temperature: float = 1.0,
        curvature: Curvature = "ggn",
        model: torch.nn.Module | None = None,
        data: Data | None = None,
        loss: Loss = "cross_entropy",
        prior_precision: float = 0.0015,
    ) -> Posterior:
        r"""The weights with a diagonal Gaussian around them, of precision (ess max(a, 0) + prior_precision) / temperature.

        As :meth:`arturo.Arturo.posterior`, but the learned noise is no curvature of the loss (its unit is the batch's), so
        ``curvature="surrogate"`` is refused: use the Gauss-Newton diagonal, or bring your own.

        Args:
            ess: effective sample size, the number of observations the loss is a mean over; usually that of the training set.
            temperature: 1 is the posterior; less is narrower. :func:`arturo.calibrate` picks it on held-out data.
            curvature: a of the mean loss. ``"ggn"``: the Gauss-Newton diagonal, from ``model``, ``data`` and ``loss``. Or what
                :func:`arturo.ggn_diagonal` gave; or a function that gets the list of parameters and gives a tensor for each.
            model: the network with these parameters. Also gives them their names.
            data: ``(x, y)``, or batches of them; some thousand examples will do.
            loss: ``"cross_entropy"``, ``"binary_cross_entropy"``, ``"squared_error"``, or a function of outputs and targets.
            prior_precision: of the prior N(0, 1 / prior_precision).

        Raises:
            RuntimeError: no step was taken yet.
            ValueError: a number out of its range, or a model whose parameters these are not.
        """
        return posterior_of(
            self,
            ess=ess,
            temperature=temperature,
            curvature=curvature,
            prior_precision=prior_precision,
            model=model,
            data=data,
            loss=loss,
        )

    def sampled_params(
        self, posterior: Posterior | None = None, *, generator: torch.Generator | None = None, **options: Any
    ) -> AbstractContextManager[None]:
        """One draw in the parameters inside the block, see :meth:`arturo.Arturo.sampled_params`."""
        if posterior is None:
            posterior = self.posterior(**options)
        elif options:
            raise TypeError(f"unexpected argument {next(iter(options))!r}: a Posterior has its own; see Posterior.replace()")
        return posterior.sampled_params(generator=generator)

    @_disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave. Float32 state stays float32 under half-precision parameters."""
        handle = self.register_load_state_dict_pre_hook(lambda _, loaded: sealed(loaded))  # after the user's hooks
        before = self.state, self.param_groups
        try:
            super().load_state_dict(state_dict)
        except Exception:
            self.state, self.param_groups = before  # a refused load changes nothing
            raise
        finally:
            handle.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)
        self.__dict__.setdefault("_info", None)
        self.__dict__.setdefault("_warned_missing", False)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        members = [(group, p) for group in self.param_groups for p in group["params"] if p in self.state]
        restarted = [tuple(p.shape) for group, p in members if unsealed(group, p, self.state[p])]
        if restarted:
            warnings.warn(
                f"the state of {len(restarted)} parameters starts anew: it was saved in tiles of another size, under another "
                f"number of processes or another block. Their shapes: {', '.join(map(str, restarted[:5]))}"
                f"{', ...' if len(restarted) > 5 else ''}",
                stacklevel=8,  # this, load_state_dict of torch and ours, each in two wrappers of Dynamo, the caller
            )


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
    for key, entry in state_dict["state"].items():
        names = ("step", "M", "r")
        lacking = [name for name in names if isinstance(entry, Mapping) and name not in entry]
        if 0 < len(lacking) < len(names):  # an entry with none of them is the user's
            raise ValueError(f"this is not a state dict of AdaArturo: the state of parameter {key} lacks {', '.join(lacking)}")
    state = {
        key: {name: checkpoint.Sealed(x) if isinstance(x, Tensor) else x for name, x in entry.items()}
        if isinstance(entry, Mapping)
        else entry
        for key, entry in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


@torch.no_grad()
def unsealed(group: dict[str, Any], p: Tensor, entry: dict[str, Any]) -> bool:
    """Open the tensors of one parameter's state, on its device and in the dtype that its own state would have.

    State saved in tiles of another size lies in other bases, and in another order: it starts anew, as if this parameter had
    not stepped yet. Returns whether that was so.
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
