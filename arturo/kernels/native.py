"""The passes in C++ for CPU tensors: one call per pass for the whole list, no temporaries, see ``cpp/native.cpp``.

The extension is optional: without a compiler at install the step falls back to the eager kernel. So do tensors that it cannot
handle (layouts that differ between a parameter, its gradient and its state, tensor subclasses), in the same pass.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import warnings
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from arturo.core.trust_region import Scalar
from arturo.kernels import eager
from arturo.kernels.batch import Constants, Row, largest_gradient, runs

OBSERVE, PROBE, MOVE = range(3)
TENSORS = 9  # of a row with the filter's memory
PLAIN = (Tensor, torch.nn.Parameter)  # a subclass may keep its numbers elsewhere than data_ptr says
FORMATS = (  # dtypes of parameter and gradient, of the mean, of the rest; the order of FORMATS in cpp/native.cpp
    (torch.float32, torch.float32, torch.float32),
    (torch.float64, torch.float64, torch.float64),
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.float16, torch.float32, torch.float32),
    (torch.float32, torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32, torch.bfloat16),
    (torch.float16, torch.float32, torch.bfloat16),
)
_FORMAT_OF = {dtypes: i for i, dtypes in enumerate(FORMATS)}


DOUBLES = tuple(name for name in Constants._fields if name not in ("consistent", "averaging", "alive"))


class NativeConstants(ctypes.Structure):
    """``struct Constants`` of ``cpp/chunk.h``, field by field."""

    _fields_ = [
        *((name, ctypes.c_double) for name in (*DOUBLES, "s_w", "eta_w", "scale", "limit")),
        *((name, ctypes.c_int64) for name in ("has_floor", "consistent")),
    ]


class Table(NamedTuple):
    """Tensors of one format as the C++ side sees them. Holds no references to them: it lives as long as the step."""

    format: int
    tensors: int
    arrays: tuple[array[int], ...]  # sizes, pointers, first, seeds, offsets
    addresses: list[int]  # of these arrays
    numbers: NativeConstants


VERSION = 2  # of the functions and structs in cpp/; raise it there, too, whenever one of them changes
_TYPES = {"i": ctypes.c_int32, "q": ctypes.c_int64, "d": ctypes.c_double, "p": ctypes.c_void_p}
_ARGUMENTS = {  # of the functions in cpp/native.cpp and cpp/adaptive.cpp
    "arturo_pass": "iiqppppppip", "arturo_count": "qpd", "arturo_count_steps": "qp", "arturo_learned": "iiqpppppip",
    "arturo_tiles": "iiqpip", "arturo_columns": "qppp", "arturo_settle": "qpqppppppppp", "arturo_orthogonal": "iip",
}  # fmt: skip


def _load() -> ctypes.CDLL | None:
    try:
        path = importlib.import_module("arturo.kernels._native").__file__
    except ImportError:
        return None
    library = ctypes.CDLL(path)
    version = library.arturo_version() if hasattr(library, "arturo_version") else 0
    if version != VERSION:
        warnings.warn(
            f"arturo's C++ kernel was built from other sources than this version's ({path} is number {version}, not {VERSION}) "
            "and is not used. Install arturo again to build it",
            stacklevel=2,
        )
        return None
    for name, letters in _ARGUMENTS.items():
        getattr(library, name).argtypes = [_TYPES[letter] for letter in letters]
    return library


_library = _load()


def available() -> bool:
    """Whether the extension was built."""
    return _library is not None


def library() -> ctypes.CDLL:
    """The extension, for ``arturo_pass``."""
    assert _library is not None
    return _library


@functools.cache
def say_once_that_it_is_missing() -> None:
    """A warning, once per process."""
    warnings.warn(
        "arturo's C++ kernel was not built when it was installed (no C++ compiler?), so steps fall back to the eager kernel: "
        "the same result, some twenty times slower. Install a compiler and reinstall arturo from source; or pass fused=True "
        "for a kernel made by torch.compile, or fused=False to silence this message",
        stacklevel=2,
    )


class NativeSweep:
    """The rows by format; the eager kernel handles those that C++ cannot."""

    def __init__(self, rows: Sequence[Row], k: Constants) -> None:
        self.rows = rows
        by_format: dict[int, list[tuple[Row, tuple[Tensor, ...]]]] = {}
        rest: list[Row] = []
        for run, tensors in runs(rows):
            number = _format(run, tensors)
            if number is None:
                rest.append(run)
            else:
                by_format.setdefault(number, []).append((run, tensors))
        self.tables = [_table(number, chosen, k) for number, chosen in by_format.items()]
        self.rest = eager.EagerSweep(rest, k) if rest else None

    def observe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        sums = [_call(table, OBSERVE, s_w, eta_w, 1.0) for table in self.tables]
        return _joined(sums, None if self.rest is None else self.rest.observe(s_w, eta_w))

    def probe(self, s_w: Scalar, eta_w: Scalar) -> Tensor:
        sums = [_call(table, PROBE, s_w, eta_w, 1.0)[:, :3] for table in self.tables]
        return _joined(sums, None if self.rest is None else self.rest.probe(s_w, eta_w))

    def move(self, s_w: Scalar, eta_w: Scalar, factor: Scalar) -> Tensor:
        sums = [_call(table, MOVE, s_w, eta_w, factor)[:, 0] for table in self.tables]
        written([row.param for row in self.rows])
        return _joined(sums, None if self.rest is None else self.rest.move(s_w, eta_w, factor))

    def count(self, eta: float) -> None:
        """Two numbers for each parameter, too few to be worth two calls into torch."""
        steps, etas = [row.step for row in self.rows], [row.eta for row in self.rows]
        if not (_are(torch.float32, steps) and _are(torch.float64, etas)):
            eager.count(self.rows, eta)
            return
        pointers = array("Q", [x.data_ptr() for x in steps + etas])
        library().arturo_count(len(self.rows), pointers.buffer_info()[0], eta)


def count_steps(counters: list[int]) -> None:
    """Add 1 to the float32 numbers at these addresses."""
    pointers = array("Q", counters)
    library().arturo_count_steps(len(counters), pointers.buffer_info()[0])


def is_plain(x: Tensor) -> bool:
    """Whether memory on the host holds the numbers where ``data_ptr`` says: not negated, nor zeros without memory."""
    return type(x) in PLAIN and x.is_cpu and not x.is_neg() and not x._is_zerotensor()


def written(tensors: list[Tensor]) -> None:
    """Tell autograd that their numbers have changed: it refuses to go backward through a network of other weights."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except TypeError:  # older versions of torch take them one by one
        for x in tensors:
            torch.autograd.graph.increment_version(x)


