"""arturo.sharding on several processes, gloo on loopback. What runs in them: the files beside this one without ``test_``."""

from __future__ import annotations

import functools

import checkpoints
import corners
import draws
import equality
import laboratory
import pytest
import torch

OPTIONS = ("default", "everything", "everything-capturable")
CORNERS = {
    **{
        f"given-eta-{kernel}-{dtype}": functools.partial(corners.given_eta, kernel=kernel, state_dtype=dtype)
        for kernel, dtype in [("native", None), *((kernel, torch.bfloat16) for kernel in corners.KERNELS)]
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
        **{f"ddp-{x}": functools.partial(equality.ddp, options=x) for x in OPTIONS[1:2]},
        **{f"fsdp2-{x}": functools.partial(equality.fsdp2, options=x) for x in OPTIONS},
        **{f"tensor-parallel-{x}": functools.partial(equality.tensor_parallel, options=x) for x in ("mixed",)},
        "partial": corners.partial_gradients,
        "fsdp1": corners.fsdp1,
        "predicted": draws.predicted,
        "variational": draws.variational,
        **{
            f"laboratory-{parallel}-{x}": functools.partial(laboratory.interrupted_and_resumed, parallel=parallel, optimizer=x)
            for parallel, x in (("ddp", "arturo"), ("fsdp2", "arturo"))
        },
        **{f"save-{x}": functools.partial(checkpoints.save, **form) for x, form in checkpoints.FORMS.items()},
        **CORNERS,
    },
    1: {
        f"load-{x}-{'sharded' if sharded else 'plain'}": functools.partial(checkpoints.load, **form, sharded=sharded)
        for x, form in checkpoints.FORMS.items()
        for sharded in (True, False)
    },
    3: {
        **{f"load-{x}": functools.partial(checkpoints.load, **form) for x, form in checkpoints.FORMS.items()},
        "ddp-everything": functools.partial(equality.ddp, options="everything"),
        "fsdp2-everything": functools.partial(equality.fsdp2, options="everything"),
        **{
            name: case
            for name, case in CORNERS.items()
            if name.startswith(("absent-host", "counted-host", "solved-unset", "solved-capt"))
        },
    },
    4: {
        **{f"hsdp-{x}": functools.partial(equality.hsdp, options=x) for x in OPTIONS[1:]},
        "several-meshes": corners.several_meshes,
        "dimension-by-dimension": corners.dimension_by_dimension,
        "fsdp2-and-tensor-parallel": functools.partial(equality.both, options="mixed"),
        **{
            name: case
            for name, case in CORNERS.items()
            if name.startswith(("given-eta-native", "groups", "absent", "counted-device"))
        },
    },
}


@pytest.fixture(scope="module")
def wrong(launch):
    return launch(CASES)


@pytest.mark.parametrize(("world", "case"), [(world, case) for world, cases in CASES.items() for case in cases])
def test_processes(wrong, world, case):
    assert not wrong[world, case], wrong[world, case]
