"""The sample table that every source lists, and the checks that hold for all of them.

One row a sample, in the order of the ids, so that a listing is the same whatever order a file system or archive
names its files in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources.splits import SplitPlan, assign_splits
from workers.errors import DataError
from workers.storage.bank_json import is_text
from workers.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("label", pa.string(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("content", pa.string(), nullable=False),
        pa.field("location", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)
"""``id`` unique; ``label`` the class name; ``domain`` "" when there is none; ``split`` "train" or "test"; ``content``
the digest of the sample's bytes; ``location`` its file; ``row`` its row in that file, -1 when the file is the sample."""


@dataclass(frozen=True)
class Listing:
    """What a source holds.

    Attributes:
        samples: table of ``SAMPLE_SCHEMA``, sorted by id.
        classes: every class name once, in the source's canonical order: sorted names, or the order of the labels'
            numbers where the source numbers its classes.  Published class orders permute this order.
        warnings: sentences a user should read before trusting a result.
        feature_width: d of ready features; None for images.
    """

    samples: pa.Table
    classes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    feature_width: int | None = None

    @cached_property
    def rows_by_group(self) -> dict[str, dict[str, dict[str, NDArray[np.int64]]]]:
        """Row numbers by split, class and domain, ascending; found once, however many tasks are cut."""
        encoded = [
            self.samples[name].combine_chunks().dictionary_encode()
            for name in ("split", "label", "domain")
        ]
        codes = np.stack([column.indices.to_numpy() for column in encoded])
        order = np.lexsort(codes[::-1])
        changed = np.any(np.diff(codes[:, order], axis=1), axis=0)
        found: dict[str, dict[str, dict[str, NDArray[np.int64]]]] = {}
        for rows in np.split(order.astype(np.int64), np.flatnonzero(changed) + 1):
            split, label, domain = (
                column.dictionary[int(code)].as_py()
                for column, code in zip(encoded, codes[:, rows[0]], strict=True)
            )
            found.setdefault(split, {}).setdefault(label, {})[domain] = rows
        return found


def make_listing(
    *,
    where: str,
    ids: Sequence[str],
    labels: Sequence[str],
    domains: Sequence[str],
    splits: Sequence[str],
    contents: Sequence[str],
    locations: Sequence[str],
    rows: Sequence[int] | np.ndarray,
    classes: Iterable[str] | None = None,
    plan: SplitPlan | None = None,
    warnings: Sequence[str] = (),
    feature_width: int | None = None,
) -> Listing:
    """Check samples, give each a split and sort them.

    Args:
        where: the file or folder, for messages.
        splits: what the data say, in any of the usual words; "" where they say nothing.
        classes: the canonical order when it is not the order of the sorted names; names without samples are left out.
        plan: how the source was asked to split; the default takes the data's word.

    Raises:
        DataError: no samples, an id twice, an empty label, a class in test only, or contradictory splits.
    """
    if len(ids) == 0:
        raise DataError(f"{where}: no samples found")
    columns = [pa.array(column, pa.string()) for column in (ids, labels, domains)]
    _check_ids(where, columns[0])
    if pc.any(pc.equal(columns[1], "")).as_py():
        at = pc.indices_nonzero(pc.equal(columns[1], ""))[0].as_py()
        raise DataError(f"{where}: sample {ids[at]!r} has an empty label")
    for what, names in (("label", labels), ("domain", domains)):
        for name in dict.fromkeys(names):
            if not is_text(name):
                raise DataError(
                    f"{where}: sample {ids[list(names).index(name)]!r} has the {what} {name!r}, which is not a "
                    f"line of text without control characters; rename the {what}"
                )
    marked, kept, notes = assign_splits(
        where=where,
        plan=plan or SplitPlan(),
        words=splits,
        labels=labels,
        domains=domains,
        contents=contents,
        ids=ids,
    )
    table = pa.table(
        [
            *columns,
            pa.array(marked, pa.string()),
            pa.array(contents, pa.string()),
            pa.array(locations, pa.string()),
            pa.array(rows, pa.int64()),
        ],
        schema=SAMPLE_SCHEMA,
    )
    if not kept.all():
        table = table.filter(pa.array(kept))
    table = table.take(pc.sort_indices(table["id"])).combine_chunks()
    present = set(pc.unique(table["label"]).to_pylist())
    _check_trained(where, table, present)
    order = sorted(present) if classes is None else [name for name in classes if name in present]
    return Listing(
        samples=table,
        classes=tuple(order),
        warnings=(*warnings, *notes, *_content_warnings(where, table)),
        feature_width=feature_width,
    )


def _check_ids(where: str, ids: pa.Array) -> None:
    counts = pc.value_counts(ids)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        names = sorted(twice.field("values").to_pylist())
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise DataError(
            f"{where}: the sample id {names[0]!r}{more} occurs more than once; ids must be unique"
        )


def _check_trained(where: str, table: pa.Table, present: set[str]) -> None:
    trained = set(pc.unique(table.filter(pc.equal(table["split"], "train"))["label"]).to_pylist())
    missing = sorted(present - trained)
    if missing:
        names = ", ".join(repr(name) for name in missing[:5]) + (", ..." if missing[5:] else "")
        verb = "class is" if len(missing) == 1 else f"{len(missing):,} classes are"
        raise DataError(
            f"{where}: {verb} in test only, with nothing to train on: {names}; "
            "add training samples or take the test samples away"
        )


def _content_warnings(where: str, table: pa.Table) -> list[str]:
    """Equal content is allowed, and worth knowing: above all when a test sample is also a training sample."""
    warnings = []
    content = table["content"].combine_chunks()
    codes = content.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    is_test = pc.equal(table["split"], "test").to_numpy()
    trained = np.zeros(codes.max() + 1, dtype=bool)
    trained[codes[~is_test]] = True
    leaked = int(trained[codes[is_test]].sum())
    if leaked:
        warnings.append(
            f"{where}: {leaked:,} of {plural(int(is_test.sum()), 'test sample')} also in training "
            "(equal content): test accuracy flatters"
        )
    label_codes = table["label"].combine_chunks().dictionary_encode().indices.to_numpy()
    pairs = np.unique(np.stack([codes, label_codes]), axis=1)
    labels_per_content = np.bincount(pairs[0])
    contradictory = int((labels_per_content > 1).sum())
    if contradictory:
        warnings.append(f"{where}: {plural(contradictory, 'content')} with more than one label")
    repeated = int((~is_test).sum()) - int(trained.sum())
    if repeated:
        warnings.append(
            f"{where}: {plural(repeated, 'training sample')} with the content of another one"
        )
    return warnings
