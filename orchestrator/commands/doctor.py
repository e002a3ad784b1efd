"""`luca doctor`: is everything there that a run needs, and what to do where it is not."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

from orchestrator.checkup import Finding, check_everything
from orchestrator.checkup.machine import check_python

_WIDTH = 110


def doctor_command(source: str, overrides: Sequence[str], *, start_ray: bool, as_json: bool) -> int:
    """Print every finding; 0 when a run would find all it needs, 1 when something is wrong.

    Raises:
        SettingsError: the experiment itself is wrong.
    """
    findings: list[Finding] = []
    for finding in _findings(source, overrides, start_ray=start_ray):
        findings.append(finding)
        if not as_json:
            print(_text(finding), flush=True)
    bad = [finding for finding in findings if finding.status == "wrong"]
    if as_json:
        print(json.dumps({"ok": not bad, "findings": [f.to_json() for f in findings]}, indent=2))
    else:
        print(_verdict(source, bad))
    return 1 if bad else 0


def _findings(source: str, overrides: Sequence[str], *, start_ray: bool) -> Iterator[Finding]:
    """Packages first; where they fail, the rest could not even be imported."""
    sound = True
    for finding in check_python():
        sound &= finding.status != "wrong"
        yield finding
    if sound:
        from orchestrator.experiment_files import load_experiment

        yield from check_everything(load_experiment(source, overrides), start_ray=start_ray)


def _text(finding: Finding) -> str:
    mark = {"ok": "ok", "note": "note", "wrong": "WRONG"}[finding.status]
    lines = [f"{mark:<6} {finding.area:<14} {finding.found}"]
    if finding.advice:
        lines += textwrap.wrap(
            f"-> {finding.advice}",
            _WIDTH,
            initial_indent=" " * 22,
            subsequent_indent=" " * 25,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _verdict(name: str, bad: Sequence[Finding]) -> str:
    if not bad:
        return f"{name} is ready to run"
    return f"{name} is not ready: {', '.join(dict.fromkeys(f.area for f in bad))} wrong"
