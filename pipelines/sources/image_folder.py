"""A folder of images: one folder a class, with optional folders for splits and domains above.

Layouts: ``class/x.jpg``; ``train/class/x.jpg`` with ``test/`` or ``val/``; with ``domain_folders`` also
``domain/class/x.jpg``, ``domain/train/class/x.jpg`` and ``train/domain/class/x.jpg``.  Every image must have its
place: one that has none is an error, so that no sample is lost without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipelines.sources.base import DataPath, Source, SplitSettings
from pipelines.sources.files import (
    FileEntry,
    Tree,
    absolute,
    check_content,
    locate,
    public_uri,
    read_many,
    walk,
)
from pipelines.sources.index import DigestIndex
from pipelines.sources.layout import Layout
from pipelines.sources.table import Listing, make_listing
from workers.errors import DataError
from workers.wording import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
    | {".jp2", ".avif"}
)


class ImageFolderSettings(SplitSettings):
    """A folder of images on the local disk or any pyarrow file system."""

    kind: Literal["image_folder"]
    path: DataPath = Field(description="the folder")
    domain_folders: bool = Field(
        default=False, description="class folders lie inside domain folders: path/domain/class"
    )
    split_folders: bool | None = Field(
        default=None,
        description="whether train/ and test/ (or val/) folders hold the class folders; left out: seen from the names",
    )
    merge_subfolders: bool = Field(
        default=False, description="folders inside class folders belong to the class"
    )


@dataclass(frozen=True)
class ImageFileReader:
    """Reads encoded images that are files of their own."""

    root: str
    kind: Literal["images"] = "images"

    def read(self, samples: pa.Table) -> list[bytes | Image]:
        """The files' bytes, undecoded."""
        images = read_many(self.root, samples["location"].to_pylist())
        for position, image in enumerate(images):
            check_content(samples, position, image)
        return list(images)


class ImageFolderSource(Source):
    """Lists a folder; the class of an image is the name of its folder."""

    settings: ImageFolderSettings

    def reader(self) -> ImageFileReader:
        return ImageFileReader(root=absolute(self.settings.path))

    def _list(self) -> Listing:
        path = self.settings.path
        where = public_uri(path)
        if where.lower().endswith((".csv", ".tsv", ".parquet")):
            raise DataError(
                f"{where!r} is no folder; for a list of images use source.kind: manifest"
            )
        tree = walk(path)
        images, others = split_images(tree.files)
        if not images:
            raise DataError(f"{where}: no images found; expected {where}/<class>/<image>")
        layout = Layout(
            where=where,
            folders=tree.folders,
            domain_folders=self.settings.domain_folders,
            split_folders=self.settings.split_folders,
            merge_subfolders=self.settings.merge_subfolders,
        )
        places = layout.places(images)
        refuse_empty(images)
        notes = []
        if others:
            notes.append(
                f"{where}: left out {plural(len(others), 'file')} not an image by name, such as {others[0].relative!r}"
            )
        notes += hidden_note(where, tree)
        return make_listing(
            where=where,
            ids=[image.relative for image in images],
            labels=[place.label for place in places],
            domains=[place.domain for place in places],
            splits=[place.split for place in places],
            contents=DigestIndex(self._cache_dir, f"images {locate(path)}").of_files(path, images),
            locations=[image.location for image in images],
            rows=[-1] * len(images),
            plan=self.settings.split_plan,
            warnings=notes,
        )


def hidden_note(where: str, tree: Tree) -> list[str]:
    """A sentence about images that are left out because a name begins with a dot, if there are any."""
    left = [name for name in tree.hidden if _suffix(name) in IMAGE_SUFFIXES]
    if not left:
        return []
    return [
        f"{where}: {plural(len(left), 'image')} in hidden files or folders (names that begin with "
        f"a dot) left out, such as {left[0]!r}"
    ]


def split_images(files: Sequence[FileEntry]) -> tuple[list[FileEntry], list[FileEntry]]:
    """The files whose names say image, and the others."""
    images: list[FileEntry] = []
    others: list[FileEntry] = []
    for file in files:
        (images if _suffix(file.relative) in IMAGE_SUFFIXES else others).append(file)
    return images, others


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2].lower()


def refuse_empty(images: Sequence[FileEntry]) -> None:
    """Raise a DataError that names the images of zero bytes, if there are any."""
    empty = [image.location for image in images if image.size == 0]
    if empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise DataError(f"{empty[0]!r}{more}: empty file (0 bytes); replace or remove it")
