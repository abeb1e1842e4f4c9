"""Other people's training loops, the real packages: Lightning calls step(closure), accelerate wraps the optimizer."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from arturo import AdaArturo, Arturo

EPOCHS, CLIP = 2, 0.5
both = pytest.mark.parametrize("make", [Arturo, AdaArturo])
Make = Callable[..., Any]  # Arturo or AdaArturo
Trained = tuple[torch.nn.Module, Any]
pytestmark = [pytest.mark.filterwarnings("ignore")]  # theirs, about the number of workers and the like


@pytest.fixture(autouse=True)
def without_torchvision(monkeypatch):
    """It is no part of this, and one that does not fit torch raises other errors than ImportError when it is tried.

    Lightning's metrics ask for its version first, and try it if there is one.
    """
    monkeypatch.setitem(sys.modules, "torchvision", None)
    imports = pytest.importorskip("lightning_utilities.core.imports")

    def version(name: str) -> str:
        if name == "torchvision":
            raise importlib.metadata.PackageNotFoundError(name)
        return importlib.metadata.version(name)

    monkeypatch.setattr(imports, "_version", version)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def loader() -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=generator)
    return DataLoader(TensorDataset(x, torch.stack([x[:, 0] * x[:, 1], x.sum(1)], 1)), batch_size=8)


def by_hand(make: Make, accumulate: int = 1, clip: float | None = None, warmup: bool = False) -> Trained:
    """What the packages should do."""
    net = model()
    optimizer = make(net.parameters())
    scheduler = warmed(optimizer) if warmup else CosineAnnealingLR(optimizer, 10)
    for _ in range(EPOCHS):
        batches = list(loader())
        for i, (x, y) in enumerate(batches, 1):
            (mse_loss(net(x), y) / accumulate).backward()
            if i % accumulate == 0 or i == len(batches):
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return net, optimizer


def warmed(optimizer: torch.optim.Optimizer) -> LambdaLR:
    """Up for two steps, then down to 0, as Hugging Face's linear schedule."""
    return LambdaLR(optimizer, lambda t: min((t + 1) / 2, max(0.0, (8 - t) / 6)))


def assert_same(found: torch.nn.Module, optimizer: Any, expected: Trained) -> None:
    assert all(torch.equal(p, q) for p, q in zip(found.parameters(), expected[0].parameters(), strict=True))
    assert optimizer.last_step == expected[1].last_step and optimizer.last_step.kl > 0


@pytest.mark.parametrize(("make", "accumulate"), [(Arturo, 1), (Arturo, 2), (AdaArturo, 2)])
def test_lightning(make, accumulate, tmp_path):
    """Automatic optimization: forward and backward happen inside of step, in its closure."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, index):
            return mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            self.arturo = make(self.parameters())
            scheduler = CosineAnnealingLR(self.arturo, 10)
            return {"optimizer": self.arturo, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    module = Module()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"accelerator": "cpu", "devices": 1, "gradient_clip_val": CLIP, "accumulate_grad_batches": accumulate}
    trainer = lightning.Trainer(max_epochs=EPOCHS, default_root_dir=tmp_path, **quiet, **options)
    trainer.fit(module, loader())
    assert_same(module.net, module.arturo, by_hand(make, accumulate, CLIP))


def accelerated(make: Make, accumulate: int, clip: float | None, warmup: bool) -> Trained:
    """The inner loop of Hugging Face's Trainer."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    plain = model()
    arturo = make(plain.parameters())
    scheduler = warmed(arturo) if warmup else CosineAnnealingLR(arturo, 10)
    net, optimizer, batches, scheduler = accelerator.prepare(plain, arturo, loader(), scheduler)
    for _ in range(EPOCHS):
        for x, y in batches:
            with accelerator.accumulate(net):
                accelerator.backward(mse_loss(net(x), y))
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return plain, arturo


@both
def test_accelerate(make):
    assert_same(*accelerated(make, 1, None, False), by_hand(make))


@both
def test_a_loop_like_hugging_faces(make):
    """Accumulation, clipping, a schedule that warms up."""
    assert_same(*accelerated(make, 2, CLIP, True), by_hand(make, 2, CLIP, True))
