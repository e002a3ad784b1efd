"""`luca predict`: images and features in, class, task and confidences out."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import orchestrator
from orchestrator.commands.prediction_output import COLUMNS
from tests.orchestrator.commands.command_line import CommandLine
from tests.orchestrator.small_bank import (
    COLOURS,
    WIDTH,
    feature_rows,
    picture,
    write_features,
    write_pictures,
)


def png(colour: str, number: int) -> bytes:
    buffer = io.BytesIO()
    picture(colour, number).save(buffer, "PNG")
    return buffer.getvalue()


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pictures", each=2)


def test_images_come_out_with_class_task_and_confidences(
    typed: CommandLine, bank_storage: Path, pictures: Path
) -> None:
    done = typed(
        "predict", "--bank", "colours", "--storage", bank_storage, pictures, "--format", "csv"
    )
    assert done.code == 0
    rows = rows_of(done.out)
    assert tuple(rows[0]) == COLUMNS
    assert [row["id"] for row in rows] == sorted(str(p) for p in pictures.rglob("*.png"))
    for row in rows:
        assert row["class"] == Path(row["id"]).parent.name
        assert row["task"] == ("warm" if row["class"] in ("red", "yellow") else "cold")
        assert 0 < float(row["confidence"]) <= 1
        assert 0 < float(row["routing_confidence"]) <= 1
    assert "8 predictions" in done.err
    assert "bank colours version 2 with router lda" in done.err


def test_a_table_is_aligned_and_files_are_predicted_in_the_order_given(
    typed: CommandLine, bank_storage: Path, pictures: Path
) -> None:
    files = [pictures / "red/101.png", pictures / "blue/100.png"]
    done = typed("predict", "--bank", "colours", "--storage", bank_storage, *files)
    lines = done.out.splitlines()
    assert lines[0].split() == ["id", "class", "confidence", "task", "routing", "confidence"]
    assert [line.split()[:2] for line in lines[1:]] == [
        [str(files[0]), "red"],
        [str(files[1]), "blue"],
    ]
    assert lines[0].index("class") == lines[1].index("red ") == lines[2].index("blue ")


def test_json_lines_hold_what_the_api_gives(
    typed: CommandLine, bank_storage: Path, tmp_path: Path
) -> None:
    features = write_features(tmp_path / "f.parquet", [0, 1, 2, 3, 0, 2])
    done = typed(
        "predict", "-b", "vectors", "--storage", bank_storage, features, "--format", "jsonl"
    )
    found = [json.loads(line) for line in done.out.splitlines()]
    made = orchestrator.open_bank(bank_storage, "vectors").load()(
        feature_rows([0, 1, 2, 3, 0, 2], seed=1)
    )
    assert [row["class"] for row in found] == made.classes == ["a", "b", "c", "d", "a", "c"]
    assert [row["confidence"] for row in found] == made.confidence.tolist()
    assert [row["routing_confidence"] for row in found] == made.routing_confidence.tolist()
    assert [row["id"] for row in found] == [f"{features}:{row}" for row in range(6)]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_the_batch_size_changes_nothing(
    typed: CommandLine, bank_storage: Path, tmp_path: Path, size: int
) -> None:
    features = write_features(tmp_path / "f.parquet", [0, 1, 2, 3, 0, 2])
    common = ("predict", "-b", "vectors", "--storage", bank_storage, features, "--format", "csv")
    assert typed(*common, "--batch-size", size).out == typed(*common).out


def test_a_tag_or_a_version_is_predicted_with(
    typed: CommandLine, bank_storage: Path, tmp_path: Path
) -> None:
    features = write_features(tmp_path / "f.parquet", [3])
    common = ("--storage", bank_storage, features, "--format", "csv")
    tagged = typed("predict", "--bank", "vectors@production", *common)
    assert rows_of(tagged.out)[0]["class"] in ("a", "b")
    assert typed("predict", "--bank", "vectors@1", *common).out == tagged.out
    assert rows_of(typed("predict", "--bank", "vectors@latest", *common).out)[0]["class"] == "d"


def test_files_hold_the_same_in_every_format(
    typed: CommandLine, bank_storage: Path, tmp_path: Path
) -> None:
    features = write_features(tmp_path / "f.parquet", [0, 1, 2, 3])
    common = ("predict", "-b", "vectors", "--storage", bank_storage, features, "--output")
    for suffix in ("csv", "jsonl", "parquet"):
        done = typed(*common, tmp_path / f"out.{suffix}")
        assert (done.code, done.out) == (0, "")
    parquet = pq.read_table(tmp_path / "out.parquet").to_pylist()
    lines = [json.loads(x) for x in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert parquet == lines
    for row, exact in zip(rows_of((tmp_path / "out.csv").read_text()), parquet, strict=True):
        assert (row["id"], row["class"], row["task"]) == (
            exact["id"],
            exact["class"],
            exact["task"],
        )
        assert float(row["confidence"]) == pytest.approx(exact["confidence"], rel=1e-5)


def test_tables_of_images_are_predicted_by_their_ids(
    typed: CommandLine, bank_storage: Path, tmp_path: Path
) -> None:
    data = [{"bytes": png(colour, 70), "path": None} for colour in COLOURS]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"id": list("wxyz"), "picture": pa.array(data, kind)})
    pq.write_table(table, tmp_path / "images.parquet")
    done = typed("predict", "-b", "colours", "--storage", bank_storage, tmp_path, "--format", "csv")
    found = {row["id"]: row["class"] for row in rows_of(done.out)}
    assert found == dict(zip("wxyz", COLOURS, strict=True))


def test_names_with_commas_quotes_and_line_breaks_survive(
    typed: CommandLine, bank_storage: Path, tmp_path: Path
) -> None:
    name = 'a, "b"\nc é.png'
    picture("red", 5).save(tmp_path / name)
    common = ("predict", "-b", "colours", "--storage", bank_storage, tmp_path)
    assert rows_of(typed(*common, "--format", "csv").out)[0]["id"] == f"{tmp_path}/{name}"
    table = typed(*common).out
    assert len(table.splitlines()) == 2
    assert "\\n" in table


def test_an_unreadable_image_ends_it_and_is_named(
    typed: CommandLine, bank_storage: Path, pictures: Path, tmp_path: Path
) -> None:
    bad = pictures / "red/aaa.jpg"
    bad.write_bytes(b"a text file")
    output = tmp_path / "out.csv"
    output.write_text("as it was")
    sentence = typed.refused(
        "predict", "-b", "colours", "--storage", bank_storage, pictures, "--output", output
    )
    assert str(bad) in sentence
    assert "not in a known image format" in sentence
    assert "--skip-unreadable" in sentence
    assert output.read_text() == "as it was"
    assert {p.name for p in tmp_path.iterdir()} == {"pictures", "out.csv"}


def test_unreadable_images_can_be_skipped_and_are_counted(
    typed: CommandLine, bank_storage: Path, pictures: Path
) -> None:
    (pictures / "red/aaa.jpg").write_bytes(b"a text file")
    (pictures / "red/empty.png").write_bytes(b"")
    whole = (pictures / "blue/100.png").read_bytes()
    (pictures / "blue/cut.png").write_bytes(whole[: len(whole) // 2])
    done = typed(
        *("predict", "-b", "colours", "--storage", bank_storage, pictures),
        *("--format", "csv", "--skip-unreadable", "--batch-size", "2"),
    )
    assert done.code == 0
    assert len(rows_of(done.out)) == 8
    for name in ("aaa.jpg", "empty.png", "cut.png"):
        assert f"/{name}'" in done.err
    assert "8 predictions, 3 unreadable and skipped" in done.err


def test_files_that_are_no_images_are_left_out_with_a_word(
    typed: CommandLine, bank_storage: Path, pictures: Path
) -> None:
    (pictures / "notes.txt").write_text("notes")
    done = typed("predict", "-b", "colours", "--storage", bank_storage, pictures)
    assert done.code == 0
    assert "left out 1 file, neither image nor table" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bank", "colors", "P"], ["no bank 'colors'", "colours, vectors"]),
        (["--bank", "colours@staging", "P"], ["no tag 'staging'", "production"]),
        (["--bank", "colours@7", "P"], ["no version 7"]),
        (["--bank", f"colours@{'9' * 5000}", "P"], ["no version 999"]),
        (["--bank", "colours@\u0661", "P"], ["\u0661"]),
        (["--bank", "colours@", "P"], ["names no version"]),
        (["--bank", "colours", "P", "--output", f"{'o' * 300}.csv"], ["cannot be written"]),
        (["--bank", "colours", "P/nothing"], ["no file or folder", "the nearest folder"]),
        (["--bank", "colours", "P", "--router", "lad"], ["no router 'lad'", "'lda'"]),
        (["--bank", "colours", "P", "--router", "oracle"], ["true task"]),
        (["--bank", "colours", "P", "--router", "batch_entropy"], ["its neighbours"]),
        (["--bank", "colours", "P", "--weights", "W"], ["'W' does not exist"]),
        (["--bank", "colours", "P", "--weights", "random"], ["the weights differ"]),
        (["--bank", "colours", "P", "--backbone", "vit_nano"], ["not in timm"]),
        (["--bank", "colours", "P", "--device", "tpu"], ["device 'tpu' is unknown"]),
        (["--bank", "colours", "P", "--format", "xml"], ["table, csv or jsonl"]),
        (["--bank", "colours", "P", "--output", "o.xlsx"], [".csv, .jsonl, .parquet"]),
        (["--bank", "colours", "P", "--output", "P/../no/o.csv"], ["cannot be written"]),
        (["--bank", "colours", "P", "--output", "o.csv", "--format", "csv"], ["--output says"]),
        (["--bank", "vectors", "P"], ["is an image", "ready features of width 6"]),
    ],
)
def test_mistakes_end_in_one_sentence_that_says_what_would_do(
    typed: CommandLine,
    bank_storage: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(pictures.parent)
    given = [str(pictures) + a[1:] if a == "P" or a.startswith("P/") else a for a in arguments]
    sentence = typed.refused("predict", "--storage", bank_storage, *given)
    for word in words:
        assert word in sentence
    assert sorted(os.listdir(pictures.parent)) == ["pictures"]


def test_an_empty_folder_is_refused(typed: CommandLine, bank_storage: Path, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    sentence = typed.refused("predict", "-b", "colours", "--storage", bank_storage, tmp_path)
    assert "no image and no Parquet or Arrow file" in sentence


def test_a_link_that_leads_back_up_is_refused(
    typed: CommandLine, bank_storage: Path, pictures: Path
) -> None:
    (pictures / "red/again").symlink_to(pictures)
    sentence = typed.refused("predict", "-b", "colours", "--storage", bank_storage, pictures)
    assert "symbolic link loop" in sentence


def test_a_storage_without_banks_says_so(
    typed: CommandLine, pictures: Path, tmp_path: Path
) -> None:
    sentence = typed.refused("predict", "-b", "x", "--storage", tmp_path / "none", pictures)
    assert "none yet" in sentence
    assert not (tmp_path / "none").exists()


def table_of(tmp_path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_features_that_do_not_fit_are_refused_and_named(
    typed: CommandLine, bank_storage: Path, tmp_path: Path
) -> None:
    common = ("predict", "-b", "vectors", "--storage", bank_storage)
    wide = write_features(tmp_path / "wide.parquet", [0], width=WIDTH + 2)
    assert "width 8, and bank 'vectors' was learned on width 6" in typed.refused(*common, wide)
    lists = table_of(tmp_path, feature=pa.array([[1.0] * 5]))
    assert "width 5, and bank 'vectors'" in typed.refused(*common, lists)
    infinite = table_of(tmp_path, feature=pa.array([[1.0] * 6, [float("inf")] * 6]))
    assert "inf in row 1" in typed.refused(*common, infinite)
    other = table_of(tmp_path, vector=[[1.0] * 6], name=["x"])
    sentence = typed.refused(*common, other)
    assert "no column 'feature'" in sentence
    assert "vector, name" in sentence
    found = typed(*common, other, "--feature-column", "vector", "--format", "csv")
    assert len(rows_of(found.out)) == 1
    empty = table_of(tmp_path, feature=pa.array([], pa.list_(pa.float32(), 6)))
    assert "have no rows" in typed.refused(*common, empty)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and nothing else")
    assert "cannot be read as Parquet" in typed.refused(*common, broken)
