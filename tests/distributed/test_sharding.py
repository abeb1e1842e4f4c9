"""arturo.sharding on several processes, gloo on loopback. What runs in them: equality.py and corners.py."""

from __future__ import annotations

import functools

import corners
import equality
import pytest
import torch

OPTIONS = ("default", "everything", "everything-capturable")
CORNERS = {
    **{
        f"given-eta-{kernel}-{dtype}": functools.partial(corners.given_eta, kernel=kernel, state_dtype=dtype)
        for kernel in corners.KERNELS
        for dtype in (None, torch.bfloat16)
    },
    **{f"solved-{name}": functools.partial(corners.solved, options=options) for name, options in corners.SOLVED.items()},
    **{
        f"{case.__name__}-{'device' if capturable else 'host'}": functools.partial(case, capturable=capturable)
        for case in (corners.groups_of_their_own, corners.absent, corners.nobody, corners.counted)
        for capturable in (False, True)
    },
}
CASES = {
    2: {
        **{f"ddp-{x}": functools.partial(equality.ddp, options=x) for x in OPTIONS},
        **{f"fsdp2-{x}": functools.partial(equality.fsdp2, options=x) for x in OPTIONS},
        **{f"tensor-parallel-{x}": functools.partial(equality.tensor_parallel, options=x) for x in ("mixed", "mixed-capturable")},
        "partial": corners.partial_gradients,
        **CORNERS,
    },
    3: {
        "ddp-everything": functools.partial(equality.ddp, options="everything"),
        "fsdp2-everything": functools.partial(equality.fsdp2, options="everything"),
        **{name: case for name, case in CORNERS.items() if name.startswith(("absent", "counted", "solved"))},
    },
    4: {
        **{f"hsdp-{x}": functools.partial(equality.hsdp, options=x) for x in OPTIONS},
        "fsdp2-and-tensor-parallel": functools.partial(equality.both, options="mixed"),
        **{name: case for name, case in CORNERS.items() if not name.startswith("solved-")},
    },
}


@pytest.fixture(scope="module")
def wrong(launch):
    return launch(CASES)


@pytest.mark.parametrize(("world", "case"), [(world, case) for world, cases in CASES.items() for case in cases])
def test_processes(wrong, world, case):
    assert not wrong[world, case], wrong[world, case]
