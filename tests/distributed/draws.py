"""Draws of sharded weights in whole models: the cases."""

from __future__ import annotations

import torch
from equality import sharded
from torch.distributed.device_mesh import init_device_mesh
from training import Net, batch, same_on_all, train, whole

from arturo import Arturo, predict


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def predicted(rank: int, world: int) -> None:
    """FSDP2 predicts what one process does, as often as asked, and has its own weights again afterwards."""
    alone, model = Net(), sharded(Net(), init_device_mesh("cpu", (world,)))
    single, many = Arturo(alone.parameters()), Arturo(model.parameters())
    train(alone, single, steps=5)
    train(model, many, steps=5, replica=rank, replicas=world)
    x, _ = batch(99, torch.float32)
    outputs = []
    options = {"ess": 50.0, "curvature": "surrogate"}
    for seed in (1, 2):
        expected = predict(alone, single, x, 4, likelihood="gaussian", generator=seeded(seed), **options)
        found = predict(model, many, x, 4, likelihood="gaussian", generator=seeded(seed), **options)
        same_on_all([found.mean.tolist(), found.variance.tolist()])
        torch.testing.assert_close(found.mean, expected.mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.variance, expected.variance, rtol=1e-3, atol=1e-6)
        outputs.append(found.mean)
        with torch.no_grad():
            torch.testing.assert_close(model(x), alone(x), rtol=1e-4, atol=1e-4)
    assert not torch.equal(*outputs)
    with torch.no_grad():
        with single.sampled_params(**options, generator=seeded()), many.sampled_params(**options, generator=seeded()):
            torch.testing.assert_close(model(x), drawn := alone(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model(x), mean := alone(x), rtol=1e-4, atol=1e-4)
    assert not torch.equal(drawn, mean)


def variational(rank: int, world: int) -> None:
    """Gradients at draws: the same training as in one process."""
    alone, model = Net(), sharded(Net(), init_device_mesh("cpu", (world,)))
    single, many = (Arturo(net.parameters(), prior_weight=1e-3, sample_gradients=5) for net in (alone, model))
    for t in range(10):
        for net, optimizer, replica, replicas in ((alone, single, 0, 1), (model, many, rank, world)):
            x, y = (z.chunk(replicas)[replica] for z in batch(t, torch.float32))
            with torch.no_grad():
                net(x)  # FSDP2 keeps some of what it gathers here

            def closure(net=net, optimizer=optimizer, x=x, y=y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (net(x) - y).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
        same_on_all(many.last_step)
    for p, q in zip(alone.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(whole(q), p.detach(), rtol=1e-4, atol=1e-4)
