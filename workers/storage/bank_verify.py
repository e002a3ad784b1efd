"""Checking every digest of every file of a bank, and saying what to do about each that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from workers.errors import CorruptionError, LucaError
from workers.storage.atomic import is_temporary
from workers.storage.bank import LATEST, Bank
from workers.storage.bank_json import JsonObject, check_name, is_digest
from workers.storage.bank_manifest import Manifest, Ref, content_digest, version_number
from workers.storage.bank_objects import REMEDY
from workers.storage.bank_pages import PageCache
from workers.storage.bank_tensors import read_header
from workers.storage.filesystem import Entry

_READERS = 8


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the file as a user knows it, what was found, what to do."""

    file: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}; {self.remedy}"


@dataclass(frozen=True)
class VerifyReport:
    """What was checked and found; ``notes`` are harmless (leftovers that gc removes, pruned history)."""

    bank: str
    versions: int
    objects: int
    bytes: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> JsonObject:
        """For machines."""
        return {
            "bank": self.bank,
            "sound": self.sound,
            "versions": self.versions,
            "objects": self.objects,
            "bytes": self.bytes,
            "problems": [vars(problem) for problem in self.problems],
            "notes": list(self.notes),
        }


def verify(bank: Bank) -> VerifyReport:
    """Reads every file of a bank and checks it against its digest, its manifests and its refs.

    Takes no lock; versions committed meanwhile may or may not be included.
    """
    return _Verification(bank).run()


@dataclass
class _Use:
    """The first and the last version that need an object, and the tasks it belongs to."""

    first: int
    last: int
    tasks: set[str] = field(default_factory=set)


