"""Searching settings: trials over cached features, driven by Ray Tune.

A trial is a plain class (trial.py) that never sees a backbone or a test sample; what is proposed and what came of it
is kept in a ledger of files (ledger.py, conductor.py); Ray Tune (tuner.py) runs trials side by side and stops poor ones.
"""

from __future__ import annotations

from pipelines.search.settings import Range, SearchSettings

__all__ = ["Range", "SearchSettings"]
