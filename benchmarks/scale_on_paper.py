"""AdaArturo on GPT-2 small, 7 B and 70 B transformers under FSDP2, on paper: state, flops, collectives. Of docs/scaling.md.

    python benchmarks/scale_on_paper.py            # print the tables
    python benchmarks/scale_on_paper.py --write    # put them into docs/scaling.md

Formulas, no measurement; tests/test_scale_on_paper.py holds them against small optimizers that are. Every matrix is cut as
:func:`arturo.kronecker.tiling` says, so the tables follow its rule. Under FSDP2 each process holds rows / devices rows of a
matrix, which are separate tiles; where the rows do not divide evenly the matrix stays on the diagonal.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

from scaling import DIGITS, DOCUMENT, GRADIENT, PARAMETER, gradient_bytes, size, table, written

from arturo import kronecker
from arturo.adaptive_state import _effective_shape
from arturo.hyperparameters import ADAPTIVE

DEVICES = (8, 64, 512)
BLOCKS = (64, 128, 256)
BLOCK, REFRESH = ADAPTIVE.default["block"], ADAPTIVE.default["refresh"]
TOKENS = 8192  # of a step on each device
WIDTHS = {"float32": 4, "bfloat16": 2}  # bytes of a number of the state
SUMS = 11  # for each parameter in the one all-reduce of a step
ADAMW = 8  # bytes of state per weight
QR = 8 / 3  # times n^3: Householder's reflections (4/3), and Q from them (4/3)

Shape = tuple[int, ...]


def gpt2() -> Iterator[Shape]:
    """GPT-2 small; the output layer is the embedding."""
    d = 768
    yield from ((50257, d), (1024, d))
    for _ in range(12):
        yield from ((d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,), (d,), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,))
    yield from ((d,), (d,))


def llama(d: int, layers: int, keys: int, hidden: int, vocabulary: int = 32000) -> Iterator[Shape]:
    """Llama 2: no biases, embedding and output layer apart, ``keys`` rows of keys and of values."""
    yield (vocabulary, d)
    for _ in range(layers):
        yield from ((d, d), (keys, d), (keys, d), (d, d), (hidden, d), (hidden, d), (d, hidden), (d,), (d,))
    yield from ((d,), (vocabulary, d))


NETWORKS: dict[str, list[Shape]] = {
    "GPT-2 small": list(gpt2()),
    "7 B": list(llama(4096, 32, 4096, 11008)),
    "70 B": list(llama(8192, 80, 1024, 28672)),
}


@dataclass(frozen=True)
class Part:
    """What one process has of a parameter: so many entries, as these tiles."""

    entries: float  # a vector or an uneven matrix may be spread in fractions
    grid: kronecker.Tiling | None
    vector: bool

    @property
    def sides(self) -> list[int]:
        """How long the sides that turn are."""
        return [n for _, n in kronecker.sides(self.grid)]

    def state_bytes(self, width: int) -> float:
        """M and r; a factor and a basis for each side of each tile; where a vector started, in float32."""
        tiles = 0 if self.grid is None else self.grid.tiles
        return width * (2 * self.entries + 2 * tiles * sum(n * n for n in self.sides)) + 4 * self.entries * self.vector

    def rotations(self) -> float:
        """Flops of a step: the gradient into the basis and the move out of it, 2 n for each entry and side."""
        return sum(2 * 2 * n * self.entries for n in self.sides)

    def products(self) -> float:
        """Flops of a step for the factors, on average: E E^T and E^T E, every so many steps."""
        return sum(2 * n * self.entries for n in self.sides) / kronecker.COUNTED_EVERY

    def refreshes(self, refresh: int = REFRESH, qr: float = QR) -> float:
        """Flops of a step, on average: of each side L Q, its QR, Q^T Q', S^T L S and M S, every ``refresh`` steps."""
        tiles = 0 if self.grid is None else self.grid.tiles
        return sum(tiles * (2 + qr + 2 + 4) * n**3 + 2 * n * self.entries for n in self.sides) / refresh


def part(shape: Shape, devices: int, block: int) -> Part:
    """As :func:`arturo.adaptive_state.grid_of` cuts a parameter that FSDP2 has sharded by rows."""
    entries, effective = math.prod(shape) / devices, _effective_shape(shape)
    grid = kronecker.tiling(effective, block)
    if grid is not None and devices > 1:
        rows = effective[0]
        grid = kronecker.tiling(effective, block, devices) if rows % devices == 0 else None
    return Part(entries, grid, len(effective) < 2)


