"""Does PPO's usual recipe, made for Adam, train well with AdaArturo, unchanged? Cart-pole, in plain torch.

    python experiments/ppo.py --seeds 5

The settings are those of common reference implementations: lr 3e-4 falling linearly to 0, gradients clipped to a norm of 0.5,
clip range 0.2, GAE(0.99, 0.95), four epochs over four minibatches of 8 x 128 steps, tanh networks with orthogonal starts.
Everything but the class is the same for both optimizers. An episode ends after 500 steps or when the pole falls.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from arturo import AdaArturo

OPTIMIZERS = {"AdamW": torch.optim.AdamW, "AdaArturo": AdaArturo}
ENVIRONMENTS, HORIZON, EPOCHS, MINIBATCHES, LIMIT = 8, 128, 4, 4, 500


class CartPole:
    """Barto, Sutton and Anderson's cart-pole with the constants of Gym's CartPole-v1, several at once."""

    def __init__(self, n: int, generator: torch.Generator) -> None:
        self.generator = generator
        self.state = self.fresh(n)
        self.age = torch.zeros(n)

    def fresh(self, n: int) -> Tensor:
        return torch.rand(n, 4, generator=self.generator) * 0.1 - 0.05

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step of 0.02 s: whether the pole fell, whether time ran out, and the return of the episodes that ended."""
        x, v, angle, spin = self.state.unbind(1)
        force = action * 20.0 - 10.0
        push = (force + 0.05 * spin.square() * angle.sin()) / 1.1
        turn = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
        pull = push - 0.05 * turn * angle.cos() / 1.1
        self.state = torch.stack([x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn], 1)
        self.age += 1
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 12 * math.pi / 180)
        out_of_time = (self.age >= LIMIT) & ~fell
        ended = fell | out_of_time
        returns = self.age[ended].clone()
        self.last = self.state.clone()  # before the restart: its value completes an episode that ran out of time
        self.state = torch.where(ended.unsqueeze(1), self.fresh(len(ended)), self.state)
        self.age[ended] = 0
        return fell, out_of_time, returns


def network(outputs: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def train(name: str, lr: float, steps: int, seed: int) -> list[float]:
    """The mean return of the episodes that ended in each twentieth of the training."""
    torch.manual_seed(seed)
    actor, critic = network(2, 0.01), network(1, 1.0)
    params = [*actor.parameters(), *critic.parameters()]
    optimizer = OPTIMIZERS[name](params, lr=lr, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    environment = CartPole(ENVIRONMENTS, generator)
    iterations = steps // (ENVIRONMENTS * HORIZON)
    parts: list[list[float]] = [[] for _ in range(20)]
    for iteration in range(iterations):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - iteration / iterations)
        states, actions, log_probs, values, rewards, carries = [], [], [], [], [], []
        with torch.no_grad():
            for _ in range(HORIZON):
                state = environment.state
                logits = actor(state).log_softmax(1)
                action = torch.multinomial(logits.exp(), 1, generator=generator)
                states.append(state)
                actions.append(action)
                log_probs.append(logits.gather(1, action).squeeze(1))
                values.append(critic(state).squeeze(1))
                fell, out_of_time, returns = environment.step(action.squeeze(1).float())
                beyond = critic(environment.last).squeeze(1)
                rewards.append(1.0 + 0.99 * torch.where(out_of_time, beyond, 0.0))
                carries.append((~(fell | out_of_time)).float())
                parts[20 * iteration // iterations] += returns.tolist()
            following, advantage, advantages = critic(environment.state).squeeze(1), torch.zeros(ENVIRONMENTS), []
            for t in reversed(range(HORIZON)):
                delta = rewards[t] + 0.99 * following * carries[t] - values[t]
                advantage = delta + 0.99 * 0.95 * carries[t] * advantage
                advantages.insert(0, advantage)
                following = values[t]
        batch = [torch.cat(x) for x in (states, actions, log_probs, values, advantages)]
        for _ in range(EPOCHS):
            for index in torch.randperm(ENVIRONMENTS * HORIZON, generator=generator).chunk(MINIBATCHES):
                state, action, old, value, gain = (x[index] for x in batch)
                logits = actor(state).log_softmax(1)
                ratio = (logits.gather(1, action).squeeze(1) - old).exp()
                goal = value + gain
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                entropy = -(logits.exp() * logits).sum(1).mean()
                loss = policy + 0.5 * F.mse_loss(critic(state).squeeze(1), goal) - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(params, 0.5)
                optimizer.step()
    return [round(statistics.fmean(part), 1) if part else LIMIT for part in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-4])
    parser.add_argument("--steps", type=int, default=100_000, help="of the environments together")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/adaptive/ppo.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with arguments.out.open("a") as file:
        for lr in arguments.lr:
            for name in OPTIMIZERS:
                runs = [train(name, lr, arguments.steps, seed) for seed in range(arguments.seeds)]
                for seed, returns in enumerate(runs):
                    row = {"optimizer": name, "lr": lr, "steps": arguments.steps, "seed": seed, "returns": returns}
                    file.write(json.dumps(row) + "\n")
                whole, last = ([statistics.fmean(run[i:]) for run in runs] for i in (0, -4))
                print(
                    f"{name} lr {lr:g}: mean return {statistics.fmean(whole):.0f}, last fifth {statistics.fmean(last):.0f} "
                    f"({', '.join(f'{x:.0f}' for x in last)})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
