"""The report as one HTML page that needs nothing else: styles and figures are inside, and nothing is ever fetched.

The page carries a content-security policy that forbids scripts and requests, besides escaping every name from data.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from orchestrator.report import view
from orchestrator.report.data import ReportData
from workers.wording import plural

if TYPE_CHECKING:
    from jinja2 import Template


def render(data: ReportData, plots: Mapping[str, str], files: Iterable[str] = ()) -> str:
    """The page.

    Args:
        data: the run.
        plots: SVG text by the figure's name.
        files: names of files beside the page, to link to.
    """
    shown = view.columns(data)
    return _template().render(
        data=data,
        css=_resource("report.css"),
        plots={name: base64.b64encode(svg.encode()).decode() for name, svg in plots.items()},
        facts=view.facts(data),
        headline=view.headline(data),
        cards=view.cards(data),
        columns=shown,
        groups=view.groups(data, shown),
        more=_more(data),
        table_caption=_caption(data),
        among=view.among(data, data.find(data.primary)),
        steps=_steps(data),
        tasks=[
            {
                "index": task.index + 1,
                "name": task.name,
                "classes": view.class_list(task),
                "cells": view.task_cells(task),
            }
            for task in data.tasks
        ],
        costs=view.costs(data),
        glossary=view.GLOSSARY,
        files=list(files),
    )


def _caption(data: ReportData) -> str:
    text = (
        f"On {plural(data.test_samples, 'test sample')} of all classes seen, after the last task."
    )
    if data.primary:
        why = (
            "told the task, as the stream gives it"
            if data.tasks_given
            else "named first in the settings"
        )
        text += f" Highlighted: {data.primary}, the router that is {why}."
    bound = view.joint_bound(data)
    if bound:
        text += f" The gap is to {bound.name}."
    return text


def _more(data: ReportData) -> dict[str, Any] | None:
    shown = view.columns(data, view.MORE_COLUMNS)
    return {"columns": shown, "groups": view.groups(data, shown)} if shown else None


def _steps(data: ReportData) -> dict[str, Any] | None:
    if data.learned < 2:
        return None
    return {
        "tasks": range(1, data.learned + 1),
        "rows": view.step_rows(data),
        "long": view.steps_are_long(data),
    }


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["minus"] = lambda text: text.replace("-", "\N{MINUS SIGN}")
    return environment.from_string(_resource("report.html.j2"))


@lru_cache(maxsize=4)
def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
