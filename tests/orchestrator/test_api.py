"""The Python API: a version of a bank, called on batches."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

import orchestrator
from orchestrator.experiment_files import load_experiment
from tests.orchestrator.small_bank import (
    COLOURS,
    WIDTH,
    feature_rows,
    picture,
    picture_bank,
    write_pictures,
)
from workers.errors import BackboneError, BankError, DataError, SettingsError
from workers.loading import TensorLoader
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.predictor import Predictor
from workers.storage.bank_copy import fork_bank
from workers.storage.bank_writer import BankWriter


def encoded(colour: str, number: int) -> bytes:
    buffer = io.BytesIO()
    picture(colour, number).save(buffer, "PNG")
    return buffer.getvalue()


def test_features_are_predicted_by_class_and_task_name(bank_storage: Path) -> None:
    model = orchestrator.open_bank(bank_storage, "vectors").load()
    made = model(feature_rows([0, 1, 2, 3], seed=99))
    assert made.classes == ["a", "b", "c", "d"]
    assert made.tasks == ["first", "first", "second", "second"]
    assert len(made) == 4
    assert made.class_index.dtype == torch.int64
    assert bool(((made.confidence > 0.4) & (made.confidence <= 1)).all())


@pytest.mark.parametrize("router", ["lda", "entropy", "prototype", "batch_entropy"])
def test_results_equal_the_evaluators(bank_storage: Path, router: str) -> None:
    bank = orchestrator.open_bank(bank_storage, "vectors")
    features = feature_rows([0, 1, 2, 3] * 10, seed=5)
    tensors = TensorLoader().load(bank.bank.load())
    expected = Predictor(tensors, EvaluationSettings(), router).predict(features)
    made = bank.load(router=router)(features)
    assert torch.equal(made.class_index, expected.class_index)
    assert torch.equal(made.task_index, expected.task_index)
    assert torch.equal(made.confidence, expected.confidence)
    assert torch.equal(made.routing_confidence, expected.routing_confidence)


def test_a_tag_a_number_and_latest_load_their_versions(bank_storage: Path) -> None:
    bank = orchestrator.open_bank(bank_storage, "vectors")
    assert bank.versions() == (1, 2)
    assert bank.tags() == {"latest": 2, "production": 1}
    assert bank.load("production").class_names == ("a", "b")
    assert bank.load(1).class_names == ("a", "b")
    assert bank.load().class_names == ("a", "b", "c", "d")


def test_pictures_are_predicted_alike_in_every_form(bank_storage: Path, tmp_path: Path) -> None:
    model = orchestrator.open_bank(bank_storage, "colours").load()
    pictures = [picture(colour, 60) for colour in COLOURS]
    for colour, image in zip(COLOURS, pictures, strict=True):
        image.save(tmp_path / f"{colour}.png")
    expected = model(pictures)
    assert expected.classes == list(COLOURS)
    forms = {
        "bytes": [encoded(colour, 60) for colour in COLOURS],
        "paths": [tmp_path / f"{colour}.png" for colour in COLOURS],
        "names": [str(tmp_path / f"{colour}.png") for colour in COLOURS],
    }
    for images in forms.values():
        assert torch.equal(model(images).confidence, expected.confidence)
    small = [image.resize((32, 32)) for image in pictures]
    stacked = torch.stack(
        [torch.tensor(list(i.tobytes())).reshape(32, 32, 3).permute(2, 0, 1) for i in small]
    ).to(torch.uint8)
    by_list = model(small)
    torch.testing.assert_close(model(stacked).confidence, by_list.confidence)
    torch.testing.assert_close(model(stacked / 255).confidence, by_list.confidence)


def test_an_empty_batch_gives_no_predictions(bank_storage: Path) -> None:
    bank = orchestrator.open_bank(bank_storage, "colours")
    assert len(bank.load()([])) == 0
    assert len(orchestrator.open_bank(bank_storage, "vectors").load()(torch.zeros(0, WIDTH))) == 0


def test_features_are_rounded_as_the_bank_was_taught(bank_storage: Path) -> None:
    model = orchestrator.open_bank(bank_storage, "vectors").load()
    model._dtype = "float16"
    features = feature_rows([0, 3], seed=8)
    made = model(features)
    assert torch.equal(made.confidence, model(features.half().float()).confidence)
    assert not torch.equal(
        made.confidence,
        orchestrator.open_bank(bank_storage, "vectors").load()(features).confidence,
    )


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (torch.zeros(2, WIDTH + 1), r"shape \(2, 7\).*width 6"),
        (torch.full((1, WIDTH), torch.nan), "NaN"),
        (torch.zeros(2, 3, 32, 32), "has no backbone for images"),
        ([b"nothing"], "has no backbone for images"),
    ],
)
def test_batches_that_do_not_fit_a_bank_of_features_are_refused(
    bank_storage: Path, batch: object, sentence: str
) -> None:
    model = orchestrator.open_bank(bank_storage, "vectors").load()
    with pytest.raises((DataError, BackboneError), match=sentence):
        model(batch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (torch.zeros(2, 3, 16, 16), r"neither features \[n, 192\] nor pictures \[n, 3, 32, 32\]"),
        (torch.full((1, 3, 32, 32), 2.0), "0..1, found 2 to 2"),
        ([b"not an image"], "at position 0.* not in a known image format"),
        (["/no/such.png"], "cannot read '/no/such.png'"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(
    bank_storage: Path, batch: object, sentence: str
) -> None:
    model = orchestrator.open_bank(bank_storage, "colours").load()
    with pytest.raises(DataError, match=sentence):
        model(batch)  # type: ignore[arg-type]


def test_another_backbone_than_the_recorded_one_is_refused(bank_storage: Path) -> None:
    bank = orchestrator.open_bank(bank_storage, "colours")
    with pytest.raises(BackboneError, match=r"the weights differ.*--weights PATH"):
        _ = bank.load(weights="random").backbone
    with pytest.raises(BackboneError, match="does not exist"):
        _ = bank.load(weights="/no/weights.pth").backbone


def test_unknown_banks_versions_and_routers_are_refused_with_what_there_is(
    bank_storage: Path,
) -> None:
    with pytest.raises(BankError, match=r"no bank 'colors'.*colours, vectors"):
        orchestrator.open_bank(bank_storage, "colors")
    bank = orchestrator.open_bank(bank_storage, "vectors")
    with pytest.raises(BankError, match=r"no tag 'staging'.*production"):
        bank.load("staging")
    with pytest.raises(BankError, match="no version 9"):
        bank.load(9)
    with pytest.raises(SettingsError, match=r"'ldaa'.*did you mean 'lda'"):
        bank.load(router="ldaa")
    with pytest.raises(SettingsError, match=r"oracle.*true task.*lda"):
        bank.load(router="oracle")


def test_the_run_that_made_a_version_decides_how_it_predicts(tmp_path: Path) -> None:
    experiment = load_experiment(
        "demo", ["evaluation.routers=[oracle,batch_entropy,entropy]", "evaluation.combination=hard"]
    )
    picture_bank(tmp_path, defaults=experiment.prediction_defaults())
    bank = orchestrator.open_bank(tmp_path, "colours")
    model = bank.load()
    assert model.router == "entropy"
    assert model._predictor.combination == "hard"
    assert bank.load(router="lda").router == "lda"
    fork_bank(bank.bank.load(), "forked")
    assert orchestrator.open_bank(tmp_path, "forked").load().router == "entropy"
    with BankWriter(bank.bank) as writer:
        rolled_back = writer.rollback(1)
    assert bank.load(rolled_back.version).router == "entropy"


@pytest.mark.parametrize("noted", [{}, {"evaluation": {"routers": ["of another release"]}}])
def test_a_version_that_notes_no_usable_defaults_is_predicted_with_those_of_the_program(
    tmp_path: Path, noted: dict[str, object]
) -> None:
    picture_bank(tmp_path, defaults=noted)
    assert orchestrator.open_bank(tmp_path, "colours").load().router == "lda"


def test_a_folder_of_pictures_streams_in_small_batches(bank_storage: Path, tmp_path: Path) -> None:
    from pipelines.unlabelled import find_inputs

    write_pictures(tmp_path, each=5)
    model = orchestrator.open_bank(bank_storage, "colours").load()
    inputs, notes = find_inputs([str(tmp_path)])
    pieces = list(model.predict_inputs(inputs, batch_size=3, unreadable=pytest.fail))
    assert notes == []
    assert [len(ids) for ids, _ in pieces] == [3, 3, 3, 3, 3, 3, 2]
    whole = [name for ids, _ in pieces for name in ids]
    assert whole == sorted(whole)
    expected = [Path(name).parent.name for name in whole]
    assert [c for _, made in pieces for c in made.classes] == expected
