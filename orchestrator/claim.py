"""A run's claim on its bank: made before Ray is started and before anything is written into the run's folder.

The registry actor holds the bank's own lock, but it exists only when Ray does; by then a second run of the same
experiment would have opened the first one's log.  So the driver claims the bank too, as the one that learns into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workers.registry import OWNER_GONE_SECONDS, patience
from workers.storage.bank import Bank
from workers.storage.lock import BankLock, current_owner


@contextmanager
def claimed(bank: Bank, run: str, *, writes: bool) -> Iterator[None]:
    """The right to learn into a bank, for as long as the context is open.

    Args:
        bank: the bank.
        run: named as the owner to anyone who is refused.
        writes: whether something is to be written into the bank; what only reads it need not wait for a writer.

    Raises:
        BankLockedError: another run, or another command that changes the bank, is at work; the message names it.
        StorageError: the claim cannot be written.
    """
    what = f"bank '{bank.name}'"
    mine = BankLock(bank.storage, bank.run_lock_directory, what=what, run=run)
    mine.acquire(patience(current_owner(bank.storage, bank.run_lock_directory), here=0.0))
    with mine:
        if writes:
            _wait_for_writer(bank, what, run)
        yield


def _wait_for_writer(bank: Bank, what: str, run: str) -> None:
    """Wait for a registry that is dying with its driver, or a command that is soon done."""
    owner = bank.owner()
    if owner is not None:
        lock = BankLock(bank.storage, bank.lock_directory, what=what, run=run)
        lock.acquire(patience(owner, here=OWNER_GONE_SECONDS))
        lock.release()
