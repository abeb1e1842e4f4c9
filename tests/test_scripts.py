"""Training scripts as other people write them, small enough for a test. Only the table knows which optimizers there are."""

import math

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from arturo import AdaArturo, Arturo

# Optimizer, and the lr for networks this small (docs/tuning.md). Every script runs with each.
OPTIMIZERS = [(Arturo, 10.0), (AdaArturo, 3e-3)]

every = pytest.mark.parametrize(("make", "lr"), OPTIMIZERS, ids=lambda x: getattr(x, "__name__", ""))


def text(length=4000):
    """Bytes with something to learn: after each there are two that may follow."""
    generator = torch.Generator().manual_seed(0)
    found = [1]
    for extra in torch.randint(0, 2, (length - 1,), generator=generator).tolist():
        found.append((3 * found[-1] + extra) % 16)
    return torch.tensor(found)


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width, checkpointed=False):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.checkpointed = checkpointed

    def inner(self, x):
        q, k, v = (y.unsqueeze(1) for y in self.attention(self.ln_1(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return x + self.mlp(self.ln_2(x))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x)


class GPT(nn.Module):
    def __init__(self, tied=False, checkpointed=False, width=24):
        super().__init__()
        self.embed, self.place = nn.Embedding(16, width), nn.Embedding(8, width)
        self.block, self.ln = Block(width, checkpointed), nn.LayerNorm(width)
        self.head = nn.Linear(width, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.ln(self.block(self.embed(x) + self.place.weight)))


def batch(data, generator, size=16):
    start = torch.randint(len(data) - 9, (size, 1), generator=generator)
    window = data[start + torch.arange(9)]
    return window[:, :-1], window[:, 1:]


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def decay_groups(model, weight_decay):
    """Two groups: matrices decay, biases and norms do not."""
    params = [p for p in model.parameters() if p.requires_grad]
    decay, rest = [p for p in params if p.dim() >= 2], [p for p in params if p.dim() < 2]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def pretrain(model, optimizer, lr, steps, accumulate=2):
    """nanoGPT's loop: lr is written into the groups by hand; warm-up, cosine, accumulation, clipping. First and last losses."""
    data, generator, losses = text(), torch.Generator().manual_seed(1), []
    for t in range(steps):
        factor = (t + 1) / 10 if t < 10 else 0.1 + 0.45 * (1 + math.cos(math.pi * (t - 10) / (steps - 10)))
        for group in optimizer.param_groups:
            group["lr"] = lr * min(factor, 1.0)
        for _ in range(accumulate):
            loss = loss_of(model, *batch(data, generator)) / accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item() * accumulate)
    return sum(losses[:5]) / 5, sum(losses[-5:]) / 5


@every
def test_a_loop_that_sets_lr_by_hand(make, lr):
    torch.manual_seed(0)
    model = GPT()
    first, last = pretrain(model, make(decay_groups(model, 0.1), lr=lr), lr, 120)
    assert last < 0.75 * first


@every
def test_tied_weights(make, lr):
    """One parameter, one state, gradients from both uses."""
    torch.manual_seed(0)
    model = GPT(tied=True)
    optimizer = make(model.parameters(), lr=lr)
    first, last = pretrain(model, optimizer, lr, 120)
    assert last < 0.75 * first and model.head.weight is model.embed.weight
    assert len(optimizer.state) == len(list(model.parameters()))


@every
def test_gradient_checkpointing_changes_nothing(make, lr):
    found = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = GPT(checkpointed=checkpointed)
        pretrain(model, make(model.parameters(), lr=lr), lr, 10)
        found.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


class Trainer:
    """A framework's: makes the optimizer itself, from a class and its arguments, with a warm-up from lr = 0."""

    def __init__(self, model, make, lr, steps, weight_decay=0.1):
        self.model, self.steps, self.done, self.losses = model, steps, 0, []
        self.optimizer = self.create_optimizer(make, lr, weight_decay)
        self.scheduler = LambdaLR(self.optimizer, lambda t: min(t / 5, (steps - t) / (steps - 5)))

    def create_optimizer(self, make, lr, weight_decay):
        return make(self.model.parameters(), lr=lr, weight_decay=weight_decay)

    def train(self, until):
        data = text()
        for t in range(self.done, until):
            self.optimizer.zero_grad()
            loss = loss_of(self.model, *batch(data, torch.Generator().manual_seed(t)))
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.losses.append(loss.item())
        self.done = until

    def state(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {"done": self.done, **{name: part.state_dict() for name, part in parts.items()}}

    def resume(self, state):
        self.done = state["done"]
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(state[name])


class DecayTrainer(Trainer):
    """A user's subclass, which splits the parameters."""

    def create_optimizer(self, make, lr, weight_decay):
        return make(decay_groups(self.model, weight_decay), lr=lr)


@every
def test_a_trainer_that_splits_decay_groups(make, lr, tmp_path):
    """Interrupted and resumed through a file: the weights of the run that was not."""
    torch.manual_seed(0)
    start = GPT().state_dict()

    def trainer():
        model = GPT()
        model.load_state_dict(start)
        return DecayTrainer(model, make, lr, 80)

    whole, part, resumed = trainer(), trainer(), trainer()
    whole.train(80)
    part.train(33)
    torch.save(part.state(), tmp_path / "checkpoint.pt")
    resumed.resume(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    resumed.train(80)
    assert all(torch.equal(p, q) for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    assert sum(whole.losses[-5:]) < 0.85 * sum(whole.losses[:5])


@every
def test_two_networks_of_ppo(make, lr):
    """A policy and a value in one optimizer, several epochs over each batch, the clipped ratio: it learns which lever pays."""
    torch.manual_seed(0)
    policy, value = (nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, n)) for n in (2, 1))
    optimizer = make([{"params": policy.parameters()}, {"params": value.parameters(), "lr": 2 * lr}], lr=lr)
    returns = []
    for _ in range(60):
        seen = torch.randn(64, 2)
        with torch.no_grad():
            chosen = torch.distributions.Categorical(logits=policy(seen))
            action = chosen.sample()
            old = chosen.log_prob(action)
            reward = (action == (seen[:, 0] > 0)).float()
            advantage = reward - value(seen).squeeze(1)
        returns.append(reward.mean().item())
        for _ in range(4):
            now = torch.distributions.Categorical(logits=policy(seen))
            ratio = (now.log_prob(action) - old).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = -gain + 0.5 * F.mse_loss(value(seen).squeeze(1), reward) - 0.01 * now.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*policy.parameters(), *value.parameters()], 0.5)
            optimizer.step()
    assert sum(returns[-5:]) / 5 > 0.85 > sum(returns[:2]) / 2