class _Verification:
    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._storage = bank.storage
        self._pages = PageCache(bank.objects)
        self._problems: list[Problem] = []
        self._notes: list[str] = []
        self._needed: dict[str, int] = {}
        self._page_digests: set[str] = set()
        self._numbers: tuple[int, ...] = ()
        self._manifests: dict[int, Manifest] = {}
        self._manifest_lost = False

    def run(self) -> VerifyReport:
        self._numbers = self._bank.versions()
        for number in self._numbers:
            self._check_manifest(number)
        for number in self._manifests:
            self._check_content(number)
        self._needed.update({ref.digest: ref.size for ref in self._pages.object_refs()})
        self._check_notes()
        self._check_refs()
        objects, size = self._check_objects()
        self._check_strays()
        return VerifyReport(
            bank=self._bank.name,
            versions=len(self._numbers),
            objects=objects,
            bytes=size,
            problems=tuple(self._problems),
            notes=tuple(self._notes),
        )

    def _report(self, path: str, what: str, remedy: str) -> None:
        self._problems.append(Problem(self._storage.describe(path), what, remedy))

    def _check_manifest(self, number: int) -> None:
        path = self._bank.manifest_path(number)
        try:
            data = self._storage.read_bytes(path)
            manifest = Manifest.from_bytes(data, "its manifest")
        except LucaError as error:
            self._manifest_lost = True
            self._report(
                path, str(error), f"put it back from a backup; without it version {number} is lost"
            )
            return
        if manifest.version != number:
            self._manifest_lost = True
            self._report(
                path, f"is the manifest of version {manifest.version}", "put the right one back"
            )
            return
        self._manifests[number] = manifest

    def _check_content(self, number: int) -> None:
        manifest = self._manifests[number]
        path = self._bank.manifest_path(number)
        if manifest.parent is not None:
            parent = self._manifests.get(manifest.parent)
            if parent is None:
                self._notes.append(
                    f"version {manifest.parent}, the parent of {number}, is not there any more"
                )
            elif parent.digest != manifest.parent_digest:
                self._report(
                    path, f"its parent {parent.version} has another digest than it says", _EXCHANGED
                )
        for page in manifest.pages:
            self._needed[page.digest] = page.size
            self._page_digests.add(page.digest)
        self._needed.update({ref.digest: ref.size for ref in manifest.shared.values()})
        try:
            tasks = self._pages.tasks(manifest)
        except CorruptionError:
            for page in manifest.pages:  # the damaged one is reported with the objects
                with suppress(CorruptionError):
                    self._pages.page(page.digest)
            return
        digest = content_digest(
            backbone=manifest.backbone,
            settings=manifest.settings,
            shared=manifest.shared,
            tasks=tasks,
        )
        if digest != manifest.digest or len(tasks) != manifest.counts["tasks"]:
            self._report(path, "its content does not match its digest", _EXCHANGED)
        if len({task.id for task in tasks}) != len(tasks):
            self._report(path, "it lists a task twice", _EXCHANGED)

    def _check_notes(self) -> None:
        for entry in self._files("notes"):
            number = version_number(entry.name)
            if number is None:
                continue
            try:
                self._bank.read_notes(number)
            except LucaError:
                what = "it is damaged: its content does not match its own check"
                self._report(
                    entry.path, what, "delete it: only metrics added after the commit are lost"
                )

    def _check_refs(self) -> None:
        for entry in self._files("refs"):
            if entry.name.startswith("."):
                continue
            remedy = f"tag a version as '{entry.name}' again"
            if entry.name == LATEST:
                remedy = "delete it: the newest manifest is found without it"
            try:
                check_name("tag", entry.name)
                ref = Ref.from_bytes(self._storage.read_bytes(entry.path), "it")
            except LucaError as error:
                self._report(entry.path, str(error), remedy)
                continue
            manifest = self._manifests.get(ref.version)
            if manifest is None:
                self._manifest_lost = True
                if ref.version not in self._numbers:  # a damaged manifest is reported already
                    what = f"it points to version {ref.version}, which is not there"
                    self._report(entry.path, what, remedy)
            elif manifest.digest != ref.digest:
                self._report(
                    entry.path, f"version {ref.version} has another digest than it says", remedy
                )

    def _check_objects(self) -> tuple[int, int]:
        entries = [entry for entry in self._files("objects") if is_digest(entry.name)]
        with ThreadPoolExecutor(_READERS) as pool:
            for problem in pool.map(self._check_object, entries):
                if problem is not None:
                    self._problems.append(problem)
        there = {entry.name for entry in entries}
        for digest in self._needed:
            if digest not in there:
                self._report(
                    self._bank.objects.path(digest), f"is missing{self._users(digest)}", REMEDY
                )
        unneeded = len(there - self._needed.keys())
        if unneeded and not self._manifest_lost:  # it may need them
            self._notes.append(f"{unneeded} objects belong to no version; gc removes them")
        return len(entries), sum(entry.size for entry in entries)

    def _check_object(self, entry: Entry) -> Problem | None:
        where = self._storage.describe(entry.path)
        try:
            data = self._bank.objects.read(entry.name)
        except CorruptionError:
            what = f"its bytes do not match its name{self._users(entry.name)}"
            return Problem(where, what, REMEDY)
        if self._needed.get(entry.name, len(data)) != len(data):
            return Problem(where, f"has {len(data)} bytes, a manifest says otherwise", _EXCHANGED)
        if entry.name in self._needed and entry.name not in self._page_digests:
            try:
                read_header(data, "it")
            except CorruptionError as error:
                return Problem(where, str(error), REMEDY)
        return None

    def _users(self, digest: str) -> str:
        """Which versions and tasks need an object, for a message."""
        use = self._uses.get(digest)
        if use is None:
            return ""
        of = f", task {', '.join(sorted(use.tasks))}" if use.tasks else ""
        span = str(use.first) if use.first == use.last else f"{use.first} to {use.last}"
        return f" (needed by version {span}{of})"

    @cached_property
    def _uses(self) -> dict[str, _Use]:
        """Who needs each object; found page by page, since many versions share a page."""
        uses: dict[str, _Use] = {}
        for number, manifest in self._manifests.items():
            own = [page.digest for page in manifest.pages]
            own += [ref.digest for ref in manifest.shared.values()]
            for digest in own:
                uses.setdefault(digest, _Use(number, number)).last = number
        for page in self._page_digests:
            with suppress(CorruptionError):  # a damaged page is reported with the objects
                for task in self._pages.page(page):
                    for ref in task.objects.values():
                        use = uses.setdefault(ref.digest, _Use(uses[page].first, uses[page].last))
                        use.first = min(use.first, uses[page].first)
                        use.last = max(use.last, uses[page].last)
                        use.tasks.add(task.id)
        return uses

    def _check_strays(self) -> None:
        temporaries = 0
        for entry in self._storage.list(self._bank.directory, recursive=True):
            parts = entry.path[len(self._bank.directory) + 1 :].split("/")
            if entry.is_directory or parts[0] == "lock":
                continue
            if is_temporary(entry.name):
                temporaries += 1
            elif not _expected(parts):
                self._notes.append(f"{self._storage.describe(entry.path)} is not a file of a bank")
        if temporaries:
            self._notes.append(
                f"{temporaries} half-written files of a dead writer; gc removes them"
            )

    def _files(self, directory: str) -> Iterator[Entry]:
        for entry in self._storage.list(f"{self._bank.directory}/{directory}"):
            if not entry.is_directory:
                yield entry


def _expected(parts: list[str]) -> bool:
    if len(parts) != 2:
        return False
    directory, name = parts
    if directory == "objects":
        return is_digest(name)
    if directory in ("versions", "notes"):
        return version_number(name) is not None
    return directory == "refs"


_EXCHANGED = "a file was exchanged by hand: put the bank back from a backup, an export or a fork"
