r"""The diagonal of the Gauss-Newton matrix, exact, for any model that ``torch.func`` can differentiate.

For the mean loss :math:`\frac1N \sum_n \ell(f(x_n, \theta), y_n)` it is the diagonal of

.. math::
    G = \frac1N \sum_n J_n^T H_n J_n, \quad J_n = \partial f(x_n) / \partial\theta, \quad H_n = \partial^2\ell / \partial f^2 .

With a factor :math:`H_n = \sum_k s_k v_k v_k^T`, :math:`s_k = \pm 1`, the diagonal is
:math:`\frac1N \sum_n \sum_k s_k (J_n^T v_k)^2`: one backward pass per example and column. Never negative for a loss that
is convex in the model's output; for cross-entropy it is the Fisher information's diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, vjp, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from arturo.state import HALF

Loss = str | Callable[[Tensor, Tensor], Tensor]
Data = tuple[Tensor, Tensor] | Iterable[tuple[Any, Tensor]]
MEMORY = 32 << 20  # bytes of single gradients alive at a time; more is slower, they leave the cache


def ggn_diagonal(
    model: nn.Module,
    data: Data,
    loss: Loss = "cross_entropy",
    *,
    parameters: Iterable[Tensor] | None = None,
    columns: int | None = None,
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
) -> dict[str, Tensor]:
    r"""The diagonal of the Gauss-Newton matrix of the mean loss over ``data``, by parameter name.

    The model is put into evaluation mode meanwhile (batch norms use their running statistics, dropout is off). Half
    precision is computed in float32.

    Args:
        model: takes a batch, returns one tensor of outputs whose first dimension is the batch.
        data: ``(x, y)``, two tensors with all examples; or batches ``(x, y)``, such as a DataLoader. ``x`` may be a tuple of
            tensors if the model takes several.
        loss: ``"cross_entropy"`` (logits, one row of classes), ``"binary_cross_entropy"`` (logits),
            ``"squared_error"`` (half the sum of squares, that is Gaussian noise of variance 1), or a function of a batch of
            outputs and targets, e.g. ``torch.nn.functional.mse_loss``. The function is given batches of one.
        parameters: those to take; None: all that the model has.
        columns: None is exact. A number uses that many random combinations :math:`\sum_k \pm v_k` per example instead of every
            :math:`v_k`: right in the mean, cheaper where there are many outputs.
        generator: of the random signs; on the CPU.
        memory: bytes that single gradients may take at a time; at least one is needed.

    Returns:
        One tensor per parameter in its shape, float32 or wider. A complex parameter counts as pairs of reals: ``(..., 2)``.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
        >>> ggn_diagonal(model, (x, torch.zeros(2, 1)), "squared_error")["weight"]  # the mean of x squared
        tensor([[5., 2.]])

    References:
        Schraudolph: Fast Curvature Matrix-Vector Products for Second-Order Gradient Descent, Neural Computation 2002.
    """
    factor = _factor_of(loss)
    if columns is not None and (type(columns) is not int or columns < 1):
        raise ValueError(f"Invalid columns value: {columns!r} (must be an integer >= 1, or None for all of them)")
    _refuse_batch_statistics(model)
    chosen = None if parameters is None else {id(p) for p in parameters}
    named = {name: p for name, p in model.named_parameters() if chosen is None or id(p) in chosen}
    if not named:
        raise ValueError("ggn_diagonal has nothing to do: none of the parameters is one of the model's")
    values = {name: _wide(p) for name, p in named.items()}
    fixed = {name: _wide(p) for name, p in (*model.named_parameters(), *model.named_buffers()) if name not in named}
    total = {name: torch.zeros_like(_real(value)) for name, value in values.items()}

    def outputs(values: dict[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        return functional_call(model, {**fixed, **values}, inputs)  # type: ignore[no-any-return]

    def output(values: dict[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        return outputs(values, tuple(x.unsqueeze(0) for x in inputs)).squeeze(0)

    def squares(inputs: tuple[Tensor, ...], v: Tensor, sign: Tensor) -> dict[str, Tensor]:
        """The sum over the columns of one example."""
        pull_back = vjp(lambda values: output(values, inputs), values)[1]
        (gradients,) = vmap(pull_back)(v)
        return {name: torch.einsum("k,k...->...", sign, _real(g).square()) for name, g in gradients.items()}

    examples = 0
    pairs = max(1, memory // sum(t.numel() * t.element_size() for t in total.values()))
    with evaluating(model), torch.no_grad():
        for inputs, targets in batches(data, next(iter(values.values())).device):
            predicted = outputs(values, inputs)
            _check_outputs(predicted, targets, loss)
            v, sign = vmap(factor)(predicted, targets)  # (examples, columns, *output), (examples, columns)
            if columns is not None:
                v, sign = _combined(v, sign, columns, generator)
            width = min(v.shape[1], pairs)
            length = max(1, pairs // width)
            for i in range(0, len(v), length):
                for k in range(0, v.shape[1], width):
                    here = slice(i, i + length)
                    part = vmap(squares)(tuple(x[here] for x in inputs), v[here, k : k + width], sign[here, k : k + width])
                    for name, square in part.items():
                        total[name] += square.sum(0)
            examples += len(v)
    if examples == 0:
        raise ValueError("ggn_diagonal was given no data: an iterator that is used up?")
    return {name: value / examples for name, value in total.items()}


# ---- the loss's Hessian in the output of one example, as columns v and signs


def softmax_factor(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\mathrm{diag}(p) - p p^T = \sum_k v_k v_k^T` with :math:`v_k = \sqrt{p_k} (e_k - p)`."""
    p = output.softmax(-1)
    v = (torch.eye(len(p), dtype=p.dtype, device=p.device) - p) * p.sqrt().unsqueeze(1)
    return v, torch.ones_like(p)


