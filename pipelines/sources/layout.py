"""What the folders of a tree of images mean: split, domain, class.

Nothing is guessed twice: where two readings are possible the folder is refused, with the setting that decides.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.sources.splits import split_word
from workers.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipelines.sources.files import FileEntry


@dataclass(frozen=True)
class Place:
    """Where an image stands in the data; split and domain are "" when folders do not say."""

    split: str
    domain: str
    label: str


class Layout:
    """Reads folder paths as places.

    Args:
        where: the root, for messages.
        folders: every folder below the root, relative.
        domain_folders: class folders lie inside domain folders.
        split_folders: whether split folders hold the class folders; None looks at the names.
        merge_subfolders: folders inside class folders belong to the class.
    """

    def __init__(
        self,
        *,
        where: str,
        folders: Iterable[str],
        domain_folders: bool = False,
        split_folders: bool | None = None,
        merge_subfolders: bool = False,
    ) -> None:
        self._where = where
        self._folders = sorted(folders)
        self._domain_folders = domain_folders
        self._merge_subfolders = merge_subfolders
        inside: dict[str, set[str]] = defaultdict(set)
        for folder in self._folders:
            parent, _, name = folder.rpartition("/")
            inside[parent].add(name)
        self._split_parents = _split_parents(where, inside, domain_folders, split_folders)

    def places(self, images: Sequence[FileEntry]) -> list[Place]:
        """The place of each image.

        Raises:
            DataError: an image has no class folder or lies deeper than one, or a class folder holds no image.
        """
        known = {folder: self._read(folder) for folder in ["", *self._folders]}
        found = []
        for image in images:
            place, deeper = known[image.relative.rpartition("/")[0]]
            if place is None:
                raise DataError(
                    f"{image.location!r} lies in no class folder; expected {self._expected()}"
                )
            if deeper and not self._merge_subfolders:
                raise DataError(
                    f"{image.location!r} lies deeper than a class folder. If the upper folders are domains, "
                    "set source.domain_folders: true; if the lower ones belong to the class, "
                    "source.merge_subfolders: true; otherwise point source.path at the folder that holds "
                    "the class folders"
                )
            found.append(place)
        filled = set(found)
        for folder, (place, deeper) in known.items():
            if place is not None and not deeper and place not in filled:
                raise DataError(
                    f"{self._where}: the class folder {folder!r} holds no image; fill or remove it"
                )
        return found

    def _read(self, folder: str) -> tuple[Place | None, bool]:
        """The place a folder means, None above the class folders; and whether it lies inside a class folder."""
        rest = folder.split("/") if folder else []
        split = domain = ""
        if "" in self._split_parents and rest:
            split = self._split(rest.pop(0), folder)
        if self._domain_folders and rest:
            domain = rest.pop(0)
            if not split and domain in self._split_parents and rest:
                split = self._split(rest.pop(0), folder)
        if not rest:
            return None, False
        return Place(split, domain, rest[0]), len(rest) > 1

    def _split(self, name: str, folder: str) -> str:
        if split_word(name) is None:
            raise DataError(
                f"{self._where}: folder {folder!r} stands beside train and test folders; move it away, or set "
                "source.split_folders: false if 'train' and 'test' are class names"
            )
        return name

    def _expected(self) -> str:
        parts = [self._where]
        if "" in self._split_parents:
            parts.append("train")
        if self._domain_folders:
            parts.append("<domain>")
        return "/".join([*parts, "<class>", "<image>"])


def _split_parents(
    where: str, inside: dict[str, set[str]], domain_folders: bool, wanted: bool | None
) -> set[str]:
    """The folders whose sub-folders are splits: the root, or some of its domain folders."""
    candidates = ["", *(sorted(inside.get("", ())) if domain_folders else [])]
    if wanted is None:
        found = {folder for folder in candidates if _looks_split(inside.get(folder, set()))}
    elif wanted:
        found = {
            folder
            for folder in candidates
            if any(split_word(name) == "train" for name in inside.get(folder, ()))
        }
        if not found:
            raise DataError(f"{where}: source.split_folders is true, but there is no train folder")
    else:
        found = set()
    return {""} if "" in found else found


def _looks_split(names: set[str]) -> bool:
    """Whether folder names are those of splits: train beside test or val, or train alone."""
    words = {split_word(name) for name in names}
    return "train" in words and (len(words - {None}) > 1 or None not in words)
