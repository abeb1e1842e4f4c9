"""What both optimizers are to torch and to their user: parameter groups, checkpoints, the posterior, the last step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler with arturo
from torch.optim.optimizer import Optimizer, ParamsT

from arturo import sharding
from arturo.advice import warn
from arturo.declaration import Hyperparameters, plain
from arturo.kernels.batch import sum_dtype
from arturo.posterior.curvature import Data, Loss
from arturo.posterior.gaussian import Posterior
from arturo.posterior.snapshot import Curvature, posterior_of
from arturo.step_info import StepInfo


class TrustRegionOptimizer(Optimizer):
    """A Gaussian over the weights whose mean is the parameters. Subclasses declare their arguments and how they step.

    Attributes:
        declared: the hyperparameters.
        unseen: what a weight with a missing gradient entry follows, for the warning.
    """

    declared: ClassVar[Hyperparameters]
    unseen: ClassVar[str]
    _info: Tensor | None
    _warned_missing: bool
    _warned_broken: bool

    def __init__(self, params: ParamsT, options: dict[str, Any]) -> None:
        self.declared.check(options)
        for name, value in self._unsaved().items():
            self.__dict__.setdefault(name, value)
        super().__init__(params, plain(options))

    def _unsaved(self) -> dict[str, Any]:
        """Attributes that are not in checkpoints, with their initial values."""
        return {"_info": None, "_warned_missing": False, "_warned_broken": False}

    @property
    def last_step(self) -> StepInfo:
        """What the last step did; all zeros before the first. Reading it waits for the device the parameters are on."""
        if self._info is None:
            return StepInfo(0.0, 0.0, 0.0, 0, False, 0)
        eta, kl, bound, evaluations, active, skipped = self._info.tolist()
        return StepInfo(eta, kl, bound, int(evaluations), bool(active), int(skipped))

    def _make_info(self, device: torch.device) -> None:
        """Where steps write what :attr:`last_step` reads."""
        self._info = torch.zeros(len(StepInfo._fields), dtype=sum_dtype(device), device=device)

    @_disable_dynamo
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set comes from the constructor's arguments."""
        if isinstance(param_group, dict):
            self._complete(param_group)
        super().add_param_group(param_group)
        try:
            sharding.refuse_flat(param_group["params"])
        except RuntimeError:
            self.param_groups.pop()
            raise
        # torch warns of a parameter that is listed twice. It counts once: a second observation of one gradient has no noise.
        group = self.param_groups[-1]
        first = sorted({id(p): i for i, p in reversed(list(enumerate(group["params"])))}.values())
        for key in {"params", "param_names"} & group.keys():
            group[key] = [group[key][i] for i in first]

    def _complete(self, group: dict[str, Any]) -> None:
        """Check a new group's options and make them plain data."""
        self.declared.check({**self.defaults, **group})
        group.update(plain(group))

    def _warn_missing(self, skipped: float) -> None:
        """Warn once that gradient entries were missing."""
        if skipped and not self._warned_missing:
            self._warned_missing = True
            warn(
                f"{int(skipped)} gradient entries were not finite or too large to square and were skipped: their weights "
                f"follow {self.unseen} (if all entries are missing, nothing moves). last_step.skipped counts them; "
                "this warning is given once."
            )

    def _warn_broken(self, kl: float) -> None:
        """Warn once that the trust region has no size."""
        if math.isnan(kl) and not self._warned_broken:
            self._warned_broken = True
            warn(
                "a parameter or its state has entries that are not finite: the trust region has no size, and nothing moves. "
                "torch.isfinite(p).all() tells which parameter; this warning is given once."
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
        prior_precision: float | None = None,
    ) -> Posterior:
        r"""The Gaussian over the weights as a Bayesian posterior, of precision (ess max(a, 0) + prior_precision) / temperature.

        Meaning, and how far to trust it: docs/posterior.md. The loss must be a mean of negative log-likelihoods.

        Args:
            ess: effective sample size, the number of observations the loss is a mean over; usually that of the training set.
                ``1 / prior_weight`` gives what the variance of :class:`arturo.Arturo` settles at.
            temperature: 1 is the posterior; less is narrower. :func:`arturo.calibrate` picks it on held-out data.
            curvature: a of the mean loss. ``"ggn"``: the Gauss-Newton diagonal, from ``model``, ``data`` and ``loss``.
                ``"surrogate"``: that of :class:`arturo.Arturo`'s filter, which is free and a poor estimate on networks;
                :class:`arturo.AdaArturo` has none and refuses it. Or a result of :func:`arturo.ggn_diagonal`; or a function
                that takes the list of parameters and returns a tensor for each.
            model: the network with these parameters. Also gives them their names.
            data: ``(x, y)``, or batches of them; a few hundred examples are usually enough.
            loss: ``"cross_entropy"``, ``"binary_cross_entropy"``, ``"squared_error"``, or a function of outputs and targets.
            prior_precision: of the prior N(0, 1 / prior_precision). None: that of each group, or 0.0015 if they have none.

        Raises:
            RuntimeError: no step was taken yet.
            ValueError: a number out of its range, or a model that does not have these parameters.
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
        """One draw in the parameters inside the block; afterwards they are what they were, bit for bit, whatever happened.

        Args:
            posterior: what to draw from. None: ``self.posterior(**options)``; make it once and pass it if you draw often.
            generator: of the draw.

        Example:
            >>> import arturo
            >>> p = torch.nn.Parameter(torch.ones(3))
            >>> optimizer = arturo.Arturo([p])
            >>> p.sum().backward()
            >>> optimizer.step()
            >>> before = p.detach().clone()
            >>> with optimizer.sampled_params(ess=1000, curvature="surrogate"):
            ...     print(torch.equal(p, before))
            False
            >>> torch.equal(p, before)
            True
        """
        if posterior is None:
            posterior = self.posterior(**options)
        elif options:
            raise TypeError(f"unexpected argument {next(iter(options))!r}: a Posterior has its own; see Posterior.replace()")
        return posterior.sampled_params(generator=generator)

    @_disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned. Float32 state stays float32 under half-precision parameters."""
        handle = self.register_load_state_dict_pre_hook(lambda _, loaded: self._sealed(loaded))  # after the user's hooks
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
        for name, value in self._unsaved().items():
            self.__dict__.setdefault(name, value)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        members = [(group, p) for group in self.param_groups for p in group["params"] if p in self.state]
        restarted = [tuple(p.shape) for group, p in members if self._unseal(group, p, self.state[p])]
        if restarted:
            warn(
                f"the state of {len(restarted)} parameters was reset: it was saved in tiles of another size, under another "
                f"number of processes or another block. Their shapes: {', '.join(map(str, restarted[:5]))}"
                f"{', ...' if len(restarted) > 5 else ''}"
            )

    def _sealed(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state dict with its tensors sealed against casts (:mod:`arturo.checkpoint`); another optimizer's is refused."""
        raise NotImplementedError

    def _unseal(self, group: Mapping[str, Any], p: Tensor, entry: dict[str, Any]) -> bool:
        """Open one parameter's state in place. Returns whether it had to be reset."""
        raise NotImplementedError


def refuse_nan(lr: float | Tensor) -> None:
    """Nothing would move, and nothing would tell. On a device nobody looks."""
    if (not isinstance(lr, Tensor) or lr.device.type == "cpu") and lr != lr:
        raise ValueError(f"Invalid lr value: {float(lr)} (set after the construction, perhaps by a scheduler)")
