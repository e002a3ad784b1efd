from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.sources.cifar import _unpickle
from tests.pipelines.sources.data import groups, listing, source, travelled
from workers.errors import DataError

Batches = dict[str, dict[Any, Any]]


def pixels(count: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (count, 3072)).astype(np.uint8)


def cifar100() -> Batches:
    return {
        "train": {
            b"data": pixels(6, 1),
            b"fine_labels": [0, 1, 2, 0, 1, 2],
            b"coarse_labels": [0, 0, 1, 0, 0, 1],
            b"filenames": [b"x.png"] * 6,
        },
        "test": {b"data": pixels(3, 2), b"fine_labels": [2, 1, 0], b"coarse_labels": [1, 0, 0]},
        "meta": {
            b"fine_label_names": [b"wolf", b"apple", b"bee"],
            b"coarse_label_names": [b"mammals", b"other"],
        },
    }


def cifar10() -> Batches:
    batches: Batches = {
        f"data_batch_{number}": {"data": pixels(2, number), "labels": [0, 1]}
        for number in range(1, 6)
    }
    batches["test_batch"] = {"data": pixels(2, 9), "labels": [1, 0]}
    batches["batches.meta"] = {"label_names": ["airplane", "bird"]}
    return batches


def write_folder(root: Path, batches: Batches, protocol: int = 2) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, batch in batches.items():
        (root / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    return root


def write_archive(path: Path, batches: Batches) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, batch in batches.items():
            data = pickle.dumps(batch, protocol=2)
            member = tarfile.TarInfo(f"cifar-python/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_cifar_100_is_read_in_the_order_of_its_numbers(tmp_path: Path, protocol: int) -> None:
    write_folder(tmp_path / "cifar-100-python", cifar100(), protocol)
    found = listing(kind="cifar", path=tmp_path)
    assert found.classes == ("wolf", "apple", "bee")
    assert groups(found) == {
        **{("train", "", name): 2 for name in found.classes},
        **{("test", "", name): 1 for name in found.classes},
    }


def test_the_archive_and_the_extracted_folder_hold_the_same_samples(tmp_path: Path) -> None:
    folder = listing(kind="cifar", path=write_folder(tmp_path / "f", cifar10()))
    archive = listing(kind="cifar", path=write_archive(tmp_path / "a.tar.gz", cifar10()))
    assert folder.classes == ("airplane", "bird")
    assert folder.samples.num_rows == 12
    assert folder.samples.drop_columns(["location"]).equals(
        archive.samples.drop_columns(["location"])
    )


def test_superclasses_can_be_the_labels(tmp_path: Path) -> None:
    write_folder(tmp_path, cifar100())
    assert listing(kind="cifar", path=tmp_path, labels="coarse").classes == ("mammals", "other")


@pytest.mark.parametrize("packed", [True, False])
def test_images_are_read_as_red_green_blue_planes(tmp_path: Path, packed: bool) -> None:
    write = write_archive if packed else write_folder
    images = source(kind="cifar", path=write(tmp_path / "data", cifar100()))
    reader = travelled(images.reader())
    samples = images.samples()
    (image,) = reader.read(samples.filter(np.array(samples["id"].to_pylist()) == "train/00004"))
    expected = pixels(6, 1)[4].reshape(3, 32, 32)
    np.testing.assert_array_equal(np.asarray(image), np.moveaxis(expected, 0, 2))


class Malicious:
    def __init__(self, reduced: tuple[Any, ...]) -> None:
        self._reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


@pytest.mark.parametrize("call", [os.system, eval, getattr, np.load, os.mkdir])
def test_code_in_a_pickle_is_not_run(tmp_path: Path, call: Any) -> None:
    target = tmp_path / "ran"
    batches = cifar100()
    batches["train"][b"data"] = Malicious((call, (f"{target}",)))
    write_folder(tmp_path / "data", batches)
    with pytest.raises(DataError, match=r"it names .*, which CIFAR files do not"):
        listing(kind="cifar", path=tmp_path / "data")
    assert not target.exists()


@pytest.mark.parametrize(
    "attack",
    [
        b"cnumpy\nndarray\n}(V__setstate__\nK\x01ub.",
        b"cnumpy.core.multiarray\n_reconstruct\n}(V_build\ncnumpy\ndtype\nub.",
        b"cnumpy\ndtype\n)\x81.",
        b"cnumpy\ndtype\n(Vu1\ntRK\x01b.",
        b"\x80\x02]q\x00.",
        b"",
        b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    ],
)
def test_crafted_pickles_are_refused_and_change_nothing(attack: bytes) -> None:
    with pytest.raises(DataError, match="no file of CIFAR's python version"):
        _unpickle("attack", attack)
    assert _unpickle("fine", pickle.dumps({"data": pixels(1, 0)}))["data"].shape == (1, 3072)


def test_missing_and_inconsistent_files_are_named(tmp_path: Path) -> None:
    batches = cifar10()
    del batches["data_batch_3"]
    with pytest.raises(DataError, match="'data_batch_3' is missing"):
        listing(kind="cifar", path=write_folder(tmp_path / "a", batches))
    batches = cifar100()
    batches["test"][b"fine_labels"] = [0, 1, 7]
    with pytest.raises(DataError, match="test has labels beyond the 3 names"):
        listing(kind="cifar", path=write_folder(tmp_path / "b", batches))
    batches["test"][b"fine_labels"] = [0]
    with pytest.raises(DataError, match="needs one of 'fine_labels' for each of its 3 images"):
        listing(kind="cifar", path=write_folder(tmp_path / "c", batches))
    batches["test"][b"data"] = pixels(3, 2)[:, :100]
    with pytest.raises(DataError, match="no 'data' of n x 3072 bytes"):
        listing(kind="cifar", path=write_folder(tmp_path / "d", batches))
    with pytest.raises(DataError, match="CIFAR-10, which has no coarse labels"):
        listing(kind="cifar", path=write_folder(tmp_path / "e", cifar10()), labels="coarse")


def test_what_is_no_archive_of_cifar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"not a tar archive at all")
    with pytest.raises(DataError, match="cannot be read as a tar archive"):
        listing(kind="cifar", path=tmp_path / "x.tar.gz")
    write_archive(tmp_path / "cut.tar.gz", cifar100())
    whole = (tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read as a tar archive"):
        listing(kind="cifar", path=tmp_path / "cut.tar.gz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="neither CIFAR-10"):
        listing(kind="cifar", path=tmp_path / "empty")
    with pytest.raises(DataError, match="no archive or folder"):
        listing(kind="cifar", path=tmp_path / "nope")
