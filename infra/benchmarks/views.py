"""What augmented training views do to accuracy, time and cache size on the demo.

The published recipe trains every epoch on new crops.  With K views, epoch e reads view e mod K: 20 views are the
published augmentation of a recipe of 20 epochs, fewer repeat themselves, none trains on the test view.
"""

from __future__ import annotations

import time

from infra.benchmarks.demo_features import DemoFeatures, demo_features
from infra.benchmarks.feature_stream import accuracies, arrange, learn
from infra.benchmarks.measure import Row, one_thread

ROUTERS = (
    ("lda", "product", 0),
    ("entropy", "hard", 0),
    ("batch_entropy", "hard", 0),
    ("oracle", "hard", 0),
)
RECIPES = ("tosca", "local")


def run(*, long: bool) -> list[Row]:
    """0, 1, 4 and 20 views of all the demo's images; in short mode 0 and 1 of 20 training images a class."""
    one_thread()
    counts = (0, 1, 4, 20) if long else (0, 1)
    demo = demo_features(max(counts), per_class=None if long else 20)
    rows = [_cost(demo, views) for views in counts]
    for recipe in RECIPES:
        rows += [_accuracy(demo, recipe, views) for views in counts]
    return rows


def _cost(demo: DemoFeatures, views: int) -> Row:
    """Extraction, which is the same for all recipes."""
    shown = slice(0, views + 1)
    return Row(
        f"features with {views} views",
        sum(demo.seconds[shown]),
        "CPU-s",
        note=f"{sum(demo.images[shown]):,} images through the backbone, {sum(demo.size[shown]) / 1e6:.1f} MB of cache",
    )


def _accuracy(demo: DemoFeatures, recipe: str, views: int) -> Row:
    stream = arrange("demo", demo.views, demo.labels, demo.split)
    began = time.process_time()
    bank = learn(stream, recipe, views=views)
    seconds = time.process_time() - began
    found = [100 * share for share in accuracies(stream, bank, "test", ROUTERS)]
    others = ", ".join(
        f"{router} {share:.1f}" for (router, *_), share in zip(ROUTERS[1:], found[1:], strict=True)
    )
    return Row(
        f"{recipe}, {views} views: lda",
        found[0],
        "%",
        note=f"{others}; learning {seconds:.1f} CPU-s",
    )
