from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from pipelines.sources import files as files_module
from tests.pipelines.sources.data import groups, listing, png, source, travelled, write_images
from workers.errors import DataError, SettingsError


def test_class_folders_become_classes_with_a_fifth_of_each_kept_for_test(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 10, "dog": 5})
    found = listing(kind="image_folder", path=tmp_path)
    assert found.classes == ("cat", "dog")
    assert groups(found) == {
        ("train", "", "cat"): 8,
        ("test", "", "cat"): 2,
        ("train", "", "dog"): 4,
        ("test", "", "dog"): 1,
    }
    assert "20% of every class is kept for test" in found.warnings[0]


@pytest.mark.parametrize("held_out", ["test", "val", "validation"])
def test_split_folders_are_seen_from_their_names(tmp_path: Path, held_out: str) -> None:
    write_images(
        tmp_path, {"train/cat": 3, "train/dog": 2, f"{held_out}/cat": 1, f"{held_out}/dog": 1}
    )
    found = listing(kind="image_folder", path=tmp_path)
    assert groups(found) == {
        ("train", "", "cat"): 3,
        ("train", "", "dog"): 2,
        ("test", "", "cat"): 1,
        ("test", "", "dog"): 1,
    }
    assert "train/dog/001.png" in found.samples["id"].to_pylist()


def test_validation_images_beside_test_images_are_left_out_aloud(tmp_path: Path) -> None:
    write_images(tmp_path, {"train/cat": 3, "test/cat": 2, "val/cat": 1})
    found = listing(kind="image_folder", path=tmp_path)
    assert groups(found) == {("train", "", "cat"): 3, ("test", "", "cat"): 2}
    assert "left out 1 validation sample, " in found.warnings[0]
    assert len(found.warnings) == 1


def test_a_class_of_validation_images_alone_is_missed_aloud(tmp_path: Path) -> None:
    write_images(tmp_path, {"train/cat": 3, "test/cat": 2, "val/cat": 1, "val/dog": 2})
    found = listing(kind="image_folder", path=tmp_path)
    assert found.classes == ("cat",)
    assert "no class 'dog' in the stream" in found.warnings[1]


@pytest.mark.parametrize(
    "layout",
    [
        {"art/cat": 5, "photo/cat": 5},
        {"art/train/cat": 4, "art/test/cat": 1, "photo/train/cat": 4, "photo/test/cat": 1},
        {"train/art/cat": 4, "test/art/cat": 1, "train/photo/cat": 4, "test/photo/cat": 1},
    ],
)
def test_domain_folders_may_stand_above_or_below_split_folders(
    tmp_path: Path, layout: dict[str, int]
) -> None:
    write_images(tmp_path, layout)
    found = listing(kind="image_folder", path=tmp_path, domain_folders=True)
    assert groups(found) == {
        ("train", "art", "cat"): 4,
        ("test", "art", "cat"): 1,
        ("train", "photo", "cat"): 4,
        ("test", "photo", "cat"): 1,
    }


def test_a_class_may_be_called_train_when_the_settings_say_so(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 5, "test": 5})
    with pytest.raises(DataError, match="lies in no class folder"):
        listing(kind="image_folder", path=tmp_path)
    assert listing(kind="image_folder", path=tmp_path, split_folders=False).classes == (
        "test",
        "train",
    )


def test_a_class_called_train_beside_other_classes_is_a_class(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 5, "bus": 5})
    assert listing(kind="image_folder", path=tmp_path).classes == ("bus", "train")


def test_a_folder_beside_train_and_test_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, {"train/cat": 2, "test/cat": 1, "extras/cat": 1})
    with pytest.raises(DataError, match="'extras' stands beside train and test"):
        listing(kind="image_folder", path=tmp_path)


def test_unicode_and_path_like_class_names_stay_data(tmp_path: Path) -> None:
    names = ["猫", "c:\\windows", "-rf", "a;b", "<script>", "a..b", "über maß"]
    write_images(tmp_path, dict.fromkeys(names, 2))
    found = listing(kind="image_folder", path=tmp_path)
    assert set(found.classes) == set(names)


