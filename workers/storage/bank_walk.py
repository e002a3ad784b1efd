"""Going through all versions of a bank: what verify and gc share.  Each page is read once, however many use it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from workers.storage.bank import Bank
from workers.storage.bank_manifest import Manifest, ObjectRef, TaskRecord, decode_page


@dataclass
class PageCache:
    """The records of pages already read, by digest."""

    bank: Bank
    _pages: dict[str, tuple[TaskRecord, ...]] = field(default_factory=dict)

    def page(self, digest: str) -> tuple[TaskRecord, ...]:
        """The records of a page.

        Raises:
            CorruptionError: it is missing or damaged.
        """
        if digest not in self._pages:
            where = self.bank.storage.describe(self.bank.objects.path(digest))
            self._pages[digest] = decode_page(self.bank.objects.read(digest), where)
        return self._pages[digest]

    def tasks(self, manifest: Manifest) -> tuple[TaskRecord, ...]:
        """The records of a version, in order."""
        return tuple(record for page in manifest.pages for record in self.page(page.digest))

    def references(self, manifest: Manifest) -> Iterator[ObjectRef]:
        """Everything that a version needs: pages, the objects of its tasks, shared objects."""
        yield from manifest.shared.values()
        for page in manifest.pages:
            yield ObjectRef(page.digest, page.size)
            for record in self.page(page.digest):
                yield from record.objects.values()