@every
def test_the_two_optimizers_of_a_gan(make, lr):
    """Each has its own network and leaves the other's alone, although backward() fills its gradients; the mean is learned.

    The two chase each other around it, which rounding alone puts out of step: what counts is the centre of their last turns.
    """
    torch.manual_seed(0)
    generator, critic = (nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(2))
    betas = {"betas": (0.5, 0.999)} if make is AdaArturo else {}  # as recipes for GANs have it
    of_generator, of_critic = (make(network.parameters(), lr=lr, **betas) for network in (generator, critic))
    far = abs(generator(torch.randn(500, 1)).mean().item() - 2)
    means = []
    for _ in range(250):
        real, fake = 2 + 0.3 * torch.randn(64, 1), generator(torch.randn(64, 1))
        of_critic.zero_grad()
        before = [p.detach().clone() for p in generator.parameters()]
        (F.softplus(-critic(real)) + F.softplus(critic(fake.detach()))).mean().backward()
        of_critic.step()
        assert all(torch.equal(p, q) for p, q in zip(generator.parameters(), before, strict=True))
        of_generator.zero_grad()
        before = [p.detach().clone() for p in critic.parameters()]
        F.softplus(-critic(fake)).mean().backward()
        of_generator.step()
        assert all(torch.equal(p, q) for p, q in zip(critic.parameters(), before, strict=True))
        means.append(fake.mean().item())
    assert abs(sum(means[-100:]) / 100 - 2) < 0.5 * far


class LoRA(nn.Module):
    """A frozen layer and a learned product of rank 2; its second factor begins at 0, so the first one's gradient does too."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


@every
def test_the_few_weights_of_lora(make, lr):
    torch.manual_seed(0)
    model = nn.Sequential(LoRA(nn.Linear(16, 32)), nn.ReLU(), LoRA(nn.Linear(32, 4)))
    frozen = [p.detach().clone() for p in model.parameters() if not p.requires_grad]
    optimizer = make((p for p in model.parameters() if p.requires_grad), lr=lr)
    x = torch.randn(256, 16)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert all(torch.equal(p, q) for p, q in zip((p for p in model.parameters() if not p.requires_grad), frozen, strict=True))


@pytest.mark.parametrize(("make", "lr"), OPTIMIZERS[:1])  # AdaArturo's step is not compiled, tests/test_adaptive_compile.py
def test_a_compiled_step_under_a_schedule_compiles_once(make, lr):
    """torch.compile(optimizer.step) with Inductor and an lr in a tensor, which a schedule changes at every step."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    optimizer, plain = (make(x.parameters(), lr=torch.tensor(lr), capturable=True) for x in (model, twin))
    schedulers = [LambdaLR(o, lambda t: 1 / (1 + t)) for o in (optimizer, plain)]
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    step = torch.compile(optimizer.step, backend=counter)
    counts = []
    for _ in range(12):
        x = torch.randn(8, 3)
        for network in (model, twin):
            network.zero_grad()
            network(x).square().mean().backward()
        step()
        plain.step()
        for scheduler in schedulers:
            scheduler.step()
        counts.append(counter.frame_count)
    assert counts[0] >= 1 and counts[-1] == counts[1] <= 2, counts
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
