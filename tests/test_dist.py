"""What is shipped: the source distribution, the wheel, and an installation where there is no compiler.

    python tests/test_dist.py native    # the smoke test, of whichever arturo this Python has; `make dist` runs it

The builds take the current environment's setuptools, and the installations its torch: nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("arturo", "tests", "docs", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
BUILT = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "*.egg-info")
SDIST = "from setuptools import build_meta; build_meta.build_sdist('dist')"  # the hook of PEP 517; `make dist` calls it too


def smoke(expected: str) -> None:
    """A few steps of arturo as installed, with the ``expected`` kernel, native or eager; needs torch and numpy only."""
    import numpy  # noqa: F401
    import torch

    before = set(sys.modules)
    import arturo
    from arturo.kernels import native

    brought = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
    assert brought <= {"arturo", "torch", "numpy"}, f"import arturo brought {sorted(brought)}"
    assert native.available() == (expected == "native"), f"expected the {expected} kernel, the extension says otherwise"

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    x = torch.randn(64, 8)
    y = x.sum(dim=1, keepdim=True)
    optimizer = arturo.Arturo(model.parameters(), kl_bound=0.1)
    losses = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    told = sum("C++ kernel was not built" in str(warning.message) for warning in said)
    assert told == (expected == "eager"), f"said {told} times that the extension is missing"
    info = optimizer.last_step
    assert losses[-1] < losses[0] / 2, f"the loss went from {losses[0]} to {losses[-1]}"
    assert 0 < info.kl <= info.bound * 1.001, info
    print(f"{Path(arturo.__file__).parent}: {expected} kernel, loss {losses[0]:.3f} -> {losses[-1]:.3f}")


def run(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def copy_of_the_sources(folder: Path) -> Path:
    """What a build needs, in a separate folder: nothing built before may end up in a distribution."""
    folder.mkdir()
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=BUILT)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def build_wheel(source: Path, folder: Path, **env: str) -> Path:
    options = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", str(folder), str(source), cwd=folder.parent, env=env)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_and_smoke(wheel: Path, folder: Path, expected: str) -> None:
    """Install into a folder that comes before this environment's own arturo, and step with what is there."""
    options = ("--no-deps", "--no-index", "--no-cache-dir", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(wheel), cwd=wheel.parent)
    said = run(sys.executable, str(Path(__file__).resolve()), expected, cwd=wheel.parent, env={"PYTHONPATH": str(folder)})
    assert said.startswith(str(folder / "arturo")), said


def test_sdist_makes_a_wheel_that_steps(tmp_path):
    source = copy_of_the_sources(tmp_path / "source")
    run(sys.executable, "-c", SDIST, cwd=source)
    (archive,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    wanted = {"arturo/py.typed", "LICENSE", "README.md", "setup.py", "pyproject.toml", "docs/notation.md"}
    wanted |= {f"arturo/kernels/cpp/{path.name}" for path in (source / "arturo/kernels/cpp").iterdir()}
    assert wanted | {"arturo/kernels/cpp/native.cpp", "tests/conftest.py", "tests/lab/test_cli.py"} <= held
    assert not [name for name in held if name.endswith((".so", ".pyc"))]

    compiler = shutil.which("c++") is not None
    wheel = build_wheel(archive, tmp_path / "wheel")
    packed = names_in(wheel)
    assert "arturo/py.typed" in packed and any(name.endswith("licenses/LICENSE") for name in packed)
    assert "abi3" in wheel.name, "one wheel is for every Python from 3.10 on"
    assert [name for name in packed if name.endswith((".so", ".pyd"))] == ["arturo/kernels/_native.abi3.so"] * compiler
    assert not [name for name in packed if not name.startswith("arturo") or name.endswith((".cpp", ".h"))]
    install_and_smoke(wheel, tmp_path / "installed", "native" if compiler else "eager")


def test_install_without_a_compiler(tmp_path):
    source = copy_of_the_sources(tmp_path / "source")
    wheel = build_wheel(source, tmp_path / "wheel", CC="false", CXX="false")  # a program that does nothing but fail
    assert not [name for name in names_in(wheel) if name.endswith((".so", ".pyd"))]
    install_and_smoke(wheel, tmp_path / "installed", "eager")


if __name__ == "__main__":
    smoke(sys.argv[1])