def test_class_names_are_the_same_on_file_systems_that_decompose_accents(tmp_path: Path) -> None:
    write_images(tmp_path, {"Cafe\u0301": 2})
    assert listing(kind="image_folder", path=tmp_path).classes == ("Caf\u00e9",)


def test_the_only_image_of_a_class_stays_in_train(tmp_path: Path) -> None:
    write_images(tmp_path, {"one": 1, "many": 5})
    found = groups(listing(kind="image_folder", path=tmp_path))
    assert found[("train", "", "one")] == 1
    assert ("test", "", "one") not in found


def test_the_listing_does_not_depend_on_where_the_folder_is_or_in_what_order_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "here", {"cat": 6, "dog": 4})
    before = listing(kind="image_folder", path=tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    scandir = os.scandir

    class Shuffled:
        def __init__(self, folder: str) -> None:
            self._entries = list(scandir(folder))
            random.Random(1).shuffle(self._entries)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self._entries

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(os, "scandir", Shuffled)
    after = listing(kind="image_folder", path=tmp_path / "there")
    assert before.samples.drop_columns(["location"]).equals(
        after.samples.drop_columns(["location"])
    )


def test_a_second_listing_reads_no_image_and_a_changed_image_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_images(tmp_path / "data", {"cat": 3, "dog": 3})
    settings = {"kind": "image_folder", "path": folder, "cache_dir": tmp_path / "index"}
    first = source(**settings).samples()
    read: list[str] = []
    original = files_module.read_bytes
    monkeypatch.setattr(
        files_module, "read_bytes", lambda root, at: read.append(at) or original(root, at)
    )
    assert source(**settings).samples().equals(first)
    assert read == []
    (folder / "cat" / "000.png").write_bytes(png(99) + b"!")
    changed = source(**settings).samples()
    assert read == [str(folder / "cat" / "000.png")]
    assert changed["content"][0] != first["content"][0]


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 3})
    settings = {"kind": "image_folder", "path": folder, "cache_dir": tmp_path / "index"}
    first = source(**settings).samples()
    (index,) = (tmp_path / "index").iterdir()
    index.write_bytes(index.read_bytes()[:50])
    assert source(**settings).samples().equals(first)


def test_the_reader_travels_and_returns_the_files_bytes(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 3})
    images = source(kind="image_folder", path=tmp_path)
    reader = travelled(images.reader())
    assert reader.kind == "images"
    assert reader.read(images.samples()) == [png(0), png(1), png(2)]


def test_an_image_that_changed_after_listing_is_not_read_as_the_old_one(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 2})
    images = source(kind="image_folder", path=tmp_path)
    samples = images.samples()
    (tmp_path / "cat" / "001.png").write_bytes(png(5))
    with pytest.raises(DataError, match=r"001\.png' has changed since it was listed"):
        images.reader().read(samples)


def test_files_that_are_no_images_are_left_out_aloud(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 3})
    (tmp_path / "cat" / "Thumbs.db").write_text("x")
    (tmp_path / "README").write_text("x")
    assert (
        "left out 2 files not an image" in listing(kind="image_folder", path=tmp_path).warnings[0]
    )


def test_hidden_images_are_left_out_aloud_and_other_hidden_files_in_silence(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 3, "dog": 3, ".hidden/deep": 2})
    (tmp_path / "cat" / "._000.png").write_bytes(b"of macOS")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").touch()
    (tmp_path / ".again").symlink_to(tmp_path)
    (told,) = [
        w for w in listing(kind="image_folder", path=tmp_path).warnings if "hidden files" in w
    ]
    assert "2 images in hidden files or folders" in told
    assert told.endswith("left out, such as '.hidden/deep/000.png'")
    assert listing(kind="image_folder", path=tmp_path).classes == ("cat", "dog")


