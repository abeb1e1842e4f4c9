"""Configs: checked key by key, equal before and after JSON, told apart by eight digits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from arturo_lab.errors import ConfigError
from arturo_lab.runs.config import FORMAT, RunConfig
from arturo_lab.runs.share import Share

CONFIG = RunConfig.for_task("digits-mlp", "sgd")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "digits-mpl"}, "task: unknown name 'digits-mpl'; did you mean digits-mlp"),
        ({"optimizer": "AdamWW"}, "optimizer: unknown name 'AdamWW'; did you mean adamw"),
        (
            {"optimizer": "kfac"},
            "optimizer: unknown name 'kfac'; known: sgd, adam, adamw, adamw-warmup, adaarturo, adaarturo-diagonal, arturo",
        ),
        ({"seed": -1}, "seed: must be an integer >= 0, got -1"),
        ({"seed": 2**63}, "seed: must be below"),
        ({"seed": None}, "seed: must be an integer >= 0, got None"),
        ({"epochs": 0}, "epochs: must be an integer >= 1, got 0"),
        ({"epochs": True}, "epochs: must be an integer >= 1, got True"),
        ({"batch_size": 2.5}, "batch_size: must be an integer >= 1, got 2.5"),
        ({"subset": 0}, "subset: must be an integer >= 1, got 0"),
        ({"subset": 1438}, "subset: digits-mlp has 1437 training examples, got 1438"),
        ({"threads": 0}, "threads: must be an integer >= 1, got 0"),
        ({"settings": None}, "settings: must be a dict, got None"),
        ({"amp": "bf61"}, "amp: unknown name 'bf61'; did you mean bf16"),
        ({"compile": "yes"}, "compile: must be true or false, got 'yes'"),
        ({"channels_last": 1}, "channels_last: must be true or false, got 1"),
        ({"optimizer": "adahessian", "compile": True}, "compile: adahessian needs a gradient to differentiate again"),
        ({"optimizer": "arturo-ggn", "compile": True}, "compile: arturo-ggn needs the exact diagonal"),
        ({"optimizer": "arturo-hessian", "amp": "bf16"}, "amp: BackPACK, where arturo-hessian gets its diagonal"),
        ({"device": "gpu"}, "device: must be a device of torch such as cpu, cuda or cuda:1, got 'gpu'"),
        ({"device": 1.5}, "device: must be a device"),
        ({"epochs": 10**20}, "epochs: must be at most 1,000,000, got 100000000000000000000"),
        ({"threads": 100_000}, "threads: must be at most 1,024, got 100000"),
        ({"parallel": "dpp"}, "parallel: unknown name 'dpp'; did you mean ddp"),
        ({"format": 1}, "config: has format 1, this version reads 2"),
    ],
)
def test_names_the_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        CONFIG.changed(**change)


def test_unknown_key() -> None:
    with pytest.raises(TypeError, match="batchsize"):
        RunConfig.for_task("digits-mlp", "sgd", batchsize=32)
    with pytest.raises(ConfigError, match=r"^config: unknown name 'batchsize'; did you mean batch_size"):
        RunConfig.from_json(CONFIG.to_json() | {"batchsize": 32})
    with pytest.raises(ConfigError, match=r"^config: lacks seed, settings"):
        RunConfig.from_json({"format": FORMAT, "task": "digits-mlp", "optimizer": "sgd", "epochs": 1, "batch_size": 1})


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "arturo-paper", "ivon", "soap"])
def test_json_keeps_everything(optimizer: str) -> None:
    config = RunConfig.for_task("fmnist-cnn", optimizer, 3, 5, subset=100, amp="bf16")
    again = RunConfig.from_json(json.loads(json.dumps(config.to_json(), allow_nan=False)))
    assert again == config and again.key == config.key and hash(again) == hash(config)


def test_key_is_fixed_and_sees_every_field() -> None:
    # Pinned: stored runs are found by it. A change of a constructor's defaults changes it, as it should.
    fixed = RunConfig("digits-mlp", "sgd", 0, {"lr": 0.1, "betas": [0.9, 0.99]}, Share(epochs=1, batch_size=32))
    assert fixed.key == "e404dd06"
    assert fixed.name == f"sgd-seed0-{fixed.key}"
    changes = [
        {"task": "digits-cnn"},
        {"optimizer": "adam"},
        {"seed": 1},
        {"epochs": 2},
        {"batch_size": 33},
        {"settings": {"lr": 0.2, "betas": [0.9, 0.99]}},
        {"subset": 10},
        {"device": "cuda"},
        {"threads": 1},
        {"amp": "bf16"},
        {"compile": True},
        {"fold": "1/8"},
        {"validation": "1/8"},
        {"parallel": "fsdp2"},
        {"channels_last": True},
        {"schedule": "constant"},
        {"warmup": 0.1},
    ]
    assert {key for change in changes for key in change} | {"format"} == set(fixed.to_json())
    keys = {fixed.key} | {fixed.changed(**change).key for change in changes}
    assert len(keys) == len(changes) + 1


def test_a_config_from_before_the_format_number_is_refused() -> None:
    values = CONFIG.to_json()
    del values["format"]
    with pytest.raises(ConfigError, match=r"^config: has format 1, this version reads 2"):
        RunConfig.from_json(values)


def test_an_option_that_is_off_changes_no_key() -> None:
    more = replace(CONFIG, settings={**CONFIG.settings, "brand_new": None, "also_new": False})
    assert more.key == CONFIG.key and more != CONFIG
    assert replace(CONFIG, settings={**CONFIG.settings, "brand_new": 0}).key != CONFIG.key
