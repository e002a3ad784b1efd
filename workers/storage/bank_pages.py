"""The pages of versions: each is read once, and written once, however many versions share it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workers.errors import CorruptionError
from workers.storage.bank_manifest import (
    Manifest,
    ObjectRef,
    PageRef,
    TaskRecord,
    decode_page,
    encode_page,
    page_layout,
)
from workers.storage.bank_objects import ObjectStore

if TYPE_CHECKING:
    from workers.storage.bank_version import BankVersion


@dataclass
class PageCache:
    """The records of pages already read, by digest.  Pages never change, so neither does what is cached."""

    objects: ObjectStore
    _pages: dict[str, tuple[TaskRecord, ...]] = field(default_factory=dict)

    def tasks(self, manifest: Manifest) -> tuple[TaskRecord, ...]:
        """The records of a version, in order.

        Raises:
            CorruptionError: a page is missing, damaged, or has more or fewer tasks than the manifest says.
        """
        self._read(page.digest for page in manifest.pages)
        records: list[TaskRecord] = []
        for page in manifest.pages:
            found = self._pages[page.digest]
            if len(found) != page.tasks:
                raise CorruptionError(
                    f"{self._where(page.digest)} lists {len(found)} tasks, its manifest says {page.tasks}"
                )
            records += found
        return tuple(records)

    def page(self, digest: str) -> tuple[TaskRecord, ...]:
        """The records of one page.

        Raises:
            CorruptionError: it is missing or damaged.
        """
        self._read(iter((digest,)))
        return self._pages[digest]

    def object_refs(self) -> Iterator[ObjectRef]:
        """The objects of all tasks on the pages read so far: what the versions given to :meth:`tasks` need."""
        for records in self._pages.values():
            for record in records:
                yield from record.objects.values()

    def _read(self, digests: Iterator[str]) -> None:
        missing = [digest for digest in dict.fromkeys(digests) if digest not in self._pages]
        for digest, data in zip(missing, self.objects.read_many(missing), strict=True):
            self._pages[digest] = decode_page(data, self._where(digest))

    def _where(self, digest: str) -> str:
        return self.objects.storage.describe(self.objects.path(digest))


def write_pages(
    objects: ObjectStore, head: BankVersion | None, tasks: tuple[TaskRecord, ...]
) -> tuple[PageRef, ...]:
    """Pages for these tasks; those that stand unchanged in the newest version are not written again."""
    there: dict[tuple[int, int], PageRef] = {}
    start = 0
    for page in head.manifest.pages if head else ():
        there[start, page.tasks] = page
        start += page.tasks
    pages: list[PageRef] = []
    start = 0
    for size in page_layout(len(tasks)):
        records = tasks[start : start + size]
        known = there.get((start, size))
        if head is not None and known and records == head.tasks[start : start + size]:
            pages.append(known)
        else:
            data = encode_page(records)
            pages.append(PageRef(objects.write(data), len(data), size))
        start += size
    return tuple(pages)