def logistic_factor(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\mathrm{diag}(p (1 - p))`, every output a separate Bernoulli variable."""
    p = output.sigmoid().flatten()
    return _unflatten((p * (1 - p)).sqrt().diag(), output), torch.ones_like(p)


def unit_factor(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The unit matrix: half the sum of squares."""
    ones = torch.ones_like(output).flatten()
    return _unflatten(ones.diag(), output), ones


def hessian_factor(loss: Callable[[Tensor, Tensor], Tensor], output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Of any loss, by its eigenvectors; a direction in which it is concave counts as negative."""

    def flat(out: Tensor) -> Tensor:
        return loss(out.reshape(output.shape).unsqueeze(0), target.unsqueeze(0)).sum()

    values, vectors = torch.linalg.eigh(hessian(flat)(output.flatten()))
    return _unflatten((vectors * values.abs().sqrt()).T, output), values.sign()


_FACTORS = {"cross_entropy": softmax_factor, "binary_cross_entropy": logistic_factor, "squared_error": unit_factor}


def _factor_of(loss: Loss) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    if isinstance(loss, str):
        if loss not in _FACTORS:
            raise ValueError(f"Invalid loss value: {loss!r} (must be one of {', '.join(map(repr, _FACTORS))}, or a function)")
        return _FACTORS[loss]
    if not callable(loss):
        raise ValueError(f"Invalid loss value: {loss!r} (must be one of {', '.join(map(repr, _FACTORS))}, or a function)")
    return lambda output, target: hessian_factor(loss, output, target)


def _unflatten(v: Tensor, output: Tensor) -> Tensor:
    return v.reshape(-1, *output.shape)


def _combined(v: Tensor, sign: Tensor, count: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """``count`` sums of all columns with random signs, scaled: E[(J^T v)^2] is the sum over the columns. Convex losses."""
    if bool((sign < 0).any()):
        raise ValueError("Invalid columns value: random combinations need a loss that is convex in the output (pass None)")
    shape = (len(v), count, v.shape[1])
    mixing = torch.randint(0, 2, shape, generator=generator).to(v.device, v.dtype).mul_(2).sub_(1) / count**0.5
    v = torch.einsum("nck,nk...->nc...", mixing, v)
    return v, torch.ones(v.shape[:2], dtype=v.dtype, device=v.device)


# ---- data and model


def batches(data: Data, device: torch.device) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    """Batches as (inputs, targets) on the device, half precision widened, whatever form ``data`` has."""
    whole = isinstance(data, tuple) and len(data) == 2 and all(isinstance(x, Tensor) for x in data)
    for batch in [data] if whole else data:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise TypeError(f"data must be two tensors (x, y) or give batches (x, y), got {type(batch).__name__}")
        x: Any = batch[0]
        y: Any = batch[1]
        inputs = tuple(x) if isinstance(x, (tuple, list)) else (x,)
        if not all(isinstance(t, Tensor) for t in (*inputs, y)):
            raise TypeError(f"data must give tensors, got {', '.join(type(t).__name__ for t in (*inputs, y))}")
        yield tuple(_wide(t.to(device)) for t in inputs), y.to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is back in its own mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _check_outputs(output: Any, targets: Tensor, loss: Loss) -> None:
    if not isinstance(output, Tensor):
        raise TypeError(f"the model must return one tensor of outputs, got {type(output).__name__} (wrap it in a module)")
    if output.dim() == 0 or len(output) != len(targets):
        raise ValueError(f"the model gave outputs of shape {tuple(output.shape)} for {len(targets)} targets")
    if loss == "cross_entropy" and output.dim() != 2:
        raise ValueError(
            f"Invalid loss value: 'cross_entropy' for outputs of shape {tuple(output.shape)} (it takes one row of logits per "
            "example; pass a function, e.g. torch.nn.functional.cross_entropy)"
        )


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ValueError(f"{name or 'the model'} is a batch norm without running statistics: examples are not independent")


def _wide(x: Tensor) -> Tensor:
    return x.detach().float() if x.dtype in HALF else x.detach()


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
