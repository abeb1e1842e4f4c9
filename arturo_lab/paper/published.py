"""What the paper printed, as numbers."""

from __future__ import annotations

from arturo_lab.report.evidence import Estimate

TASKS = ("fmnist-cnn", "fmnist-resnet18", "cifar10-cnn", "cifar10-resnet34", "cifar100-cnn", "cifar100-resnet34")
SEEDS = 10
MACHINE = "one NVIDIA GeForce RTX 3080"

# tab:accuracy: mean and doubled standard error of the final test accuracy in percent, in the order of TASKS.
_ACCURACY = {
    "sgd": ((92.84, 0.08), (92.64, 0.07), (87.11, 0.15), (87.92, 0.16), (59.20, 0.18), (63.05, 0.16)),
    "adam": ((92.90, 0.10), (91.76, 0.17), (85.86, 0.15), (85.89, 0.51), (56.35, 0.27), (56.32, 0.45)),
    "adamw": ((92.92, 0.09), (91.97, 0.11), (85.88, 0.12), (86.07, 0.30), (56.50, 0.22), (56.86, 0.28)),
    "arturo": ((93.01, 0.10), (92.13, 0.12), (87.37, 0.13), (87.66, 0.19), (60.53, 0.13), (63.19, 0.24)),
}

# tab:timing: average seconds per training epoch, in the order of TASKS.
_SECONDS = {
    "sgd": (1.23, 4.19, 6.60, 9.05, 7.09, 12.08),
    "adam": (1.33, 5.16, 6.71, 9.83, 7.21, 11.33),
    "adamw": (1.28, 5.13, 6.80, 9.92, 7.18, 11.57),
    "arturo": (1.85, 5.42, 7.40, 15.59, 7.92, 15.87),
}

# tab:hp_sgd, tab:hp_adam, tab:hp_adamw, tab:hp_itropt as printed, in the order of TASKS; our names for the values.
HYPERPARAMETERS: dict[str, dict[str, tuple[float, ...]]] = {
    "sgd": {
        "lr": (0.071049, 0.137031, 0.017834, 0.056480, 0.017834, 0.067994),
        "momentum": (0.865730, 0.854087, 0.946762, 0.866487, 0.946762, 0.867370),
        "weight_decay": (0.000225, 0.001963, 0.000163, 0.001697, 0.000163, 0.001800),
    },
    "adam": {
        "lr": (0.001012, 0.045115, 0.001129, 0.006652, 0.001129, 0.001612),
        "beta1": (0.945256, 0.907895, 0.851157, 0.890313, 0.851157, 0.864582),
        "beta2": (0.990342, 0.999999, 0.998940, 0.999387, 0.998940, 0.999953),
        "weight_decay": (0.000000, 0.000002, 0.001090, 0.000447, 0.001090, 0.001941),
    },
    "adamw": {
        "lr": (0.001004, 0.018744, 0.001129, 0.006652, 0.001129, 0.001245),
        "beta1": (0.922247, 0.862748, 0.851157, 0.890313, 0.851157, 0.858643),
        "beta2": (0.999945, 0.999999, 0.998940, 0.999387, 0.998940, 0.998802),
        "weight_decay": (0.000142, 0.000040, 0.001090, 0.000447, 0.001090, 0.001804),
    },
    "arturo": {
        "kl_bound": (0.085675, 0.085675, 0.002787, 0.007133, 0.002787, 0.007234),
        "prior_weight": (0.058657, 0.058657, 0.296786, 1.597354, 0.296786, 1.676770),
        "noise": (2.816791, 2.816791, 1.219750, 9.328440, 1.219750, 4.822032),
        "drift": (0.017393, 0.017393, 0.002455, 0.089381, 0.002455, 0.009779),
        "weight_decay": (0.000002, 0.000002, 0.000000, 0.000703, 0.000000, 0.000000),
    },
}
# sec:exp_details: the same for all tasks.
FIXED = {
    "initial_variance": 0.01,
    "prior_precision": 0.0015,
    "covariance_weight": 1.3,
    "initial_filter_variance": 5e-5,
}

# The paper has one arTuRO. Ours in the exact form stands beside the same numbers as ours in the published form.
PRINTED_AS = {"arturo-paper": "arturo"}


def accuracy(optimizer: str, task: str) -> Estimate | None:
    """The final test accuracy as a fraction; None if the paper has none.

    Example:
        >>> accuracy("arturo", "fmnist-cnn")
        Estimate(mean=0.9301, error=0.0005, n=10)
        >>> accuracy("arturo-paper", "fmnist-cnn") == accuracy("arturo", "fmnist-cnn"), accuracy("soap", "fmnist-cnn")
        (True, None)
    """
    row = _ACCURACY.get(PRINTED_AS.get(optimizer, optimizer))
    if row is None or task not in TASKS:
        return None
    mean, error = row[TASKS.index(task)]
    return Estimate(round(mean / 100, 4), round(error / 200, 6), SEEDS)


def seconds_per_epoch(optimizer: str, task: str) -> float | None:
    """
    Example:
        >>> seconds_per_epoch("sgd", "cifar100-resnet34"), seconds_per_epoch("sgd", "digits-mlp")
        (12.08, None)
    """
    row = _SECONDS.get(PRINTED_AS.get(optimizer, optimizer))
    return None if row is None or task not in TASKS else row[TASKS.index(task)]
