from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.sources.splits import SplitPlan, assign_splits, held_out, seeded_order


def split(
    labels: list[str], order: list[int], *, seed: int = 0, fraction: float = 0.3
) -> dict[str, str]:
    marked, _, _ = assign_splits(
        where="data",
        plan=SplitPlan(test_fraction=fraction, seed=seed),
        words=[""] * len(labels),
        labels=[labels[at] for at in order],
        domains=[""] * len(labels),
        contents=[f"content {at}" for at in order],
        ids=[str(at) for at in order],
    )
    return {str(at): str(word) for at, word in zip(order, marked, strict=True)}


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.randoms(), st.floats(0.05, 0.95)
)
@settings(max_examples=30, deadline=None)
def test_a_split_depends_on_no_order_and_is_stratified(labels, random, fraction) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(labels)))
    shuffled = random.sample(order, len(order))
    words = split(labels, order, fraction=fraction)
    assert words == split(labels, shuffled, fraction=fraction)
    for name in set(labels):
        members = [words[str(at)] for at in order if labels[at] == name]
        assert members.count("test") == held_out(len(members), fraction)
        assert "train" in members


def test_another_seed_chooses_others() -> None:
    labels = ["a"] * 30
    assert split(labels, list(range(30)), seed=0) != split(labels, list(range(30)), seed=1)


def test_equal_contents_stay_together_in_a_seeded_order() -> None:
    order = seeded_order(3, "test", ["x", "y", "x", "z", "x"], ["1", "2", "3", "4", "5"])
    places = [order.index(at) for at in (0, 2, 4)]
    assert places == list(range(places[0], places[0] + 3))


def test_something_is_held_out_and_something_stays() -> None:
    assert [held_out(count, 0.1) for count in (1, 2, 10, 15)] == [0, 1, 1, 2]
    assert held_out(3, 0.99) == 2
    assert held_out(3, 0.0) == 0
