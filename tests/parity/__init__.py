"""Parity with the published classes: ``python -m tests.parity FOLDER``."""
