"""A sweep as the user sees it: opened from an experiment, run, shown, and chosen from."""

from __future__ import annotations
