"""The diagonal Laplace approximation against another package's, laplace-torch (extra ``[laplace]``).

It imports torchvision and uses nothing of it. Where torchvision and torch do not belong together that import fails; so the
comparison runs in a process of its own (this file is its program), in which torchvision is an empty shell.
"""

import importlib.machinery
import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("", ".models", ".models.feature_extraction", ".transforms", ".transforms.functional")


class Shell(types.ModuleType):
    """A module that has everything, all of it empty."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Shell(f"{self.__name__}.{name}")


@pytest.mark.skipif(importlib.util.find_spec("laplace") is None, reason="needs laplace-torch: pip install '.[laplace]'")
def test_the_same_precisions():
    ended = subprocess.run([sys.executable, __file__], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert [float(line) < 1e-5 for line in ended.stdout.split()] == [True, True]


def empty_torchvision():
    for name in NAMES:
        shell = Shell("torchvision" + name)
        shell.__spec__ = importlib.machinery.ModuleSpec(shell.__name__, None, is_package=True)
        sys.modules[shell.__name__] = shell


def largest_difference(likelihood):
    import torch
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    from arturo import Posterior

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
    x, classes = torch.randn(12, 3), likelihood == "classification"
    y = torch.arange(12) % 4 if classes else torch.randn(12, 4)
    theirs = Laplace(model, likelihood, subset_of_weights="all", hessian_structure="diag", prior_precision=2.0)
    theirs.fit(DataLoader(TensorDataset(x, y), batch_size=5))
    loss = "cross_entropy" if classes else "squared_error"
    ours = Posterior.of_model(model, ess=12, prior_precision=2.0, data=(x, y), loss=loss)
    precision = torch.cat([p.flatten() for p in ours.precision.values()])
    return (precision / theirs.posterior_precision.detach() - 1).abs().max().item()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    empty_torchvision()
    print(largest_difference("classification"), largest_difference("regression"))
