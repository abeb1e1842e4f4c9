"""The paper's optimizer: parameter groups and state. Book-keeping, no formulas; the step is in ``step.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from arturo import checkpoint, sharding
from arturo.advice import Advice
from arturo.base import TrustRegionOptimizer, refuse_nan
from arturo.hyperparameters import ARTURO, DEFAULT_CURVATURE, FOREIGN, agree, refuse_foreign
from arturo.numbers import DeviceNumbers, HostNumbers
from arturo.posterior import sampling
from arturo.rows import batches_of
from arturo.state import HALF, check_gradient, follow_dtype, initial_state
from arturo.step import take_step
from arturo.step_info import StepInfo
from arturo.surrogates import FUNCTION, diagonals

_DEFAULT = ARTURO.default


class Arturo(TrustRegionOptimizer):
    r"""Information-theoretic trust regions for stochastic gradient-based optimization (arTuRO).

    Keeps a diagonal Gaussian :math:`N(\mu, \Sigma)` over the weights, whose mean *is* the parameters. Each step fits a
    diagonal quadratic model of the loss to the gradients seen so far (one two-state Kalman filter per weight) and moves to
    the model's optimum within a trust region of ``kl_bound * lr**2`` nats around the last Gaussian:

    .. math::
        \mu \leftarrow \mu - \frac{a\mu + b + \rho\lambda\mu}{\max(a, 0) + \rho\lambda + \eta\,\Sigma^{-1}}, \qquad
        \Sigma^{-1} \leftarrow \frac{\max(a, 0) + \rho\lambda + \nu\,\Sigma^{-1}}{\rho + \nu}

    with one :math:`\eta \ge 0` for the whole network, the root of
    :math:`C_\mu(\eta) = \tfrac12 \Delta\mu^T \Sigma^{-1} \Delta\mu = \varepsilon`.

    Args:
        params: parameters, named parameters, or dicts defining groups. Every option except ``dual``, ``eta`` and
            ``sample_gradients`` can be set per group; all groups share one trust region.
        lr: step factor (no unit), 1.0 by default and *not* to be copied from AdamW. The bound is ``kl_bound * lr**2``: step
            length is proportional to lr, so every torch scheduler means what it means for SGD. A float or a one-element
            tensor. 0 changes no weight and no existing state, bit for bit.
        kl_bound: :math:`\varepsilon`, nats per step for the whole network. None: grows with the number of weights
            that take part in the step (``arturo.core.bounds.KL_PER_WEIGHT`` nats each).
        prior_weight: :math:`\rho`, weight of the KL to the prior; sets the stationary variance rho / (a + rho lambda).
        prior_precision: :math:`\lambda`, precision of the prior N(0, 1/lambda), per squared weight.
        covariance_weight: :math:`\nu`, weight of the covariance's part of the KL: how slowly the variance follows.
        noise: r, variance of a gradient entry around the model, in squared gradient units.
        drift: q, variance by which the model may change per step. The filter averages over some sqrt(noise / drift) steps.
        weight_decay: the mean is multiplied by ``1 - 1e-3 * lr * weight_decay`` before the step, at lr = 1 as by AdamW at its
            default lr; with a ``kl_bound`` by ``1 - kl_bound * lr**2 * weight_decay``, as published.
        initial_curvature: a_0. A number is in units of the loss, and then so are ``prior_weight``, ``covariance_weight`` and
            ``curvature_floor``. None: 0.1 in a unit taken from the first gradients, in which those are as well, so that a loss
            times 1e-4 gives the same run (:mod:`arturo.loss_scale`). Set a number in every group or in none. With a surrogate
            other than the filter, or with ``sample_gradients``, None means 0.1 in units of the loss.
        initial_variance: :math:`\Sigma_0`. None: the stationary one, rho / (a_0 + rho lambda).
        initial_filter_variance: P_0, times the unit matrix. None: sqrt(drift * noise), about where the intercept's settles.
        surrogate: where the model comes from. ``"kalman"``: the filter. The others, each an ablation, keep running averages
            of the gradient and of a curvature: ``"adam"``, the root of Adam's second moment; ``"hessian"`` and ``"ggn"``, the
            diagonal of the Hessian or of the Gauss-Newton matrix, left at the parameters by BackPACK's ``DiagHessian`` or
            ``DiagGGNExact``; ``"hutchinson"``, AdaHessian's estimate, which needs ``loss.backward(create_graph=True)``; or
            a function that takes the list of a group's parameters and returns their Hessian diagonals, called once a step.
            ``noise``, ``drift``, ``init``, ``initial_filter_variance`` and ``state_dtype`` belong to the filter alone.
        averaging: the averaging constants (beta of the gradient, beta of the curvature) of those surrogates, Adam's
            ``betas``; bias is corrected as in Adam (:mod:`arturo.surrogates.averages`). None: (0.9, 0.999).
        dual: ``"newton"``, exact to 1e-3 of the bound; ``"bisection"``, the published rule.
        eta: a fixed multiplier instead of a trust region (the paper's ablation).
        curvature_floor: least curvature in denominators. None: no guard, as published; the bound is then not guaranteed.
        init: ``"consistent"`` starts the intercept at g - a_0 mu, ``"gradient"`` at g, as published.
        state_dtype: ``torch.bfloat16`` keeps the state in 12 bytes per weight instead of 24, rounded stochastically by a hash
            of step and position, so that runs repeat and resume bit for bit. None: float32, or float64 under float64
            parameters. Read when a parameter's state is made.
        foreach: True for the ``torch._foreach`` implementation, False for the loop. None: the fastest available.
        fused: True for one kernel per pass: the C++ one on the CPU if it was built, else one made by ``torch.compile``
            (a few seconds at the first step; also on accelerators and under ``capturable``). False: neither. None: the C++
            kernel if it was built.
        capturable: no host read in the step, so that it can be captured in a graph. Accelerators always step that way.
        maximize: maximize the objective instead.
        sample_gradients: variational training: ``step(closure)`` evaluates the closure at a draw from the Gaussian, restores
            the mean and steps. Use ``prior_weight = 1 / N`` for N training examples, and see docs/posterior.md. True takes the
            seed of the draws from torch's generator; an integer is the seed. A resumed run draws what it would have drawn.

    Example:
        >>> import torch, arturo
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = arturo.Arturo(model.parameters(), kl_bound=0.1)
        >>> x = torch.randn(64, 2)
        >>> y = x @ torch.tensor([[1.0], [-2.0]])
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     loss = (model(x) - y).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(loss < 1e-3), optimizer.last_step.kl <= 0.1 * 1.001
        (True, True)

    References:
        Dahlinger, Becker, Hüttenrauch, Neumann: Information-Theoretic Trust Regions for Stochastic Gradient-Based
        Optimization, OPT workshop at NeurIPS 2023.
    """

    declared = ARTURO
    unseen = "the model's prediction"
    _diagonals: dict[int, diagonals.Diagonal]  # functions passed as surrogate, by the group's index
    _advice: Advice

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = _DEFAULT["lr"],
        *,
        kl_bound: float | None = _DEFAULT["kl_bound"],
        prior_weight: float = _DEFAULT["prior_weight"],
        prior_precision: float = _DEFAULT["prior_precision"],
        covariance_weight: float = _DEFAULT["covariance_weight"],
        noise: float = _DEFAULT["noise"],
        drift: float = _DEFAULT["drift"],
        weight_decay: float = _DEFAULT["weight_decay"],
        initial_curvature: float | None = _DEFAULT["initial_curvature"],
        initial_variance: float | None = _DEFAULT["initial_variance"],
        initial_filter_variance: float | None = _DEFAULT["initial_filter_variance"],
        surrogate: str | diagonals.Diagonal = _DEFAULT["surrogate"],
        averaging: tuple[float, float] | None = _DEFAULT["averaging"],
        dual: str = _DEFAULT["dual"],
        eta: float | None = _DEFAULT["eta"],
        curvature_floor: float | None = _DEFAULT["curvature_floor"],
        init: str = _DEFAULT["init"],
        state_dtype: torch.dtype | None = _DEFAULT["state_dtype"],
        foreach: bool | None = _DEFAULT["foreach"],
        fused: bool | None = _DEFAULT["fused"],
        capturable: bool = _DEFAULT["capturable"],
        maximize: bool = _DEFAULT["maximize"],
        sample_gradients: bool | int = _DEFAULT["sample_gradients"],
        **foreign: Any,
    ) -> None:
        refuse_foreign(foreign)
        options = ARTURO.chosen(locals())
        if initial_curvature is None and (sample_gradients is not False or surrogate != "kalman"):
            options["initial_curvature"] = DEFAULT_CURVATURE  # prior_weight = 1 / N, or a true curvature
        if sample_gradients is True:
            options["sample_gradients"] = int(torch.randint(1 << 31, ()))
        super().__init__(params, options)

    def _unsaved(self) -> dict[str, Any]:
        return {**super()._unsaved(), "_diagonals": {}, "_advice": Advice()}

    def _complete(self, group: dict[str, Any]) -> None:
        refuse_foreign({name: x for name, x in group.items() if name in FOREIGN})
        super()._complete(group)
        surrogate = group.get("surrogate", self.defaults["surrogate"])
        if surrogate != "kalman" and self.defaults["initial_curvature"] is None:
            group.setdefault("initial_curvature", DEFAULT_CURVATURE)
        if self.param_groups:
            agree(group, self.param_groups[0], self.defaults)
        if callable(surrogate):
            self._diagonals[len(self.param_groups)] = surrogate
            group["surrogate"] = FUNCTION
        self._advice.note_lr(group.get("lr", self.defaults["lr"]))

    def _init_group(self) -> None:
        """Create missing state. Dynamo runs a method of this name eagerly, and traces what follows."""
        for group in self.param_groups:
            refuse_nan(group["lr"])
            sampling.refuse_draws(group["params"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise RuntimeError("Arturo does not support sparse gradients, please consider SparseAdam instead")
                check_gradient(p, p.grad)
                state = self.state[p]
                if "prec" not in state:  # others may keep entries there
                    state.update(initial_state(group, p))
                elif ("mean" in state) != (p.dtype in HALF):
                    follow_dtype(p, state)
                if ("grad_avg" in state) == (group["surrogate"] == "kalman"):
                    raise RuntimeError(
                        f"surrogate={group['surrogate']!r} found the state of another surrogate: it cannot change in a run"
                    )
                if self._info is None:
                    self._make_info(p.device)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: re-evaluates the model and returns the loss; called once, with gradients enabled. ``sample_gradients``
                needs one.

        Returns:
            What the closure returned, or None.
        """
        loss = None
        if closure is not None:
            with self._at_a_draw(), torch.enable_grad():
                loss = closure()
        elif self._seed is not None:
            raise RuntimeError("sample_gradients=True evaluates the loss at a draw: call step(closure)")
        self._init_group()
        shards = sharding.find(self.param_groups)
        if self._info is None:
            if shards is None:
                return loss
            self._make_info(self.param_groups[0]["params"][0].device)
        assert self._info is not None
        compiling = torch.compiler.is_compiling()
        on_device = compiling or any([_on_device(group, shards is not None) for group in self.param_groups])
        if not compiling:
            self._advice.before_step(self.param_groups, readable=not on_device)
        numbers = DeviceNumbers(shards, self._info) if on_device else HostNumbers(shards)
        batches = batches_of(self.param_groups, self.state, numbers, self._observed_diagonals(shards is not None))
        info = take_step(batches, numbers)
        if isinstance(numbers, DeviceNumbers):
            self._info.copy_(torch.stack([numbers.number(x) for x in info]))
        else:
            self._info.copy_(torch.tensor(info, dtype=self._info.dtype, device="cpu"))
            reported = StepInfo(*info)
            self._warn_missing(reported.skipped)
            self._advice.after_step(self.param_groups, reported)
        return loss

    def _observed_diagonals(self, sharded: bool) -> dict[Tensor, Tensor]:
        """What some surrogates need besides gradients."""
        if all([group["surrogate"] in ("kalman", "adam") for group in self.param_groups]):
            return {}
        return diagonals.gather(self.param_groups, self.state, self._diagonals, sharded)

    @property
    def _seed(self) -> int | None:
        seed = self.param_groups[0]["sample_gradients"]
        return None if seed is False else int(seed)

    def _at_a_draw(self) -> AbstractContextManager[None]:
        """Parameters at a draw from N(mean, 1 / prec), if ``sample_gradients`` asks for it; without state at their mean."""
        if self._seed is None:
            return nullcontext()
        params = [p for group in self.param_groups for p in group["params"] if "prec" in self.state.get(p, ())]
        steps = [int(self.state[p]["step"]) for p in params]
        generator = sampling.step_generator(self._seed, max(steps, default=0))
        return sampling.replaced(params, (sampling.draw(p, self.state[p], generator) for p in params))

    def _sealed(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return checkpoint.seal(state_dict, self.param_groups)

    def _unseal(self, group: Mapping[str, Any], p: Tensor, entry: dict[str, Any]) -> bool:
        checkpoint.unseal(p, entry)
        return False

    def __getstate__(self) -> dict[str, Any]:
        """What torch pickles, and functions passed as surrogate."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_diagonals": self._diagonals} if self._diagonals else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.state:
            self._advice.resume()


def _on_device(group: Mapping[str, Any], sharded: bool) -> bool:
    """Whether a step with this group must not read from its device; every process must come to the same answer."""
    params = group["params"] if sharded else [p for p in group["params"] if p.grad is not None]
    return group["capturable"] or any([p.device.type != "cpu" for p in params])
