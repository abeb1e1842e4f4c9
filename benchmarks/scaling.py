"""arTuRO on 8 to 1024 devices, on paper: memory, memory traffic and communication under FSDP2. The tables of docs/scaling.md.

    python benchmarks/scaling.py            # print the tables
    python benchmarks/scaling.py --write    # put them into docs/scaling.md

Counts of bytes, no measurement. Bytes per weight are those of parameters and gradients in float32, with all-gathers in
bfloat16 (FSDP2's ``MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)``).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

WEIGHTS = {"1 B": 1e9, "7 B": 7e9, "70 B": 70e9}
DEVICES = (8, 64, 256, 1024)
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "scaling.md"

STATE = {"arTuRO": 24, "arTuRO, bfloat16 state": 12, "AdamW": 8}  # bytes per weight
PARAMETER, GRADIENT = 4, 4

# Of a weight in one pass over memory: float32 numbers, then numbers of the state's format.
OBSERVE = (2, 6 + 5)  # reads mean and gradient; reads prec, a, b and P's three, writes a, b and P's three
PROBE = (1, 3)  # reads the mean; reads prec, a, b
MOVE = (2, 3 + 1)  # reads and writes the mean; reads prec, a, b, writes prec
SQUARES = {"host": 0, "device": 4}  # bytes: reads the gradient for the unit of the loss; the host knows it after the first step
ADAMW = 28  # bytes: reads parameter, gradient and two moments, writes all but the gradient
PROBES = {"host": 0, "device": 3}  # of a steady step; on accelerators the number is fixed

GATHER, REDUCE = 2, 4  # bytes per weight of FSDP2's collectives: weights twice in bfloat16, gradients once in float32
DIGITS = 61  # float64 numbers for each sum that travels, see arturo/sharding.py
FACTORS = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB"}


def memory(weights: float, devices: int, optimizer: str) -> float:
    """Bytes of parameters, gradients and optimizer state on each device; activations and gathered layers come on top."""
    return weights * (PARAMETER + GRADIENT + STATE[optimizer]) / devices


def traffic(optimizer: str, step: str) -> int:
    """Bytes that one step of the optimizer reads and writes per weight that lies on the device."""
    if optimizer == "AdamW":
        return ADAMW
    width = 2 if "bfloat16" in optimizer else 4
    passes = [OBSERVE, *[PROBE] * PROBES[step], MOVE]
    return SQUARES[step] + sum(4 * wide + width * narrow for wide, narrow in passes)


def gradient_bytes(weights: float, devices: int) -> float:
    """Bytes each device receives per training step under FSDP2: two all-gathers of weights, a reduce-scatter of gradients."""
    return weights * (2 * GATHER + REDUCE) * (devices - 1) / devices


def dual_messages(step: str, groups: int = 1) -> list[int]:
    """Bytes of each all-reduce of one optimizer step: what takes part, each evaluation of the constraint, the KL taken."""
    sums = [2 * groups + 6, 4, *[3] * PROBES[step], 1]
    return [8 * DIGITS * n for n in sums]


def dual_bytes(devices: int, step: str) -> float:
    """Bytes each device receives for them, by an all-reduce that moves the least."""
    return sum(dual_messages(step)) * 2 * (devices - 1) / devices


def seconds(devices: int, step: str, hop: float) -> float:
    """Latency of the dual's all-reduces along trees: up and down, ``hop`` seconds for each level."""
    return len(dual_messages(step)) * 2 * math.ceil(math.log2(devices)) * hop


def size(number: float) -> str:
    """Three digits and a unit.

    >>> size(3.2e10 / 8), size(8784)
    ('3.73 GiB', '8.58 KiB')
    """
    factor = next((f for f in FACTORS if number >= f), 2**10)
    return f"{number / factor:.3g} {FACTORS[factor]}" if number < 1000 * factor else f"{number / factor:,.0f} {FACTORS[factor]}"


def table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(hop: float, bandwidth: float) -> dict[str, str]:
    """By name, as Markdown."""
    counts = [f"{n} devices" for n in DEVICES]
    return {
        "memory": table(
            ["weights, optimizer", "bytes per weight", *counts],
            [
                [f"{name}, {o}", str(PARAMETER + GRADIENT + STATE[o]), *(size(memory(n, d, o)) for d in DEVICES)]
                for name, n in WEIGHTS.items()
                for o in STATE
            ],
        ),
        "traffic": table(
            ["optimizer", "host step", "device step"],
            [[o, *(str(traffic(o, step)) for step in PROBES)] for o in STATE],
        ),
        "network": table(
            ["received per device and step", *counts],
            [
                *(
                    [f"weights and gradients, {name}", *(size(gradient_bytes(n, d)) for d in DEVICES)]
                    for name, n in WEIGHTS.items()
                ),
                *([f"the dual, {step} step, any size", *(size(dual_bytes(d, step)) for d in DEVICES)] for step in PROBES),
                [
                    "the dual's part (device step, 1 B)",
                    *(f"{dual_bytes(d, 'device') / gradient_bytes(1e9, d):.1e}" for d in DEVICES),
                ],
            ],
        ),
        "time": table(
            ["time per step", *counts],
            [
                *(
                    [f"weights and gradients, {name}", *(f"{1e3 * gradient_bytes(n, d) / bandwidth:,.0f} ms" for d in DEVICES)]
                    for name, n in WEIGHTS.items()
                ),
                *(
                    [f"the dual, {step} step, {len(dual_messages(step))} all-reduces"]
                    + [f"{1e3 * seconds(d, step, hop):.2f} ms" for d in DEVICES]
                    for step in PROBES
                ),
            ],
        ),
    }


def written(document: str, found: dict[str, str]) -> str:
    """The document with what stands between its marks replaced."""
    for name, text in found.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, one, rest = document.partition(begin)
        _, two, after = rest.partition(end)
        if not (one and two):
            raise ValueError(f"the document has no {begin.strip()} ... {end}")
        document = f"{before}{begin}{text}\n{end}{after}"
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hop", type=float, default=5e-6, help="seconds per level of a tree (default: 5e-6)")
    parser.add_argument("--bandwidth", type=float, default=50e9, help="bytes per second and device (default: 50e9, 400 Gb/s)")
    parser.add_argument("--write", action="store_true", help="into docs/scaling.md")
    arguments = parser.parse_args()
    found = tables(arguments.hop, arguments.bandwidth)
    if arguments.write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")
    else:
        print("\n\n".join(found.values()))


if __name__ == "__main__":
    main()
