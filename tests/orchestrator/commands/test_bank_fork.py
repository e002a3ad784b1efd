"""`luca bank fork`: own history, other settings from here on, and predictions that stay right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.preparation import check_settings
from pipelines.forking import learned_with, settings_of
from tests.helpers import features_experiment
from tests.orchestrator.commands.conftest import Luca
from tests.orchestrator.commands.learned_banks import (
    class_log_probs,
    features,
    learn,
    quick_disk,
)
from workers.errors import BankError
from workers.modeling.routers import ROUTERS
from workers.storage.bank import Bank
from workers.storage.bank_writer import BankWriter

__all__ = ["quick_disk"]

OTHER: dict[str, Any] = {"luca": {"ratio": 2}, "learning": {"epochs": 2, "l1": 0.01}}


def experiment_file(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(features_experiment(folder, **changes).to_yaml())
    return path


def test_a_fork_has_the_content_and_a_history_of_its_own(
    luca: Luca, storage: str, tiny: Bank
) -> None:
    said = luca("bank", "fork", "tiny@2", "new", "--storage", storage)
    assert said.code == 0
    made = Bank.open(tiny.storage, "new").load()
    assert (made.version, made.parent) == (1, None)
    assert made.digest == tiny.load(2).digest
    assert made.manifest.origin == {"bank": "tiny", "version": 2, "digest": made.digest}
    assert made.defaults == tiny.load(2).defaults != {}


def test_other_settings_are_refused_without_a_fork_and_go_on_in_one(
    luca: Luca, folder: Path, storage: str, tiny: Bank
) -> None:
    other = features_experiment(folder, bank="new", **OTHER)
    with pytest.raises(BankError, match="luca bank fork"):
        check_settings(tiny.load(), other)
    file = experiment_file(folder)
    overrides = ["-o", "luca.ratio=2", "-o", "learning.epochs=2", "-o", "learning.l1=0.01"]
    said = luca(
        "bank", "fork", "tiny@2", "new", "--settings", file, *overrides, "--storage", storage
    )
    assert said.code == 0
    assert "new settings" in said.out
    grown = learn(other).load()
    assert len(grown.tasks) == 3
    assert [t.objects for t in grown.tasks[:2]] == [t.objects for t in tiny.load().tasks[:2]]
    alone = learn(features_experiment(folder, bank="alone", **OTHER)).load()
    assert grown.tasks[2].objects == alone.tasks[2].objects


def test_modules_of_both_settings_predict_as_in_the_banks_they_come_from(
    luca: Luca, folder: Path, storage: str, tiny: Bank
) -> None:
    file = experiment_file(folder, **OTHER)
    assert luca("bank", "fork", "tiny@2", "new", "--settings", file, "--storage", storage).code == 0
    grown = learn(features_experiment(folder, bank="new", **OTHER)).load()
    alone = learn(features_experiment(folder, bank="alone", **OTHER)).load()
    samples, _, tasks = features(features_experiment(folder), "test")
    mixed, old, new = (
        class_log_probs(version, samples, "oracle", tasks=tasks)
        for version in (grown, tiny.load(), alone)
    )
    last = torch.tensor(tasks) == 2
    torch.testing.assert_close(mixed[~last].exp(), old[~last].exp(), rtol=0, atol=1e-6)
    torch.testing.assert_close(mixed[last].exp(), new[last].exp(), rtol=0, atol=1e-6)
    for router in ROUTERS:
        assert class_log_probs(grown, samples, router, tasks=tasks).isfinite().any(dim=1).all()


def test_tasks_remember_the_settings_they_were_learned_with(
    luca: Luca, folder: Path, storage: str, tiny: Bank
) -> None:
    for source, name, l1 in (("tiny", "one", 0.01), ("one", "two", 0.02), ("two", "three", 0.0005)):
        file = experiment_file(folder, learning={"l1": l1})
        said = luca("bank", "fork", source, name, "--settings", file, "--storage", storage)
        assert said.code == 0, said.err
    two, three = (Bank.open(tiny.storage, name).load() for name in ("two", "three"))
    assert learned_with(two.tasks[0]) == {"learning.l1": 0.0005}
    assert settings_of(two, two.tasks[0]) == tiny.load().settings
    assert learned_with(three.tasks[0]) == {}
    assert three.digest == tiny.load().digest
    told = " ".join(luca("bank", "show", "two", "--storage", storage).out.split())
    assert "but task-00000, task-00001, task-00002 with learning.l1 0.0005" in told


def test_the_settings_of_before_are_said_to_be_so(luca: Luca, folder: Path, storage: str) -> None:
    file = experiment_file(folder)
    said = luca("bank", "fork", "tiny", "new", "--settings", file, "--storage", storage)
    assert "already" in said.out


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"luca": {"flow": "adapter"}}, "luca.flow"),
        ({"learning": {"objective": "unified"}}, "learning.objective"),
        ({"whitening": "none"}, "whitening"),
        ({"features": {"dtype": "float16"}}, "feature_dtype"),
        (
            {
                "evaluation": {
                    "routers": ["ridge"],
                    "router_options": {"ridge": {"random_features": 8}},
                }
            },
            "statistics.random_features",
        ),
    ],
)
def test_settings_that_could_not_predict_together_are_refused(
    luca: Luca, folder: Path, storage: str, tiny: Bank, changes: dict[str, Any], field: str
) -> None:
    file = experiment_file(folder, **changes)
    said = luca("bank", "fork", "tiny", "new", "--settings", file, "--storage", storage)
    assert said.code == 2
    assert f"cannot change {field}" in said.err
    assert Bank.names(tiny.storage) == ("tiny",)


def test_random_features_keep_their_seed_and_may_be_given_up(luca: Luca, folder: Path) -> None:
    ridge = {
        "evaluation": {
            "routers": ["lda", "ridge"],
            "router_options": {"ridge": {"random_features": 8}},
        }
    }
    experiment = features_experiment(folder, bank="random", **ridge)
    learn(experiment)
    given = ("--settings", experiment_file(folder, **ridge), "--storage", experiment.storage)
    said = luca("bank", "fork", "random", "new", *given, "-o", "seed=3")
    assert said.code == 2
    assert "cannot change seed" in said.err
    given_up = "evaluation.router_options.ridge.random_features=0"
    assert luca("bank", "fork", "random", "new", *given, "-o", given_up).code == 0


def test_forks_and_exports_remember_what_was_unlearned(
    luca: Luca, folder: Path, storage: str, tmp_path: Path
) -> None:
    given = ("--storage", storage)
    assert luca("bank", "unlearn", "tiny", "--task", "task-02", *given).code == 0
    luca("bank", "tag", "tiny", "latest", "kept", *given)
    assert luca("bank", "fork", "tiny", "new", *given).code == 0
    assert luca("bank", "export", "tiny", tmp_path / "x", *given).code == 0
    assert luca("bank", "import", tmp_path / "x", "back", *given).code == 0
    assert luca("bank", "gc", "tiny", "--keep-versions", 1, "--yes", *given).code == 0
    for name in ("tiny", "new", "back"):
        (item,) = json.loads(luca("bank", "show", name, *given, "--json").out)["unlearned"]
        assert (item["bank"], item["version"], item["task"]) == ("tiny", 4, "task-02")
        told = " ".join(luca("bank", "show", name, *given).out.split())
        assert "unlearned task 'task-02'" in told


def test_unlearning_says_what_still_holds_it(luca: Luca, storage: str, tiny: Bank) -> None:
    with BankWriter(tiny) as writer:
        writer.tag("production", 3)
    said = luca("bank", "unlearn", "tiny", "--task", "task-02", "--storage", storage)
    assert "exact" in said.out
    assert "tags that point there: production" in said.out
    label = tiny.load().classes[-1]
    said = luca("bank", "unlearn", "tiny", "--class", label, "--storage", storage)
    assert said.code == 0
    assert "keep its influence" in said.out
    assert label not in tiny.load().classes


def test_a_bank_that_unlearned_everything_can_be_shown_and_exported_but_not_forked(
    luca: Luca, folder: Path, tmp_path: Path
) -> None:
    experiment = features_experiment(folder, bank="one", stream={"classes_per_task": 6})
    learn(experiment)
    given = ("--storage", experiment.storage)
    assert luca("bank", "unlearn", "one", "--task", "task-01", *given).code == 0
    for command in (["show", "one"], ["audit", "one"], ["verify", "one"], ["list"]):
        assert luca("bank", *command, *given).code == 0, command
    assert luca("bank", "export", "one", tmp_path / "x", *given).code == 0
    assert luca("bank", "import", tmp_path / "x", "back", *given).code == 0
    said = luca("bank", "fork", "one", "new", *given)
    assert said.code == 2
    assert "holds no task" in said.err
