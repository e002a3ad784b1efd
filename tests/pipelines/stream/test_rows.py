from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.sources.table import Listing, make_listing
from pipelines.stream.settings import rows_of

SAMPLES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y"])), min_size=1, max_size=30
)


def listing_of(samples: list[tuple[str, str]]) -> Listing:
    """Each sample in train, and every third one of another content in test as well."""
    rows = [(label, domain, "train") for label, domain in samples]
    rows += [(label, domain, "test") for label, domain in samples[::3]]
    labels, domains, splits = zip(*rows, strict=True)
    ids = [f"{at:03d}" for at in range(len(rows))]
    return make_listing(
        where="here",
        ids=ids,
        labels=labels,
        domains=domains,
        splits=splits,
        contents=ids,
        locations=ids,
        rows=[-1] * len(rows),
    )


@given(
    samples=SAMPLES,
    split=st.sampled_from(["train", "test"]),
    classes=st.none() | st.lists(st.sampled_from("abcz")),
    domain=st.sampled_from([None, "", "x", "z"]),
)
def test_rows_are_those_that_meet_all_that_is_said(
    samples: list[tuple[str, str]], split: str, classes: list[str] | None, domain: str | None
) -> None:
    listing = listing_of(samples)
    expected = [
        row
        for row, sample in enumerate(listing.samples.to_pylist())
        if sample["split"] == split
        and (classes is None or sample["label"] in classes)
        and (domain is None or sample["domain"] == domain)
    ]
    found = rows_of(listing, split=split, classes=classes, domain=domain)
    assert found.dtype == np.int64
    assert found.tolist() == expected


def test_a_listing_is_gone_through_once_for_all_tasks() -> None:
    listing = listing_of([("a", ""), ("b", "")])
    assert listing.rows_by_group is listing.rows_by_group
