"""Real text without a download: the docstrings of Python's own standard library, as bytes and as pairs of words."""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import Self

from arturo_lab.data.examples import Examples
from arturo_lab.data.folds import Fold

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
SEPARATOR = b"\n\n"
CONTEXT = 64  # bytes a language model sees
WORDS = 4_000  # vocabulary of the word pairs
WINDOW = 3  # words to either side that are contexts of a word
PASSES = 2 * WINDOW  # pairs of each word
NEGATIVES = 8  # drawn contexts for each true one
TEST_PAIRS = 20_000


@dataclass(frozen=True)
class Windows(Examples):
    """Every window of ``CONTEXT`` bytes of a text, and the same one byte further on: a view, nothing is copied.

    Windows overlap, so parts of them are parts of the text: a subset is its beginning, a fold holds out a stretch of it.
    The test windows do not overlap.
    """

    @classmethod
    def of(cls, name: str, train: Tensor, test: Tensor) -> Self:
        """From two texts of uint8."""
        both = train.unfold(0, CONTEXT + 1, 1)
        count = (len(test) - 1) // CONTEXT
        inputs, targets = (test[i : i + count * CONTEXT].view(count, CONTEXT) for i in (0, 1))
        return cls(name, both[:, :-1], both[:, 1:], inputs, targets)

    @property
    def text(self) -> Tensor:
        """What the training windows are windows of."""
        return torch.cat([self.train_inputs[:, 0], self.train_targets[-1]])

    def content(self) -> Iterator[tuple[str, Tensor]]:
        yield "text", self.text
        yield "test", self.test_inputs
        yield "next", self.test_targets

    def subset(self, n: int | None) -> Self:
        if n is None:
            return self
        self.check_subset(n)
        return replace(self, train_inputs=self.train_inputs[:n], train_targets=self.train_targets[:n])

    def fold(self, name: str | None) -> Self:
        if name is None:
            return self
        text = self.text
        first, last = stretch(name, len(text))
        return self.of(self.name, torch.cat([text[:first], text[last:]]), text[first:last])


@dataclass(frozen=True)
class WordPairs(Examples):
    """Pairs (word, a word near it) to train on; the test inputs have drawn words beside the near one.

    The target is the column of the true context among those offered: always the first.
    """

    @classmethod
    def of(cls, name: str, train: Tensor, test: Tensor) -> Self:
        """From two texts as numbers of words."""
        pairs, held_out = neighbours(train), neighbours(test)
        generator = torch.Generator().manual_seed(0)
        chosen = held_out[torch.randint(len(held_out), (TEST_PAIRS,), generator=generator)]
        inputs = with_negatives(chosen, frequencies(pairs), generator)
        zeros = torch.zeros(1, dtype=torch.long)
        return cls(name, pairs, zeros.expand(len(pairs)), inputs, zeros.expand(TEST_PAIRS))

    @property
    def positions(self) -> Tensor:
        """Where in the text the word of each pair is. The pairs go through the text once for each distance."""
        return torch.arange(len(self)) % (len(self) // PASSES)

    def subset(self, n: int | None) -> Self:
        """The beginning of the text: ``n`` pairs, rounded down to whole words."""
        if n is None:
            return self
        self.check_subset(n)
        first = self.positions < max(n // PASSES, 1)
        return replace(self, train_inputs=self.train_inputs[first], train_targets=self.train_targets[first])

    def fold(self, name: str | None) -> Self:
        """A stretch of the text is held out: neighbouring pairs share words."""
        if name is None:
            return self
        first, last = stretch(name, len(self) // PASSES)
        out = (self.positions >= first) & (self.positions < last)
        pairs, held_out = self.train_inputs[~out], self.train_inputs[out]
        generator = torch.Generator().manual_seed(0)
        inputs = with_negatives(held_out[:TEST_PAIRS], frequencies(pairs), generator)
        targets = self.train_targets[:1]
        return replace(
            self,
            train_inputs=pairs,
            train_targets=targets.expand(len(pairs)),
            test_inputs=inputs,
            test_targets=targets.expand(len(inputs)),
        )


def stretch(fold: str, length: int) -> tuple[int, int]:
    """Where the held-out part of a text of this length begins and ends.

    Example:
        >>> stretch("2/3", 90)
        (30, 60)
    """
    number, parts = Fold.parse(fold)
    return length * (number - 1) // parts, length * number // parts


def neighbours(ids: Tensor) -> Tensor:
    """Every word with each of the ``WINDOW`` before and behind it, (N, 2): one pass over the text for each distance."""
    inner = torch.arange(WINDOW, len(ids) - WINDOW)
    shifts = [shift for shift in range(-WINDOW, WINDOW + 1) if shift]
    return torch.stack([ids[inner].repeat(len(shifts)), torch.cat([ids[inner + shift] for shift in shifts])], 1)


def frequencies(pairs: Tensor) -> Tensor:
    """What negatives are drawn with: counts to the 3/4, as word2vec has it."""
    return torch.bincount(pairs[:, 0], minlength=WORDS).double().pow(0.75).float()


def with_negatives(pairs: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
    """(word, true context) -> (word, true context, ``NEGATIVES`` drawn ones)."""
    drawn = torch.multinomial(weights, len(pairs) * NEGATIVES, replacement=True, generator=generator)
    return torch.cat([pairs, drawn.view(len(pairs), NEGATIVES).to(pairs.device)], 1)


def read_bytes() -> Windows:
    return Windows.of("docstrings", *corpus())


def read_words() -> WordPairs:
    train, test = (re.findall(r"[a-z]+", bytes(side.tolist()).decode(errors="ignore").lower()) for side in corpus())
    index = {word: i for i, (word, _) in enumerate(Counter(train).most_common(WORDS))}
    ids = (torch.tensor([index[word] for word in side if word in index]) for side in (train, test))
    return WordPairs.of("docstring-words", *ids)


@cache
def corpus() -> tuple[Tensor, Tensor]:
    """Bytes to train on and bytes to test on (uint8), one module wholly on one side.

    A tenth of the modules, chosen by the checksum of their path, is for the test: unlike a split by position this does not
    move when another Python version adds a module. Repeated docstrings are kept once, so none is on both sides.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    seen: set[str] = set()
    for path in sorted(stdlib.rglob("*.py")):
        module = path.relative_to(stdlib)
        if SKIPPED_FOLDERS.isdisjoint(module.parts):
            test = zlib.crc32(module.as_posix().encode()) % 10 == 0
            for text in module_docstrings(path):
                if text not in seen:
                    seen.add(text)
                    sides[test].append(text.encode())
    first, second = (torch.frombuffer(bytearray(SEPARATOR.join(side)), dtype=torch.uint8) for side in sides)
    return first, second


def module_docstrings(path: Path) -> list[str]:
    """The docstrings of one source file, unindented, in the order of the source; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules are not our business
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    texts = (ast.get_docstring(node, clean=False) for node in nodes)
    return [cleaned for text in texts if text and (cleaned := inspect.cleandoc(text))]