def parts(network: str, devices: int, block: int = BLOCK) -> list[Part]:
    return [part(shape, devices, block) for shape in NETWORKS[network]]


def weights(network: str) -> int:
    return sum(math.prod(shape) for shape in NETWORKS[network])


def state_per_weight(network: str, devices: int, block: int, width: int) -> float:
    found = parts(network, devices, block)
    return sum(x.state_bytes(width) for x in found) / sum(x.entries for x in found)


def turned(network: str, devices: int, block: int = BLOCK) -> float:
    """Share of the weights that lie in tiles."""
    found = parts(network, devices, block)
    return sum(x.entries for x in found if x.sides) / sum(x.entries for x in found)


def flops(network: str, devices: int, block: int = BLOCK) -> dict[str, float]:
    """Of a step of the optimizer on one device."""
    found = parts(network, devices, block)
    return {
        "rotations": sum(x.rotations() for x in found),
        "factor products": sum(x.products() for x in found),
        "refreshes": sum(x.refreshes() for x in found),
    }


def network_flops(network: str, tokens: int = TOKENS) -> float:
    """Of a step on one device, forward and backward: 6 for each weight and token."""
    return 6.0 * tokens * weights(network)


def reduced_bytes(network: str) -> int:
    """Of the one all-reduce of a step: ``SUMS`` for each parameter, each as digits in float64."""
    return 8 * DIGITS * SUMS * len(NETWORKS[network])


def tables(tokens: int = TOKENS) -> dict[str, str]:
    """By name, as Markdown."""
    counts = [f"{n} devices" for n in DEVICES]
    state = [
        [f"{name}, block {block}"]
        + [f"{turned(name, n, block):.0%}" for n in DEVICES]
        + [f"{state_per_weight(name, n, block, width):.1f}" for width in WIDTHS.values() for n in DEVICES]
        for name in NETWORKS
        for block in BLOCKS
    ]
    memory = []
    for name in NETWORKS:
        for dtype, width in WIDTHS.items():
            found = [sum(x.entries * (PARAMETER + GRADIENT) + x.state_bytes(width) for x in parts(name, n)) for n in DEVICES]
            memory.append([f"{name}, AdaArturo, {dtype} state", *map(size, found)])
        memory.append([f"{name}, AdamW", *(size(weights(name) * (PARAMETER + GRADIENT + ADAMW) / n) for n in DEVICES)])
    work = []
    for name in NETWORKS:
        for what in ("rotations", "factor products", "refreshes"):
            shares = (flops(name, n)[what] / network_flops(name, tokens) for n in DEVICES)
            work.append([f"{name}, {what}", *(f"{100 * share:.2g} %" for share in shares)])
        for block in BLOCKS:
            shares = (sum(flops(name, n, block).values()) / network_flops(name, tokens) for n in DEVICES)
            work.append([f"{name}, all, block {block}", *(f"{100 * share:.2g} %" for share in shares)])
    network = []
    for name in NETWORKS:
        received = [2 * (n - 1) / n * reduced_bytes(name) for n in DEVICES]
        others = [gradient_bytes(weights(name), n) for n in DEVICES]
        network.append([f"{name}: {len(NETWORKS[name])} parameters, {size(reduced_bytes(name))}", *map(size, received)])
        network.append(["share of FSDP2's own", *(f"{x / y:.1e}" for x, y in zip(received, others, strict=True))])
    kinds = [f"{dtype}, {count}" for dtype in WIDTHS for count in counts]
    return {
        "ada-state": table(["bytes of state per weight", *(f"turned, {count}" for count in counts), *kinds], state),
        "ada-memory": table(["parameters, gradients and state per device", *counts], memory),
        "ada-flops": table([f"share of the network's flops, {tokens:,} tokens per device", *counts], work),
        "ada-network": table(["the all-reduce of a step, received per device", *counts], network),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"of a step on each device (default: {TOKENS})")
    parser.add_argument("--write", action="store_true", help="into docs/scaling.md")
    arguments = parser.parse_args()
    found = tables(arguments.tokens)
    if arguments.write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")
    else:
        print("\n\n".join(found.values()))


if __name__ == "__main__":
    main()
