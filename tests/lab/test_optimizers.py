"""The optimizers' table: the paper's values, what --set may say, and packages that are not there."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

import arturo
from arturo_lab.errors import ConfigError
from arturo_lab.optimizers import tuned
from arturo_lab.optimizers.catalog import OPTIMIZERS, PAPERS
from arturo_lab.optimizers.settings import as_arguments, parse, resolve
from arturo_lab.runs.config import RunConfig
from arturo_lab.tasks.catalog import TASKS

PAPERS_TASKS = list(TASKS)[-6:]
IMAGES = 50_000


def built(optimizer: str, task: str = "fmnist-cnn", **overrides) -> torch.optim.Optimizer:
    settings = resolve(optimizer, task, IMAGES, overrides)
    return OPTIMIZERS[optimizer].load()([torch.nn.Parameter(torch.ones(2, 2))], **as_arguments(settings))


def test_tuned_values_of_every_task() -> None:
    for table in (tuned.SGD, tuned.ADAM, tuned.ADAMW, tuned.ARTURO):
        assert list(table) == PAPERS_TASKS


def test_tuned_values_reach_the_optimizer() -> None:
    group = built("sgd", "cifar100-resnet34").param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.067994, 0.867370, 0.0018)
    group = built("adam", "fmnist-resnet18").param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.045115, (0.907895, 0.999999), 0.000002)
    group = built("adamw", "cifar10-cnn").param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.001129, (0.851157, 0.99894), 0.00109)
    group = built("arturo", "cifar10-resnet34").param_groups[0]
    assert (group["lr"], group["kl_bound"], group["prior_weight"]) == (1.0, 0.007132920002311371, 1.5973544349997737)
    assert (group["noise"], group["drift"], group["weight_decay"]) == (
        9.328440015416716,
        0.08938098738904834,
        0.0007029104518730781,
    )


def test_the_three_arturos() -> None:
    exact, paper, default = (built(name).param_groups[0] for name in ("arturo", "arturo-paper", "arturo-default"))
    assert exact["dual"] == default["dual"] == "newton" and exact["curvature_floor"] == default["curvature_floor"] == 0.0
    assert {name: paper[name] for name in arturo.PAPER} == arturo.PAPER
    assert exact["kl_bound"] == paper["kl_bound"] == 0.08567456308209788 and default["kl_bound"] is None


def test_settings_are_complete() -> None:
    assert resolve("sgd", "digits-mlp", IMAGES) == {
        "lr": 0.1,
        "momentum": 0.9,
        "dampening": 0,
        "weight_decay": 0,
        "nesterov": False,
        "maximize": False,
        "foreach": None,
        "differentiable": False,
        "fused": None,
    }
    assert resolve("ivon", "digits-mlp", 123)["ess"] == 123
    assert resolve("ivon", "digits-mlp", 123)["clip_radius"] == "inf"  # JSON has no infinity
    assert built("ivon").param_groups[0]["clip_radius"] == float("inf")
    assert RunConfig.for_task("digits-mlp", "ivon", subset=77).settings["ess"] == 77


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_entry_builds_with_its_own_values(name: str) -> None:
    for task in TASKS:
        settings = resolve(name, task, IMAGES)
        optimizer = built(name, task)
        group = optimizer.param_groups[0]
        assert {key: group[key] for key in group if key in settings} == {
            key: value for key, value in as_arguments(settings).items() if key in group
        }


def test_set_reaches_the_optimizer() -> None:
    overrides = parse(["lr=0.5", "nesterov=true", "weight_decay=1e-3"])
    group = built("sgd", **overrides).param_groups[0]
    assert (group["lr"], group["nesterov"], group["weight_decay"], group["momentum"]) == (0.5, True, 1e-3, 0.865730)
    group = built("arturo", **parse(["kl_bound=none", "curvature_floor=none", "dual=bisection", "eta=2"])).param_groups[0]
    assert (group["kl_bound"], group["curvature_floor"], group["dual"], group["eta"]) == (None, None, "bisection", 2)
    assert built("adam", **parse(["betas=0.8,0.95"])).param_groups[0]["betas"] == (0.8, 0.95)


@pytest.mark.parametrize(
    ("optimizer", "assignment", "message"),
    [
        ("sgd", "momentun=0.9", "set: unknown name 'momentun'; did you mean momentum?"),
        ("arturo", "lambda=1", "set: unknown name 'lambda'; known: lr, kl_bound, prior_weight"),
        ("sgd", "params=1", "set: unknown name 'params'"),
        ("sgd", "lr", "set: expected name=value, got 'lr'"),
        ("sgd", "=1", "set: expected name=value, got '=1'"),
        ("sgd", "lr=fast", "set lr: must be a number, got 'fast'"),
        ("sgd", "lr=true", "set lr: must be a number, got True"),
        ("sgd", "lr=nan", "set lr: must be finite, got 'nan'"),
        ("sgd", "lr=1e999", "set lr: must be finite, got '1e999'"),
        ("sgd", "lr=0.1,0.2", r"set lr: must be a number, got \[0.1, 0.2\]"),
        ("sgd", "nesterov=1", "set nesterov: must be true or false, got 1"),
        ("adam", "betas=0.9", "set betas: must be 2 numbers with commas between them, got 0.9"),
        ("adam", "betas=0.9,x", "set betas: must be numbers with commas between them, got '0.9,x'"),
        ("adam", "betas=0.9,true", "set betas: must be numbers with commas between them, got '0.9,true'"),
        ("arturo", "dual=3", "set dual: must be a word, got 3"),
        ("arturo", "dual=newtom", "set: arturo does not take dual=newtom: Invalid dual value: 'newtom'"),
        ("arturo", "kl_bound=-1", "set: arturo does not take kl_bound=-1: Invalid kl_bound value: -1"),
        ("sgd", "lr=-1", "set: sgd does not take lr=-1: Invalid learning rate: -1"),
        ("sgd", "lr=none", "set: sgd does not take lr=None"),
    ],
)
def test_wrong_settings_name_the_key(optimizer: str, assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        RunConfig.for_task("fmnist-cnn", optimizer, overrides=parse([assignment]))


def test_equal_settings_are_one_config() -> None:
    def key(optimizer: str, *assignments: str) -> str:
        return RunConfig.for_task("digits-mlp", optimizer, overrides=parse(assignments)).key

    assert key("arturo", "lr=1") == key("arturo", "lr=1.0") == key("arturo")
    assert key("arturo", "kl_bound=2") == key("arturo", "kl_bound=2.0") != key("arturo")
    assert key("sgd", "dampening=0.0") == key("sgd") != key("sgd", "dampening=0.5")
    assert key("adam", "betas=0,0.5") == key("adam", "betas=0.0,0.5")


def test_given_twice() -> None:
    with pytest.raises(ConfigError, match=r"^set: lr is named twice"):
        parse(["lr=1", "lr=2"])


@pytest.mark.parametrize("name", ["ivon", "adahessian", "schedulefree-adamw", "soap"])
def test_missing_package_names_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("ivon", "pytorch_optimizer", "schedulefree"):
        monkeypatch.setitem(sys.modules, package, None)  # what a failed import looks like
    with pytest.raises(ConfigError, match=r"^optimizer: \w+ comes from another package: pip install 'arturo\[peers\]'"):
        RunConfig.for_task("digits-mlp", name)


def test_the_papers_optimizers_need_no_package() -> None:
    assert all(OPTIMIZERS[name].load().__module__.split(".")[0] in ("torch", "arturo") for name in PAPERS)


@pytest.mark.parametrize(
    "task, adamw",
    [
        ("digits-mlp", ["1.weight", "5.weight"]),
        ("fmnist-small-resnet", ["0.weight", "8.weight"]),
        ("cifar10-vit", ["position", "patches.weight", "out.weight"]),
        ("byte-gru", ["embed.weight", "out.weight"]),
        ("byte-transformer", ["position", "embed.weight"]),  # its output layer is the embedding
    ],
)
def test_muon_turns_hidden_matrices_only(task: str, adamw: list[str]) -> None:
    network, entry = TASKS[task].model(), OPTIMIZERS["muon"]
    entry.instrument(network, None)
    turned, others = entry.load()(network.parameters()).param_groups
    assert turned["use_muon"] and not others["use_muon"]
    left = {id(p) for p in others["params"]}
    assert [name for name, p in network.named_parameters() if p.ndim > 1 and id(p) in left] == adamw
    assert all(id(p) in left for p in network.parameters() if p.ndim < 2)


@pytest.mark.parametrize("name", ["soap", "schedulefree-adamw"])
def test_peers_with_warm_up_differ_in_nothing_else(name: str) -> None:
    plain, warm = OPTIMIZERS[name], OPTIMIZERS[f"{name}-warmup"]
    assert warm.warmup == 0.1 and plain.warmup == 0.0
    assert warm.load() is plain.load()
    assert replace(warm, label=plain.label, about=plain.about, load=plain.load, warmup=0.0) == plain
