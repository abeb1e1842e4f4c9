"""What PyTorch's own tests ask of every optimizer (its test_optim.py), asked of AdaArturo; and DTensors of one process."""

import copy

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.optim import lr_scheduler
from torch.profiler import profile

from arturo import AdaArturo, sharding

SCHEDULES = {
    "none": [],
    "step": [lambda o: lr_scheduler.StepLR(o, gamma=0.9, step_size=10)],
    "warm-up": [lambda o: lr_scheduler.LinearLR(o, start_factor=0.4, total_iters=4)],
    "two": [lambda o: lr_scheduler.ExponentialLR(o, gamma=0.99), lambda o: lr_scheduler.ReduceLROnPlateau(o)],
    "cycle": [lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.03, total_steps=41)],
}


def problem(contiguous=True):
    """torch's: a weight, a bias, and an input that is a parameter, too."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(10, 5, generator=generator) if contiguous else torch.randn(10, 5, 2, generator=generator)[..., 0]
    params = [
        torch.nn.Parameter(x) for x in (weight, torch.randn(10, generator=generator), torch.randn(5, generator=generator))
    ]
    return params, lambda: (params[0].mv(params[2]) + params[1]).square().sum()


def descend(optimizer, loss, steps=20, schedulers=()):
    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(steps):
        value = optimizer.step(closure)
        for scheduler in schedulers:
            scheduler.step(*([value.detach()] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    return closure().item()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "strided"])
@pytest.mark.parametrize("groups", [False, True], ids=["one", "groups"])
def test_it_goes_in_the_right_direction(schedule, contiguous, groups, geometry):
    params, loss = problem(contiguous)
    chosen = [{"params": params[:1]}, {"params": params[1:], "lr": 0.005, "weight_decay": 0.1}] if groups else params
    optimizer = AdaArturo(chosen, **geometry)
    first = loss().item()
    assert descend(optimizer, loss, 40, [make(optimizer) for make in schedule]) < 0.5 * first


def test_a_group_without_an_lr_of_its_own_takes_the_constructors(geometry):
    """torch's test_param_groups_lr: the constructor's lr is 0, one group has its own."""
    params, loss = problem()
    before = [p.detach().clone() for p in params]
    optimizer = AdaArturo([{"params": params[:1], "lr": 0.01}, {"params": params[1:]}], **{**geometry, "lr": 0.0})
    descend(optimizer, loss, 5)
    assert [torch.equal(p, old) for p, old in zip(params, before, strict=True)] == [False, True, True]


def test_the_same_run_twice(adaptive):
    """torch's test_state_dict_deterministic: the rest of a run, twice from its middle, ends in the same bits."""
    params, positive = problem()
    sign = -1 if adaptive.get("maximize") else 1

    def loss():
        return sign * positive()

    optimizer = AdaArturo(params, **copy.deepcopy(adaptive))
    descend(optimizer, loss, 7)
    values, saved = [p.detach().clone() for p in params], copy.deepcopy(optimizer.state_dict())
    ends = []
    for _ in range(2):
        with torch.no_grad():
            for p, value in zip(params, values, strict=True):
                p.copy_(value)
        again = AdaArturo(params, **copy.deepcopy(adaptive))
        again.load_state_dict(saved)
        descend(again, loss, 7)
        ends.append([p.detach().clone() for p in params])
    assert all(torch.equal(x, y) for x, y in zip(*ends, strict=True))


def test_rosenbrock():
    """The banana of torch's tests, from (1.5, 1.5), noiseless and without a schedule but a final decay."""
    p = torch.nn.Parameter(torch.tensor([1.5, 1.5], dtype=torch.float64))
    optimizer = AdaArturo([p], lr=0.01)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def rosenbrock():
        return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2

    first = rosenbrock().item()
    assert descend(optimizer, rosenbrock, 500, [scheduler]) < 1e-3 * first


def test_deepcopy_copies_all_public_attributes(geometry, quadratic):
    optimizer = AdaArturo(quadratic.params(), **geometry)
    for _ in range(2):

        def public(x):
            return {name for name in dir(x) if not name.startswith("_")}

        assert public(copy.deepcopy(optimizer)) == public(optimizer)
        quadratic.train(optimizer, 1)


def test_the_profiler_knows_its_name(quadratic):
    optimizer = AdaArturo(quadratic.params([(3,)]))
    with profile() as found:
        quadratic.train(optimizer, 1)
        optimizer.zero_grad()
    names = {event.key for event in found.key_averages()}
    assert {"Optimizer.step#AdaArturo.step", "Optimizer.zero_grad#AdaArturo.zero_grad"} <= names


# ---- DTensors; tests/distributed has several processes


def test_whole_state_is_not_loaded_into_shards(mesh):
    """Nor the other way round; the refused load changes nothing."""
    p, q = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
    p.grad, q.grad = torch.ones(4), distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    plain, sharded = AdaArturo([p]), AdaArturo([q])
    plain.step()
    sharded.step()
    for optimizer, other in ((sharded, plain), (plain, sharded)):
        before = optimizer.state_dict()["state"][0]["M"].clone()
        with pytest.raises(ValueError, match=r"load it with .*set_optimizer_state_dict, which shards it"):
            optimizer.load_state_dict(other.state_dict())
        assert torch.equal(sharding.to_local(before), sharding.to_local(optimizer.state_dict()["state"][0]["M"]))
        optimizer.step()


def test_a_parameter_and_its_gradient_are_of_one_kind(mesh):
    q = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    grad = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    optimizer = AdaArturo([q])
    q.grad = grad  # laid out in another way: brought to its parameter
    optimizer.step()
    plain = torch.nn.Parameter(torch.ones(4, 4))
    plain.grad = torch.ones(4, 4)
    AdaArturo([plain]).step()
    assert torch.equal(q.full_tensor(), plain)


def test_draws_of_shards(mesh):
    """With a curvature of one's own and a generator; 'ggn' says why not."""
    q = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    q.grad = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    optimizer = AdaArturo([q])
    optimizer.step()
    before = q.full_tensor().detach().clone()
    own = {"ess": 10, "curvature": lambda params: [torch.ones_like(p) for p in params]}
    with optimizer.sampled_params(**own, generator=torch.Generator().manual_seed(0)):
        assert not torch.equal(q.full_tensor(), before)
        with pytest.raises(RuntimeError, match=r"step\(\) inside sampled_params"):
            optimizer.step()
    assert torch.equal(q.full_tensor(), before)
    with pytest.raises(ValueError, match=r"'ggn' for sharded parameters .*unsharded copy of the model$"):
        optimizer.posterior(ess=10, model=torch.nn.ParameterList([q]), data=(torch.ones(1), torch.ones(1)))
