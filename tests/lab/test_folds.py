"""Folds: every training image held out once, no test image ever, and no stored run with another name."""

from __future__ import annotations

import json

import pytest
import torch

from arturo_lab.data import loading
from arturo_lab.data.folds import Fold
from arturo_lab.errors import ConfigError
from arturo_lab.runs.config import RunConfig
from arturo_lab.training import train

DIGITS = loading.load("digits")


@pytest.mark.parametrize("parts", [2, 5, 8])
def test_each_image_is_held_out_once(parts: int) -> None:
    masks = torch.stack([Fold(k, parts).held_out(DIGITS.train_targets) for k in range(1, parts + 1)])
    assert (masks.sum(dim=0) == 1).all()
    for k, mask in enumerate(masks, start=1):
        assert len(mask) - mask.sum() == Fold(k, parts).training_images(len(mask))
        counts = torch.bincount(DIGITS.train_targets[mask], minlength=10)
        expected = torch.bincount(DIGITS.train_targets, minlength=10) / parts
        assert (counts - expected).abs().max() <= 1  # every class in its share


def test_parts_do_not_follow_the_order_of_the_images() -> None:
    labels = torch.zeros(1000, dtype=torch.int64)
    held = Fold(1, 4).held_out(labels).nonzero().flatten()
    assert len(held) == 250 and len(held.diff().unique()) > 3


def test_fold_leaves_the_test_images_behind() -> None:
    fold = DIGITS.fold("2/8")
    seen = {bytes(image.numpy()) for image in torch.cat([fold.train_inputs, fold.test_inputs])}
    test = {bytes(image.numpy()) for image in DIGITS.test_inputs}
    assert test.isdisjoint(seen)
    assert len(fold.train_targets) + len(fold.test_targets) == len(DIGITS.train_targets)
    assert DIGITS.fold(None) is DIGITS


@pytest.mark.parametrize("fold", ["0/8", "9/8", "1/1", "1", "a/b", "1/2/3", "-1/2", 3])
def test_bad_folds(fold: object) -> None:
    with pytest.raises(ConfigError, match=r"^fold: must be k/K"):
        RunConfig.for_task("digits-mlp", "sgd", fold=fold)  # type: ignore[arg-type]


def test_more_parts_than_images() -> None:
    with pytest.raises(ConfigError, match=r"^fold: 4 training examples cannot be 5 parts"):
        RunConfig.for_task("digits-mlp", "sgd", subset=4, fold="1/5")


def test_fold_is_part_of_the_config_and_its_absence_is_not() -> None:
    plain = RunConfig.for_task("digits-mlp", "sgd")
    first = plain.changed(fold="1/8")
    assert len({plain.key, first.key, plain.changed(fold="2/8").key}) == 3
    assert "fold" not in plain.identity() and first.identity()["fold"] == "1/8"
    assert RunConfig.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_optimizers_that_count_images_count_those_of_the_fold() -> None:
    assert RunConfig.for_task("digits-mlp", "ivon", subset=100, fold="1/4").settings["ess"] == 75


def test_training_on_a_fold_is_training_on_its_images() -> None:
    config = RunConfig.for_task("digits-mlp", "sgd", epochs=1, subset=96)
    by_hand = train.train(config.changed(subset=None), DIGITS.subset(96).fold("3/4"))
    (by_config,) = train.train(config.changed(fold="3/4"), DIGITS)
    assert (by_config.train_loss, by_config.test_accuracy) == (by_hand[0].train_loss, by_hand[0].test_accuracy)
