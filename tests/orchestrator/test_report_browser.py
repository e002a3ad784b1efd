"""The report in a real browser: it asks the network for nothing and has nothing to complain about."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.report import build_report
from orchestrator.sweep.page import render_sweep
from tests.orchestrator.streams import MORE_METHODS, make_run
from tests.orchestrator.test_sweep_results import FAILED, PUBLISHED, result, trial

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


class Visit:
    """What a headless browser saw on a page: its DOM, its console, and what the page asked the network for."""

    def __init__(self, page: Path, folder: Path, *options: str) -> None:
        folder.mkdir()
        done = subprocess.run(
            [
                str(CHROMIUM),
                *(
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-quic",
                    "--no-first-run",
                ),
                *(
                    "--disable-background-networking",
                    "--disable-component-update",
                    "--disable-sync",
                ),
                f"--user-data-dir={folder / 'profile'}",
                f"--log-net-log={folder / 'net.json'}",
                *("--enable-logging=stderr", "--hide-scrollbars", *options),
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        self.dom = done.stdout
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        events = json.loads((folder / "net.json").read_text())["events"]
        # What the browser asks for on its own account has no origin.
        self.requests = {
            params["url"]
            for params in (event.get("params") or {} for event in events)
            if "url" in params and params.get("initiator", "not an origin") != "not an origin"
        }


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("runs") / "made-up", tasks=5, hostile=True)
    return build_report(folder)


def test_the_report_opens_without_console_message_or_network_request(page, tmp_path):
    visit = Visit(page, tmp_path / "visit", "--dump-dom")
    assert "After 5 tasks with 10 classes" in visit.dom
    assert visit.console == []
    assert visit.requests == set()


def test_the_check_notices_pages_that_are_not_clean(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("boom")</script>')
    visit = Visit(bad, tmp_path / "visit", "--dump-dom")
    assert any("boom" in line for line in visit.console)
    assert visit.requests == {"http://127.0.0.1:9/x.png"}


def test_names_that_try_to_be_scripts_are_shown_and_not_run(page, tmp_path):
    visit = Visit(page, tmp_path / "visit", "--dump-dom")
    assert "<script" not in visit.dom
    assert "&lt;script&gt;" in visit.dom


@pytest.mark.parametrize("width", [500, 1100])
def test_the_report_is_drawn_and_never_wider_than_the_window(page, tmp_path, width):
    from PIL import Image

    shot = tmp_path / "page.png"
    Visit(page, tmp_path / "visit", f"--screenshot={shot}", f"--window-size={width},3000")
    picture = Image.open(shot).convert("RGB")
    assert picture.width == width
    colours = picture.getcolors(maxcolors=1 << 24)
    assert len(colours) > 50
    margin = picture.crop((width - 8, 0, width, 3000))
    assert margin.getcolors() == [(8 * 3000, (255, 255, 255))]


@pytest.mark.parametrize("width", [785, 1085, 1585])
def test_the_tables_of_a_report_are_whole_on_common_screens(tmp_path, width):
    folder = make_run(tmp_path / "made-up", tasks=5, methods=MORE_METHODS)
    script = (
        "<script>const page = document.documentElement, tables = [...document.querySelectorAll('.scroll')];"
        "document.title = [tables.length > 2, page.scrollWidth <= page.clientWidth,"
        "tables.every(t => t.scrollWidth <= t.clientWidth)].join();</script></body>"
    )
    page = build_report(folder).read_text("utf-8")
    page = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("</body>", script)
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    visit = Visit(
        tmp_path / "report.html", tmp_path / "v", f"--window-size={width},900", "--dump-dom"
    )
    assert "<title>true,true,true</title>" in visit.dom


def test_the_table_of_a_sweep_is_whole_on_a_wide_screen(tmp_path: Path) -> None:
    more = {"luca.flow": "tosca", "luca.ratio": 8, "learning.epochs": 20, "learning.l1": 0.00123}
    searched = {**more, "learning.learning_rate": 0.01, "statistics.random_features": 2000}
    records = [
        PUBLISHED,
        *(trial(n, 0.9 - n / 100, 100_000 * n, settings=searched) for n in (1, 2)),
        replace(FAILED, settings=searched, error="it diverged, as was told at length " * 9),
    ]
    page = render_sweep(result(*records), {}, best="", files=[])
    script = (
        "<script>const s = document.querySelector('.scroll'), b = s.getBoundingClientRect();"
        "document.title = [s.scrollWidth <= s.clientWidth, b.left >= 0, b.right <= innerWidth,"
        "document.documentElement.scrollWidth <= innerWidth].join();</script></body>"
    )
    page = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("</body>", script)
    (tmp_path / "sweep.html").write_text(page, encoding="utf-8")
    visit = Visit(tmp_path / "sweep.html", tmp_path / "v", "--window-size=1280,900", "--dump-dom")
    assert "<title>true,true,true,true</title>" in visit.dom
