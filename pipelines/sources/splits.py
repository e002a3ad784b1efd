"""Which samples are trained on and which are only ever scored.

The data say so by folder, file or column; where they say nothing, a seeded fraction of every class (and domain) is
kept for test.  The choice ranks samples by a hash of seed and content, so it depends on neither the machine nor the
order of listing, equal images tend to fall on the same side, and adding samples moves few of the old ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from workers.errors import DataError, SettingsError
from workers.wording import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DEFAULT_TEST_FRACTION = 0.2

_WORDS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "eval": "validation",
}


@dataclass(frozen=True)
class SplitPlan:
    """What the source's settings ask for: a fraction of train to keep for test, and the seed of that choice."""

    test_fraction: float | None = None
    seed: int = 0


def split_word(word: str) -> str | None:
    """Which of "train", "test" and "validation" a word means, for any of the usual words; None for others."""
    return _WORDS.get(word.lower())


def split_of_file(stem: str) -> str:
    """The split a file's name begins with, as in ``test-00000-of-00001``; "" when it names none."""
    head = stem
    for mark in "-_. ":
        head = head.split(mark, 1)[0]
    return split_word(head) or ""


def seeded_order(seed: int, purpose: str, keys: Sequence[str], ids: Sequence[str]) -> list[int]:
    """Positions in an order that depends on seed, purpose, keys and ids only.

    Samples with equal keys stay together, ordered by id.
    """
    salt = f"{seed}/{purpose}/".encode()
    ranks = [blake2b(salt + key.encode(), digest_size=16).digest() for key in keys]
    return sorted(range(len(keys)), key=lambda at: (ranks[at], ids[at]))


def held_out(count: int, fraction: float) -> int:
    """How many of ``count`` samples to hold out: the rounded fraction, at least one, and one less than all."""
    if fraction == 0:
        return 0
    return min(max(1, int(count * fraction + 0.5)), count - 1)


def assign_splits(
    *,
    where: str,
    plan: SplitPlan,
    words: Sequence[str],
    labels: Sequence[str],
    domains: Sequence[str],
    contents: Sequence[str],
    ids: Sequence[str],
) -> tuple[NDArray[np.str_], NDArray[np.bool_], list[str]]:
    """Mark each sample "train" or "test", say which samples stay, and what to tell the user.

    Raises:
        DataError: a split word is unknown, or missing for some samples only.
        SettingsError: a test fraction is asked of data that bring their own test samples.
    """
    meaning = {word: split_word(word) if word else "" for word in set(words)}
    unknown = sorted(word for word, split in meaning.items() if split is None)
    if unknown:
        raise DataError(f"{where}: unknown split {unknown[0]!r}; use 'train' and 'test'")
    counts = Counter(meaning[word] for word in words)
    if "" in counts and len(counts) > 1:
        raise DataError(
            f"{where}: {counts['']:,} of {plural(len(words), 'sample')} without a split, others have one"
        )
    keep = np.ones(len(words), dtype=bool)
    notes: list[str] = []
    if counts["test"] or counts["validation"]:
        if plan.test_fraction is not None:
            raise SettingsError(
                f"stream.source.test_fraction is {plan.test_fraction}, but {where} brings its own test "
                "samples; leave test_fraction out"
            )
        marked = np.array([meaning[word] for word in words])
        if not counts["test"]:
            marked[marked == "validation"] = "test"
            notes.append(f"{where}: the validation samples serve as test samples")
        elif counts["validation"]:
            keep = marked != "validation"
            notes.append(
                f"{where}: left out {plural(counts['validation'], 'validation sample')}, since there are test samples; "
                "stream.validation_fraction cuts validation out of train"
            )
            lost = sorted(set(labels) - {labels[at] for at in np.flatnonzero(keep).tolist()})
            if lost:
                more = f" and {len(lost) - 6} more" if len(lost) > 6 else ""
                notes.append(
                    f"{where}: no class {', '.join(map(repr, lost[:6]))}{more} in the stream, since all samples of it "
                    "are validation samples"
                )
        return marked, keep, notes
    fraction = plan.test_fraction
    if fraction is None:
        fraction = DEFAULT_TEST_FRACTION
        notes.append(
            f"{where}: no test samples, so {fraction:.0%} of every class is kept for test "
            "(source.test_fraction)"
        )
    marked = np.full(len(words), "train", dtype="<U5")
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, group in enumerate(zip(labels, domains, strict=True)):
        groups[group].append(at)
    for members in groups.values():
        order = seeded_order(
            plan.seed, "test", [contents[at] for at in members], [ids[at] for at in members]
        )
        for position in order[: held_out(len(members), fraction)]:
            marked[members[position]] = "test"
    return marked, keep, notes
