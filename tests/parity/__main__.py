"""Checks a folder holding forward.npz and stream.npz; prints deviations, exits 0 (parity) or 1."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.parity.check import RTOL, FolderError, check_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; ``arguments`` are those of the command line unless given."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with forward.npz and stream.npz")
    folder: Path = parser.parse_args(arguments).folder
    try:
        deviations = check_folder(folder)
    except FolderError as error:
        print(error, file=sys.stderr)
        return 1
    width = max(len(deviation.quantity) for deviation in deviations)
    for deviation in sorted(deviations, key=lambda item: (item.passed, -item.relative)):
        verdict = "ok" if deviation.passed else "FAILED"
        print(f"{deviation.quantity:<{width}}  {deviation.relative:9.2e}  {verdict}")
    failed = sum(not deviation.passed for deviation in deviations)
    print(
        f"{len(deviations)} quantities, {failed} outside rtol {RTOL:g} "
        "(whole numbers: share that differs, must be 0)"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
