"""Experiments: presets, overrides, recipes, and what a user is told about a mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.experiment import Experiment, merge
from orchestrator.experiment_files import (
    apply_overrides,
    load_experiment,
    parse_experiment,
    preset_names,
)
from workers.errors import SettingsError

MINIMAL: dict[str, Any] = {
    "name": "tiny",
    "stream": {"scenario": "class_incremental", "classes_per_task": 2, "source": {"kind": "demo"}},
}


def refusal(source: str = "demo", *overrides: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_experiment(source, overrides)
    return str(caught.value)


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_is_valid(preset: str) -> None:
    path = [] if preset == "demo" else ["stream.source.path=/data"]
    assert load_experiment(preset, path).name


def test_an_experiment_survives_being_written_and_read(tmp_path: Path) -> None:
    experiment = load_experiment("demo", ["seed=7", "luca.ratio=8", "bank='1e5'"])
    file = tmp_path / "again.yaml"
    file.write_text(experiment.to_yaml())
    assert load_experiment(str(file)) == experiment


def test_a_file_without_a_name_is_named_after_itself(tmp_path: Path) -> None:
    file = tmp_path / "birds.yaml"
    file.write_text(yaml.safe_dump({"stream": MINIMAL["stream"]}))
    assert load_experiment(str(file)).name == "birds"


def test_a_recipe_lies_under_explicit_keys() -> None:
    experiment = load_experiment("demo", ["recipe=tosca", "learning.l1=0.001"])
    assert experiment.learning.objective == "unified"
    assert experiment.learning.l1 == 0.001
    assert experiment.whitening == "none"


def test_a_recipe_may_say_how_to_predict() -> None:
    experiment = load_experiment("demo", ["recipe=refined"])
    assert experiment.evaluation.routers[0] == "lda_ridge"
    assert experiment.evaluation.combination == "refine"
    assert experiment.evaluation.random_features == 2000
    changed = load_experiment("demo", ["recipe=refined", "evaluation.combination=joint"])
    assert (changed.evaluation.routers, changed.evaluation.combination) == (
        experiment.evaluation.routers,
        "joint",
    )


def test_recipe_refined_learns_what_local_learns_and_collects_random_features() -> None:
    local = load_experiment("demo", []).learning_identity()
    refined = load_experiment("demo", ["recipe=refined"]).learning_identity()
    assert refined.pop("statistics") == {**local.pop("statistics"), "random_features": 2000}
    assert refined == local


def test_overrides_replace_scalars_and_lists_and_merge_mappings() -> None:
    data = {"a": {"b": 1, "c": [1, 2]}, "d": 4}
    changed = apply_overrides(data, ["a.c=[3]", "a={b: 5}", "d.e=6", "f=null"])
    assert changed == {"a": {"b": 5, "c": [3]}, "d": {"e": 6}, "f": None}
    assert data == {"a": {"b": 1, "c": [1, 2]}, "d": 4}


def test_a_misspelt_key_is_named_with_the_nearest_valid_one() -> None:
    message = refusal("demo", "stream.clases_per_task=3")
    assert "'stream.clases_per_task'" in message
    assert "'classes_per_task'" in message
    assert "class_incremental" not in message


def test_a_key_in_the_wrong_place_is_pointed_to_the_right_one() -> None:
    assert "'features.views'" in refusal("demo", "views=4")


def test_an_unknown_preset_names_the_presets_and_the_nearest() -> None:
    message = refusal("demoo")
    assert "did you mean 'demo'" in message
    assert "cifar100_inc5" in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=abc", ["seed", "'abc'"]),
        ("recipe=toska", ["'toska'", "'tosca'"]),
        ("stream.scenario=class_incremantal", ["'class_incremantal'", "'class_incremental'"]),
        ("stream.source.kind=demmo", ["'demmo'", "'demo'"]),
        ("learning.epochs=0", ["learning.epochs"]),
        ("name=../up", ["name"]),
        ("bank=a/b", ["bank"]),
        ("evaluation.routers=[ldaa]", ["ldaa", "lda"]),
        ("seed", ["key=value"]),
        ("=3", ["key=value"]),
        ("seed=[1", ["YAML"]),
        ("storage=", ["storage"]),
        ("gate.min_accuracy=0.5", ["validation_fraction"]),
        ("learning.l1=.inf", ["learning.l1"]),
        ("recipe=[tosca]", ["recipe", "['tosca']", "local"]),
        ("recipe={tosca: 1}", ["recipe", "local"]),
        ("seed=2020-99-99", ["seed=2020-99-99", "YAML"]),
        ("learning=fast", ["learning: input should be a mapping of settings", "'fast'"]),
        ("stream=5", ["stream: input should be a mapping of settings"]),
        ("cluster.shards=0", ["-o cluster.shards=0: cluster.shards: input should be", "found 0"]),
        ("search.foo=1", ["unknown key 'search.foo'", "did you mean 'search."]),
        ("x" * 5000 + "=1", ["unknown key", "known here"]),
    ],
)
def test_a_mistake_is_one_sentence_that_names_field_and_value(
    override: str, words: list[str]
) -> None:
    message = refusal("demo", override)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=true", "seed: input should be a whole number, found true"),
        ("seed='7'", "found '7' (write it without quotes)"),
        ("seed=7.0", "seed: input should be a whole number, found 7.0"),
        ("features.tolerate_unreadable=yes", "a whole number, found true"),
        ("learning.l1=true", "learning.l1: input should be a number, found true"),
        ("learning.l1='1e-3'", "a number, found '1e-3' (write it without quotes)"),
        ("learning.epochs=null", "a whole number, found null"),
        ("stream.validation_fraction=false", "a number, found false"),
        ("tracking.tensorboard=1", "input should be true or false, found 1"),
        ("tracking.tensorboard='true'", "found 'true' (write it without quotes)"),
        ("bank=2024", "bank: input should be text, found 2024 (put text in quotes)"),
        ("name=2020-01-01", "name: input should be text, found 2020-01-01 (put text in"),
        ("stream.class_order=[1, 2]", "stream.class_order.0: input should be text, found 1"),
        ("stream.source={kind: image_folder, path: 5}", "stream.source.path: input should be text"),
        ("evaluation.routers=lda", "a list, found 'lda' (one value is written [lda])"),
        ("cluster.gpus_per_shard=true", "input should be a number or 'auto', found true"),
        ("evaluation.router_options.lda.shrinkage='x'", "evaluation.router_options.lda.shrinkage"),
        ("search.space={learning.l1: {low: 0.1, high: true}}", "high should be a number"),
    ],
)
def test_a_value_of_another_type_is_refused_and_never_converted(override: str, words: str) -> None:
    message = refusal("demo", override)
    assert words in message
    assert "more after this one" not in message or "class_order" in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("evaluation.router_options.lda.shrinkage=-1", "greater than or equal to 0"),
        ("evaluation.router_options.lda_ridge.lda.shrinkage=3.5", "less than or equal to 1"),
        ("evaluation.router_options.batch_entropy_shuffled.seed=4294967296", "less than"),
        ("evaluation.baseline_options.ranpac.random_features=3000000", "100000"),
        ("learning.epochs=10000000000", "1000000"),
        ("luca.adapter_rank=3000000000", "65536"),
        ("learning.learning_rate=1e300", "numbers go up to 1e+30"),
        ("learning.l1=-1e300", "greater than or equal to 0"),
        ("evaluation.router_options.lda.temperature=1e-300", "go down to 1e-30"),
        (f"learning.batch_size={10**26}", "whole numbers go up to 9007199254740992"),
    ],
)
def test_a_number_that_cannot_be_calculated_with_is_refused(override: str, words: str) -> None:
    message = refusal("demo", override)
    assert words in message
    assert f"-o {override}: {override.partition('=')[0]}: " in message


@pytest.mark.parametrize(
    ("overrides", "blamed"),
    [
        (["seed=abc"], "-o seed=abc: seed: "),
        (["seed=abc", "seed=7"], "FILE: learning.epochs: "),
        (["seed=1", "seed=b"], "-o seed=b: seed: "),
        (["learning={l1: 0.1}"], "FILE: learning.epochs: "),
        (["learning={epochs: -2}"], "-o learning={epochs: -2}: learning.epochs: "),
        (["learning.epochs=1", "recipe=toska"], "-o recipe=toska: recipe: unknown recipe"),
        (["sed=1"], "-o sed=1: unknown key 'sed'"),
        (["gate.x.y=1"], "-o gate.x.y=1: unknown key 'gate.x'"),
        (["learning.epochs=1", "stream.source.kind=x"], "-o stream.source.kind=x: stream.source."),
        (
            ["learning.epochs=1", "evaluation.routers=[lda, ldaa]"],
            "-o evaluation.routers=[lda, ldaa]: evaluation.routers: there is no router",
        ),
        ([f"seed={'x' * 500}"], f"-o seed={'x' * 72}...: seed: "),
    ],
)
def test_a_mistake_is_blamed_on_the_override_that_made_it(
    tmp_path: Path, overrides: list[str], blamed: str
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({**MINIMAL, "learning": {"epochs": 0}}))
    assert refusal(str(file), *overrides).startswith(blamed.replace("FILE", str(file)))


@pytest.mark.parametrize(
    ("override", "ending"),
    [
        ("evaluation.routers=[ldaa]", "did you mean 'lda'? (found ['ldaa'])"),
        (
            "stream.source={kind: image_folder, path: null}",
            "say where the data are: -o stream.source.path=PATH (found null)",
        ),
    ],
)
def test_what_was_found_stands_apart_from_a_sentence_of_our_own(override: str, ending: str) -> None:
    assert refusal("demo", override).endswith(ending)


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}")]
    return [(path[1:], value)]


EVERY_FIELD = _leaves(
    load_experiment("demo").model_dump(mode="json", exclude={"search": {"space"}})
)


@pytest.mark.parametrize("wrong", [True, "true", "3"])
def test_no_field_takes_a_boolean_for_a_number_or_text_for_either(wrong: object) -> None:
    taken = []
    for path, value in EVERY_FIELD:
        if value is None or isinstance(value, (list, type(wrong))):
            continue
        try:
            load_experiment("demo", [f"{path}={json.dumps(wrong)}"])
        except SettingsError:
            continue
        taken.append(path)
    assert taken == []


@pytest.mark.parametrize("huge", [10**31, 1e300, -(10**31), -1e300])
def test_no_field_takes_a_number_beyond_all_tensors(huge: float) -> None:
    taken = []
    for path, value in EVERY_FIELD:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        try:
            load_experiment("demo", [f"{path}={huge}"])
        except SettingsError:
            continue
        taken.append(path)
    assert taken == []


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", "0.001", "+1e-3", ".001"])
def test_numbers_are_read_in_every_usual_spelling(text: str) -> None:
    assert load_experiment("demo", [f"learning.l1={text}"]).learning.l1 == 0.001


def test_a_whole_number_serves_as_a_real_one() -> None:
    assert load_experiment("demo", ["learning.l1=1"]).learning.l1 == 1.0


def test_a_key_of_another_kind_is_said_to_be_one() -> None:
    message = refusal("demo", "stream.source.path=x")
    assert "only other kinds of it have this key, known here: kind" in message


def test_yaml_that_cannot_be_parsed_is_told_by_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nstream: [1,\n")
    assert "line" in refusal(str(file))


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b", "a\nb", ""])
def test_a_name_that_no_file_can_have_is_a_missing_file(source: str) -> None:
    message = refusal(source)
    assert "there is no experiment file or preset" in message
    assert "\n" not in message


def test_for_a_folder_the_command_that_writes_an_experiment_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "my pictures"
    folder.mkdir()
    message = refusal(str(folder))
    assert f"'{folder}' is a folder" in message
    assert f"`luca init '{folder}'` writes an experiment file" in message


def test_a_value_that_anchors_blow_up_is_shown_in_part(tmp_path: Path) -> None:
    levels = ["&a0 [x, x, x, x, x, x, x, x]"]
    levels += [f"&a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 12)]
    file = tmp_path / "laughs.yaml"
    file.write_text(yaml.safe_dump(MINIMAL) + f"description: [{', '.join(levels)}]\n")
    assert "description: input should be text" in refusal(str(file))


def test_a_key_written_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text(yaml.safe_dump(MINIMAL) + "seed: 1\nseed: 2\n")
    assert "the key 'seed' stands there twice" in refusal(str(file))


def test_a_list_is_no_experiment(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("- 1\n")
    assert "a list" in refusal(str(file))


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_text("\ufeff" + yaml.safe_dump(MINIMAL), encoding="utf-8")
    assert load_experiment(str(file)).name == "tiny"


def test_the_run_id_follows_what_is_measured_and_nothing_else() -> None:
    first = load_experiment("demo")
    assert (
        load_experiment("demo", ["storage=/elsewhere", "cluster.shards=3"]).run_id == first.run_id
    )
    assert load_experiment("demo", ["seed=5"]).run_id != first.run_id


def test_the_learning_identity_ignores_how_a_bank_is_scored() -> None:
    first = load_experiment("demo").learning_identity()
    assert load_experiment("demo", ["evaluation.combination=hard"]).learning_identity() == first
    assert load_experiment("demo", ["learning.l1=0.01"]).learning_identity() != first


def test_unknown_keys_win_over_other_mistakes() -> None:
    data = merge(MINIMAL, {"seed": "x", "lerning": {}})
    with pytest.raises(SettingsError, match=r"'lerning'.*'learning'"):
        parse_experiment(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(st.text("abc", min_size=1, max_size=2), json_values, max_size=3)


@given(mappings, mappings)
@settings(max_examples=30, deadline=None)
def test_merging_keeps_every_key_and_prefers_the_upper(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    merged = merge(base, over)
    assert set(merged) == set(base) | set(over)
    for key, value in over.items():
        if not isinstance(value, dict) or not isinstance(base.get(key), dict):
            assert merged[key] == value


def test_experiments_cannot_be_changed() -> None:
    experiment = parse_experiment(MINIMAL)
    assert isinstance(experiment, Experiment)
    with pytest.raises(Exception, match="frozen"):
        experiment.seed = 3  # type: ignore[misc]
