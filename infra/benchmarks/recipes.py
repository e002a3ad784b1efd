"""How the default recipe was chosen: validation accuracy of recipes, whitening and routers over several streams.

A quarter of each class's training samples is held out; test samples are never touched.

python -m infra.benchmarks.recipes                        streams cut from the images that come with the package
python -m infra.benchmarks.recipes --features A.parquet   and streams of ready features, classes in seed 1993's order
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.benchmarks.demo_features import demo_features
from infra.benchmarks.feature_stream import (
    PUBLISHED_SEED,
    FeatureStream,
    accuracies,
    arrange,
    learn,
    read_parquet,
)
from infra.benchmarks.measure import Row, one_thread

RANDOM_FEATURES = 2000
ROUTERS = {
    "entropy": ("entropy", "hard", 0),
    "lda, hard": ("lda", "hard", 0),
    "lda, product": ("lda", "product", 0),
    "ridge, product": ("ridge", "product", 0),
    f"ridge on {RANDOM_FEATURES:,}, product": ("ridge", "product", RANDOM_FEATURES),
}


@dataclass(frozen=True)
class Candidate:
    """A recipe with or without whitening, and whether modules are judged with random features too."""

    recipe: str
    whitening: str

    @property
    def title(self) -> str:
        """For the table."""
        return f"{self.recipe}, {'whitened' if self.whitening == 'first_task' else 'raw'}"


CANDIDATES = tuple(
    Candidate(recipe, whitening)
    for recipe in ("tosca", "local")
    for whitening in ("none", "first_task")
)


def run(*, long: bool) -> list[Row]:
    """The choice over the package's own streams; in short mode over one of them, of few images."""
    one_thread()
    streams = embedded(None if long else 40)
    table = validate(streams if long else streams[:1])
    return [
        Row(
            f"{candidate.title}; {router}",
            100 * sum(shares) / len(shares),
            "%",
            note="; ".join(
                f"{stream.name} {100 * share:.1f}"
                for stream, share in zip(streams, shares, strict=False)
            ),
        )
        for (candidate, router), shares in table.items()
    ]


def embedded(per_class: int | None = None) -> list[FeatureStream]:
    """Streams that anyone can cut from the package's images: all classes and either half, in two orders each."""
    demo = demo_features(per_class=per_class)
    digits = sorted({label for label in demo.labels if label.startswith("digit ")})
    fashion = sorted(set(demo.labels) - set(digits))
    return [
        arrange(f"{name} ({seed})", demo.views, demo.labels, demo.split, seed=seed, only=classes)
        for name, classes in (
            ("demo", [*fashion, *digits]),
            ("digits", digits),
            ("Fashion", fashion),
        )
        for seed in (PUBLISHED_SEED, 1)
    ]


def validate(
    streams: Sequence[FeatureStream], told: Callable[[str], None] = lambda _: None
) -> dict[tuple[Candidate, str], list[float]]:
    """Validation accuracy after the last task, a number a stream, by candidate and router."""
    table: dict[tuple[Candidate, str], list[float]] = {}
    for stream in (given.with_validation() for given in streams):
        told(stream.name)
        for candidate in CANDIDATES:
            bank = learn(
                stream,
                candidate.recipe,
                whitening=candidate.whitening,
                random_features=RANDOM_FEATURES,
            )
            found = accuracies(stream, bank, "validation", tuple(ROUTERS.values()))
            for router, share in zip(ROUTERS, found, strict=True):
                table.setdefault((candidate, router), []).append(share)
    return table


def main() -> None:
    """Prints the table as Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.benchmarks.recipes", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--features", nargs="*", type=Path, default=[], metavar="FILE")
    one_thread()
    files: list[Path] = parser.parse_args().features
    streams = embedded()
    for path in files:
        features, labels, split = read_parquet(path)
        streams.append(arrange(path.stem, (features,), labels, split))
    table = validate(streams, told=lambda name: print(f"{name} ...", flush=True))
    print("\n| recipe | routing | " + " | ".join(s.name for s in streams) + " | mean |")
    print("|---|---|" + "---|" * (len(streams) + 1))
    for (candidate, router), shares in table.items():
        cells = " | ".join(f"{100 * share:.1f}" for share in [*shares, sum(shares) / len(shares)])
        print(f"| {candidate.title} | {router} | {cells} |")


if __name__ == "__main__":
    main()
