"""A sweep's page: one HTML file that needs nothing else, with its figures and tables inside."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from importlib import resources
from typing import Any

from orchestrator.sweep import story
from orchestrator.sweep.results import SweepResult

_CAPTIONS = {
    "pareto": "Validation accuracy against non-zero parameters of all modules. Blue: trials that no other beats in "
    "both; the dashed level is the published recipe, the band below it counts as equal.",
    "importance": "How much of the variation among finished trials each setting explains (fANOVA). With few trials "
    "this is a hint, no proof.",
    "trials": "Accuracy over the tasks seen while trials went on. A line that ends at a cross was stopped early.",
}

# A table of many settings may use the page's margins; what is wider still scrolls.
_WIDE = """\
@media screen {
  .wide { width: max-content; min-width: 100%; max-width: calc(100vw - 3.5rem);
          position: relative; left: 50%; transform: translateX(-50%); }
  .wide th, .wide td { padding-left: .45rem; padding-right: .45rem; }
  .wide td.text > div { contain: inline-size; }
}"""

_TEMPLATE = """\
{%- macro picture(name) -%}
{% if name in plots %}<figure><div><img src="data:image/svg+xml;base64,{{ plots[name] }}" alt="{{ captions[name] }}"></div>
<figcaption>{{ captions[name] }}</figcaption></figure>{% endif %}
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{{ result.name }}: sweep</title>
<style>
{{ css|safe }}
{{ wide|safe }}
</style>
</head>
<body>
<main>
<header>
<p class="kicker">Sweep over settings</p>
<h1>{{ result.name }}</h1>
<ul class="facts">
{% for label, value in facts %}<li>{{ label }} <b>{{ value }}</b></li>
{% endfor %}</ul>
</header>
<section class="lead" aria-label="What was found">
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}</section>
{{ picture("pareto") }}
<h2>Trials</h2>
<div class="scroll wide"><table>
<thead><tr><th scope="col">trial</th><th scope="col">accuracy<small>%</small></th><th scope="col">non-zero<small>parameters</small></th>
<th scope="col">of published</th><th scope="col">tasks</th><th scope="col">seconds</th>
{% for key in keys %}<th scope="col">{{ key.split(".")[-1].replace("_", " ") }}<small>{{ key.rpartition(".")[0] }}</small></th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}<tr class="{{ row.css }}"><th scope="row">{{ row.id }}{% for mark in row.marks %} <span class="mark">{{ mark }}</span>{% endfor %}</th>
{% for cell in row.cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% if row.error %}<tr class="{{ row.css }}"><td class="text" colspan="{{ keys|length + 6 }}"><div>{{ row.error }}</div></td></tr>
{% endif %}{% endfor %}</tbody>
</table></div>
<p class="caption">{{ caption }}</p>
{% if "importance" in plots %}<h2>What mattered</h2>
{{ picture("importance") }}{% endif %}
{% if "trials" in plots %}<h2>How trials went</h2>
{{ picture("trials") }}{% endif %}
<h2>Run it</h2>
<p>Test samples are scored once, when the chosen settings are run:</p>
<pre>luca run EXPERIMENT --from-sweep {{ result.id }}:smallest
luca run EXPERIMENT --from-sweep {{ result.id }}:best</pre>
<p>Or run <code>best.yaml</code> or <code>smallest.yaml</code>, which lie beside this page with {{ files|join(", ") }}.</p>
<details><summary>Best settings</summary><pre>{{ best }}</pre></details>
<footer>{{ result.id }}</footer>
</main>
</body>
</html>
"""


def render_sweep(
    result: SweepResult, plots: Mapping[str, str], *, best: str, files: list[str]
) -> str:
    """The page.

    Args:
        result: what was found.
        plots: SVG text by the figure's name.
        best: the best trial's experiment as YAML.
        files: names of files beside the page.
    """
    from jinja2 import Environment

    keys = list(dict.fromkeys(key for r in result.records if not r.published for key in r.settings))
    css = resources.files("orchestrator.report").joinpath("report.css").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE).render(
        result=result,
        css=css,
        wide=_WIDE,
        captions=_CAPTIONS,
        plots={name: base64.b64encode(svg.encode()).decode() for name, svg in plots.items()},
        facts=_facts(result),
        sentences=story.sentences(result),
        keys=keys,
        rows=[_row(record, result, keys) for record in story.in_order(result)],
        caption=story.caption(result),
        best=best,
        files=files,
    )


def _facts(result: SweepResult) -> list[tuple[str, Any]]:
    counts = {
        status: sum(record.status == status for record in result.records)
        for status in ("finished", "stopped", "failed", "lost")
    }
    trials = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return [
        ("trials", f"{len(result.records)} ({trials})"),
        ("tasks", result.tasks),
        *((k, f"{v:,}" if isinstance(v, int) else v) for k, v in result.about.items()),
        ("images through the backbone", f"{result.backbone_images:,}"),
    ]


def _row(record: Any, result: SweepResult, keys: list[str]) -> dict[str, Any]:
    finished = record.status == "finished"
    names = story.marks(record, result)
    primary = {"best", "smallest"} & set(names)
    return {
        "id": record.id,
        "css": "primary" if primary else ("" if finished else "bound"),
        "marks": names,
        "error": record.error,
        "cells": [
            story.accuracy_text(record) if finished else "–",
            f"{record.nonzero_parameters:,}" if finished else "–",
            story.against_published(record, result) or "–",
            record.tasks,
            f"{record.seconds:.1f}",
            *(story.short(record.settings[key]) if key in record.settings else "" for key in keys),
        ],
    }