def _are(dtype: torch.dtype, tensors: list[Tensor]) -> bool:
    return all([x.dtype == dtype and type(x) in PLAIN for x in tensors])


def _joined(sums: list[Tensor], others: Tensor | None) -> Tensor:
    sums = sums if others is None else [*sums, others]
    return sums[0] if len(sums) == 1 else torch.cat(sums)


def _format(row: Row, tensors: tuple[Tensor, ...]) -> int | None:
    """The line of :data:`FORMATS` that fits, if the row's tensors are dense and have the same layout."""
    param, dtype, contiguous = row.param, row.prec.dtype, True
    for x in tensors:
        if not is_plain(x):
            return None
        contiguous = contiguous and x.is_contiguous()
    for x in row.memory:
        if x.dtype != dtype:
            return None
    if row.grad.dtype != param.dtype or not row.a.dtype == row.b.dtype == dtype:
        return None
    if not contiguous:
        dense = param.dim() == 4 and param.is_contiguous(memory_format=torch.channels_last)
        if not (dense and all(x.stride() == param.stride() for x in tensors)):
            return None
    return _FORMAT_OF.get((param.dtype, row.mean.dtype, dtype))


def _table(number: int, chosen: list[tuple[Row, tuple[Tensor, ...]]], k: Constants) -> Table:
    rows = [row for row, _ in chosen]
    numbers = NativeConstants(*[getattr(k, name) or 0.0 for name in DOUBLES])
    numbers.limit = largest_gradient(rows[0].mean.dtype, k.factor)
    numbers.has_floor, numbers.consistent = k.floor is not None, k.consistent
    pointers: list[int] = []
    for _, tensors in chosen:
        own = [x.data_ptr() for x in tensors]
        pointers += own + own[-1:] * (TENSORS - len(own))  # probe and move do not read what the filter alone has
    arrays = (
        array("q", [row.mean.numel() for row in rows]),
        array("Q", pointers),
        array("B", [row.first for row in rows]),
        array("I", [row.seed for row in rows]),
        array("q", [row.starts[0] for row in rows]),
    )
    return Table(number, len(rows), arrays, [x.buffer_info()[0] for x in arrays], numbers)


def _call(table: Table, kind: int, s_w: Scalar, eta_w: Scalar, factor: Scalar) -> Tensor:
    numbers = table.numbers
    numbers.s_w, numbers.eta_w, numbers.scale = s_w, eta_w, factor
    sums = torch.empty(table.tensors, 4, dtype=torch.float64, device="cpu")
    library().arturo_pass(
        table.format, kind, table.tensors, *table.addresses, ctypes.byref(numbers), torch.get_num_threads(), sums.data_ptr()
    )
    return sums
