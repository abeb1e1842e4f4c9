"""The tasks: which data, which network, how long. One entry of ``TASKS`` each; docs/extending.md says how to bring another."""

from __future__ import annotations

from functools import partial

from torch import nn

from arturo_lab.data import augment
from arturo_lab.data.docstrings import CONTEXT, WORDS
from arturo_lab.data.inputs import AsStored, WithNegatives
from arturo_lab.errors import ConfigError
from arturo_lab.references import look_up
from arturo_lab.registry import Registry
from arturo_lab.tasks import metrics, models, networks
from arturo_lab.tasks.metrics import ACCURACY, LOSS
from arturo_lab.tasks.resnet import resnet18, resnet34
from arturo_lab.tasks.schedules import cosine
from arturo_lab.tasks.task import Task

# On networks this small a second thread gains nothing, and on a busy machine the two wait for each other.
_digits = partial(Task, data="digits", epochs=25, batch_size=32, schedule=cosine, threads=1)
_short = partial(Task, schedule=cosine, threads=1)
_fashion = partial(_short, data="fashion-mnist-12000")
_cifar = partial(_short, data="cifar10-10000", batch_size=64, epoch_steps=100)
_bytes = partial(
    _short,
    data="docstrings",
    batch_size=32,
    epoch_steps=100,
    replacement=True,
    inputs=AsStored(),
    loss=metrics.token_cross_entropy,
    metrics=(LOSS,),
)
_table = partial(_short, batch_size=32, epochs=12, epoch_steps=50, inputs=AsStored())
_function = partial(_short, inputs=AsStored(), loss=metrics.value, metrics=(metrics.VALUE,))
_fmnist = partial(Task, data="fashion-mnist", epochs=120)
_cifar10 = partial(Task, data="cifar10", epochs=160, inputs=augment.CIFAR10)
_cifar100 = partial(Task, data="cifar100", epochs=160, inputs=augment.CIFAR100)


def brought(name: str) -> Task | None:
    """A task from outside: ``file.py:TASK``, ``package.module:TASK`` or an entry point of the group ``arturo_lab.tasks``."""
    item = look_up("task", name)
    if item is not None and not isinstance(item, Task):
        raise ConfigError(f"task: {name} must be an arturo_lab.tasks.task.Task, got {type(item).__name__}")
    return item


TASKS: Registry[Task] = Registry(
    "task",
    {
        # Ours, for a first look without data to download: a short schedule, nothing tuned.
        "digits-mlp": _digits("8x8 digits, MLP", model=models.digits_mlp),
        "digits-cnn": _digits("8x8 digits, CNN", model=models.digits_cnn),
        "digits-mlp-batch-1": _short(
            "8x8 digits, MLP, batch size 1",
            data="digits",
            model=models.digits_mlp,
            batch_size=1,
            epochs=12,
            epoch_steps=500,
            metrics=(LOSS, ACCURACY),
        ),
        # Of other kinds, each some 90 s at most on one core: for comparisons of optimizers, with a cosine for everybody.
        "byte-transformer": _bytes(
            "Docstrings, byte transformer",
            model=partial(networks.ByteTransformer, context=CONTEXT, layers=2, d_model=96, heads=4),
            epochs=12,
        ),
        "byte-gru": _bytes("Docstrings, byte GRU", model=partial(networks.ByteGRU, 32, 128), epochs=8),
        "skip-gram": _short(
            "Docstrings, skip-gram",
            data="docstring-words",
            model=partial(networks.SkipGram, WORDS),
            batch_size=256,
            epochs=10,
            epoch_steps=200,
            replacement=True,
            inputs=WithNegatives(),
            loss=metrics.negative_sampling,
            metrics=(LOSS,),
        ),
        "cifar10-vit": _cifar("CIFAR-10 (10,000), vision transformer", model=networks.VisionTransformer, epochs=7),
        "cifar10-cnn-short": _cifar("CIFAR-10 (10,000), CNN", model=models.cifar_cnn, epochs=8),
        "cifar100-cnn-short": _cifar(
            "CIFAR-100 (10,000), CNN", data="cifar100-10000", model=partial(models.cifar_cnn, num_classes=100), epochs=8
        ),
        "fmnist-cnn-short": _fashion(
            "Fashion-MNIST (12,000), CNN", model=models.fashion_mnist_cnn, batch_size=32, epochs=8, epoch_steps=375
        ),
        "fmnist-small-resnet": _fashion(
            "Fashion-MNIST (12,000), ResNet-8", model=networks.small_resnet, batch_size=32, epochs=4, epoch_steps=375
        ),
        "fmnist-autoencoder": _fashion(
            "Fashion-MNIST (12,000), autoencoder",
            model=networks.autoencoder,
            batch_size=64,
            epochs=10,
            epoch_steps=100,
            loss=metrics.reconstruction,
            metrics=(LOSS,),
            reconstructs=True,
        ),
        "fmnist-vae": _fashion(
            "Fashion-MNIST (12,000), variational autoencoder",
            model=networks.VariationalAutoencoder,
            batch_size=128,
            epochs=8,
            epoch_steps=100,
            loss=metrics.evidence,
            metrics=(LOSS,),
            reconstructs=True,
        ),
        "diabetes-mlp": _table(
            "Diabetes, regression by an MLP",
            data="diabetes",
            model=networks.tabular_mlp,
            loss=metrics.squared_error,
            metrics=(metrics.SQUARED_ERROR,),
        ),
        "breast-cancer-mlp": _table(
            "Breast cancer, MLP",
            data="breast-cancer",
            model=partial(networks.tabular_mlp, inputs=30, outputs=2),
            metrics=(LOSS, ACCURACY),
        ),
        "breast-cancer-logistic": _table(
            "Breast cancer, logistic regression",
            data="breast-cancer",
            model=partial(nn.Linear, 30, 2),
            metrics=(LOSS, ACCURACY),
        ),
        # Functions, for a quick look.
        "quadratic": _function(
            "Noisy quadratic", data="noise", model=networks.NoisyQuadratic, batch_size=8, epochs=10, epoch_steps=100
        ),
        "rosenbrock": _function(
            "Rosenbrock's function", data="nothing", model=networks.Rosenbrock, batch_size=1, epochs=10, epoch_steps=100
        ),
        # For exact Hessian diagonals, ours; the paper does not say which "smaller network" it took.
        "fmnist-small-cnn": _fmnist("Fashion-MNIST, small CNN", model=models.fashion_mnist_small_cnn, threads=1),
        # The paper's six.
        "fmnist-cnn": _fmnist("Fashion-MNIST, CNN", model=models.fashion_mnist_cnn),
        "fmnist-resnet18": _fmnist("Fashion-MNIST, ResNet-18", model=partial(resnet18, num_classes=10, channels=1)),
        "cifar10-cnn": _cifar10("CIFAR-10, CNN", model=models.cifar_cnn),
        "cifar10-resnet34": _cifar10("CIFAR-10, ResNet-34", model=partial(resnet34, num_classes=10)),
        "cifar100-cnn": _cifar100("CIFAR-100, CNN", model=partial(models.cifar_cnn, num_classes=100)),
        "cifar100-resnet34": _cifar100("CIFAR-100, ResNet-34", model=partial(resnet34, num_classes=100)),
    },
    beyond=brought,
)
