"""The numbers of AdaArturo's step in C++ against the same in tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Parameter

from arturo import AdaArturo
from arturo.adaptive_rows import row_of
from arturo.adaptive_state import initial_state
from arturo.adaptive_step import lines_of, settle, settle_natively
from arturo.kernels import native
from arturo.surrogates import learned

pytestmark = pytest.mark.skipif(not native.available(), reason="no compiler when arturo was installed")
KNOWN = (0.1, 0.2, 0.3, 0.4, 5.0, 72.0)
MARKS = (0.0, 12 * learned.mark_weight(1), 12 * (learned.mark_weight(1) + learned.mark_weight(2)))
EXACT = {"rtol": 1e-9, "atol": 1e-12, "equal_nan": True}

positive = st.floats(1e-6, 1e6)
some = st.just(0.0) | positive
row_sums = st.tuples(some, some, positive, st.floats(-1e3, 1e3), positive, st.sampled_from([0.0, 0.0, 1.0, 12.0]), positive)
curvatures = st.tuples(st.floats(-10, 10), some, some, some, st.integers(0, 99), st.sampled_from(MARKS))
groups = st.lists(
    st.fixed_dictionaries(
        {
            "shape": st.sampled_from([(3, 4), (12,), (12, 1), (4, 3), (0,)]),
            "lr": st.sampled_from([1e-4, 1e-3, 1e-2, torch.tensor(2e-3)]),
            "weight_decay": st.sampled_from([0.0, 0.1]),
            "covariance": st.sampled_from(["kronecker", "diagonal"]),
        }
    ),
    min_size=1,
    max_size=5,
)


def make_rows(chosen, steps):
    optimizer = AdaArturo([{**group, "params": [Parameter(torch.ones(group.pop("shape")))]} for group in map(dict, chosen)])
    rows = []
    for number, group in enumerate(optimizer.param_groups):
        (p,) = group["params"]
        p.grad, state = torch.ones_like(p), initial_state(group, p)
        state["step"].fill_(steps)
        rows.append(row_of(group, p, state, number, None, {}))
    return rows


@settings(max_examples=200, deadline=None)
@given(groups, st.integers(0, 20), st.data())
def test_tensors_and_cpp_agree(chosen, steps, data):
    """Any sums, missing entries and weights that are not finite among them; any groups, order of rows, curvature and level."""
    rows = data.draw(st.permutations(make_rows(chosen, steps)))
    sums = torch.tensor([data.draw(row_sums) for _ in rows], dtype=torch.float64)
    sums[:, 6] *= torch.tensor([row.grid is not None for row in rows])  # the pull of tiles
    if data.draw(st.sampled_from([False, False, True])):
        sums[data.draw(st.integers(0, len(rows) - 1)), 0] = float("nan")
    known = data.draw(curvatures)
    info, expected_info, expected = (torch.tensor(x, dtype=torch.float64) for x in ((0.0,) * 6, (0.0,) * 6, known))
    moves, curvature = settle_natively(rows, [sums], info, known, 0.1, None, ())
    others = settle(rows, [sums], expected_info, expected, 0.1, None, ())
    torch.testing.assert_close(info, expected_info, **EXACT)
    torch.testing.assert_close(torch.tensor(curvature, dtype=torch.float64), expected, **EXACT)
    for mine, other in zip(moves, others, strict=True):
        torch.testing.assert_close(torch.tensor(mine, dtype=torch.float64), other, **EXACT)


def test_the_order_of_rows_changes_no_bit():
    """Kernels take rows in their own order."""
    rows = make_rows([{"shape": (3, 4)}, {"shape": (12,)}, {"shape": (4, 3)}], 5)
    sums = torch.rand(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for order in ([0, 1, 2], [2, 0, 1]):
        info = torch.zeros(6, dtype=torch.float64)
        _, curvature = settle_natively([rows[i] for i in order], [sums[order]], info, KNOWN, 0.1, None, ())
        found.append((info.tolist(), curvature))
    assert found[0] == found[1]


def test_who_counts_a_row_may_change():
    """Groups of sharded parameters may come later: then another process may count what this one did."""
    (row,) = make_rows([{"shape": (3, 4)}], 5)
    mine, theirs, again = (lines_of([row._replace(counted=counted)]) for counted in (True, False, True))
    assert mine == again != theirs
