"""Sources on an object store, served on loopback for the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow.fs as pafs
import pytest

from tests.pipelines.sources.data import listing, png, source, write_features, write_images
from workers.errors import DataError


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A query string that leads to an empty bucket called "data"."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = f"scheme=http&endpoint_override={quote(f'{host}:{port}')}&region=us-east-1&allow_bucket_creation=true"
    store, _ = pafs.FileSystem.from_uri(f"s3://key:secret@data/?{options}")
    store.create_dir("data")
    yield options
    server.stop()


@pytest.fixture
def put(bucket: str, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Copies a local folder into the bucket and returns its URI."""

    def copy(local: Path, name: str) -> str:
        store, _ = pafs.FileSystem.from_uri(f"s3://key:secret@data/?{bucket}")
        pafs.copy_files(
            str(local),
            f"data/{name}",
            source_filesystem=pafs.LocalFileSystem(),
            destination_filesystem=store,
        )
        return f"s3://key:secret@data/{name}?{bucket}"

    return copy


def test_an_image_folder_is_listed_and_read_alike_on_an_object_store(put, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    local = write_images(tmp_path / "images", {"train/cat": 3, "test/cat": 1, "train/dog": 2})
    uri = put(local, "images")
    images = source(kind="image_folder", path=uri)
    here = listing(kind="image_folder", path=local).samples
    assert images.samples().drop_columns(["location"]).equals(here.drop_columns(["location"]))
    assert images.samples()["location"][0].as_py() == "s3://data/images/test/cat/000.png"
    assert images.reader().read(images.samples())[0] == png(3)


def test_features_are_read_from_an_object_store(put, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "f").mkdir()
    local = write_features(tmp_path / "f" / "f.parquet", ["a", "b"])
    uri = put(tmp_path / "f", "features").replace("features?", "features/f.parquet?")
    remote, here = (source(kind="features", path=path) for path in (uri, local))
    assert remote.samples()["content"].equals(here.samples()["content"])
    assert (remote.reader().read(remote.samples()) == here.reader().read(here.samples())).all()


def test_digests_are_remembered_on_an_object_store(
    put, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    local = write_images(tmp_path / "images", {"cat": 2})
    index = f"s3://key:secret@data/index?{bucket}"
    first = source(kind="image_folder", path=local, cache_dir=index).samples()
    monkeypatch.setattr("pipelines.sources.files.read_bytes", None)
    assert source(kind="image_folder", path=local, cache_dir=index).samples().equals(first)


def test_a_missing_address_is_named_without_its_credentials(bucket: str) -> None:
    with pytest.raises(DataError, match="no folder at 's3://data/nowhere'") as error:
        listing(kind="image_folder", path=f"s3://key:secret@data/nowhere?{bucket}")
    assert "secret" not in str(error.value)
    with pytest.raises(DataError, match="cannot open 'ftp://host/x'"):
        listing(kind="image_folder", path="ftp://host/x")