def test_equal_images_in_train_and_test_are_worth_a_warning(tmp_path: Path) -> None:
    write_images(tmp_path, {"train/cat": 3, "test/cat": 3})
    (tmp_path / "test" / "cat" / "000.png").write_bytes(png(0))
    (tmp_path / "train" / "cat" / "002.png").write_bytes(png(1))
    warnings = listing(kind="image_folder", path=tmp_path).warnings
    assert "1 of 3 test samples also in training" in warnings[0]
    assert "1 training sample with the content" in warnings[1]


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        ({}, {}, "no images found"),
        ({"cat": 2, "dog": 0}, {}, "class folder 'dog' holds no image"),
        ({"train/cat": 2, "test/cat": 1, "test/dog": 1}, {}, "class is in test only.*'dog'"),
        ({"a/b": 2, "a/c": 2}, {}, r"deeper than a class folder.*domain_folders: true"),
        ({"cat": 2}, {"split_folders": True}, "no train folder"),
    ],
)
def test_folders_that_cannot_be_a_data_set_are_refused(
    tmp_path: Path, layout: dict[str, int], options: dict[str, bool], message: str
) -> None:
    write_images(tmp_path, layout)
    with pytest.raises(DataError, match=message):
        listing(kind="image_folder", path=tmp_path, **options)


def test_subfolders_of_a_class_can_be_merged_into_it(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat/one": 3, "cat/two": 2})
    found = listing(kind="image_folder", path=tmp_path, merge_subfolders=True)
    assert found.classes == ("cat",)
    assert found.samples.num_rows == 5


def test_a_test_fraction_contradicts_a_test_folder(tmp_path: Path) -> None:
    write_images(tmp_path, {"train/cat": 3, "test/cat": 3})
    with pytest.raises(SettingsError, match=r"test_fraction is 0\.5.*brings its own test"):
        listing(kind="image_folder", path=tmp_path, test_fraction=0.5)


def test_a_missing_folder_names_the_nearest_one_that_exists(tmp_path: Path) -> None:
    write_images(tmp_path, {"images/cat": 1})
    with pytest.raises(DataError) as error:
        listing(kind="image_folder", path=tmp_path / "imagse" / "deep")
    assert f"nearest folder that exists is '{tmp_path}', which holds 'images'" in str(error.value)


def test_an_image_of_zero_bytes_is_named(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 2})
    (tmp_path / "cat" / "empty.jpg").touch()
    with pytest.raises(DataError, match=r"cat/empty\.jpg': empty file \(0 bytes\)"):
        listing(kind="image_folder", path=tmp_path)


def test_a_link_that_leads_back_up_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 2})
    (tmp_path / "cat" / "again").symlink_to(tmp_path)
    with pytest.raises(DataError, match=r"symbolic link loop: .*again' leads back to"):
        listing(kind="image_folder", path=tmp_path)


def test_a_link_to_itself_or_to_nothing_is_named(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 2})
    (tmp_path / "cat" / "x.png").symlink_to(tmp_path / "cat" / "x.png")
    with pytest.raises(DataError, match=r"cannot read '.*x\.png': Too many levels"):
        listing(kind="image_folder", path=tmp_path)


@pytest.mark.parametrize("closed", ["images/cat", "images"])
def test_a_folder_that_this_user_may_not_read_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    write_images(tmp_path / "images", {"cat": 2})
    opened = os.scandir

    def scandir(folder: str) -> Any:
        if folder == str(tmp_path / closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return opened(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError) as caught:
        listing(kind="image_folder", path=tmp_path / "images")
    assert str(caught.value) == (
        f"cannot read '{tmp_path / closed}': Permission denied; this user may not read here: "
        "change the permissions or name data elsewhere"
    )


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    write_images(tmp_path, {"a": 2})
    os.mkfifo(tmp_path / "a" / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png' is a pipe"):
        listing(kind="image_folder", path=tmp_path)


def test_a_linked_class_folder_is_followed(tmp_path: Path) -> None:
    write_images(tmp_path / "data", {"cat": 2})
    write_images(tmp_path / "else", {"dog": 2}, first=50)
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "else" / "dog")
    assert listing(kind="image_folder", path=tmp_path / "data").classes == ("cat", "dog")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 2})
    os.close(os.open(os.fsencode(tmp_path) + b"/cat/\xff.png", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(DataError, match="not valid UTF-8"):
        listing(kind="image_folder", path=tmp_path)
