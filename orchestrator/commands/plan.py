"""`luca run --dry-run`: what a run would do, before Ray is started or a task is learned.

The backbone is loaded only where that is cheap (embedded or local weights) and nothing else says which features are
cached: a bank keeps its backbone's fingerprint, and a run refuses another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.commands.text import aligned, human_bytes, plural, printable, shortened
from pipelines.recorded_backbone import READY_FEATURES
from workers.storage.features import FeatureCache, PartKey, cache_key, ready_key

if TYPE_CHECKING:
    from orchestrator.experiment import Experiment
    from orchestrator.preparation import Prepared
    from workers.modeling.backbone import BackboneSettings

_BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True)
class Origin:
    """What is known of where features will come from.

    Attributes:
        name: the backbone's, or "ready-features".
        width: d, None when only loading the backbone would say.
        key: the backbone's part of a cache key, None when only loading the backbone would say.
    """

    name: str
    width: int | None
    key: str | None


@dataclass(frozen=True)
class FeatureWork:
    """What lies between samples and features.

    Attributes:
        rows: feature rows of the whole stream, augmented views included.
        bytes: of these rows in the cache's dtype; None when the width is unknown.
        cached_rows: rows that are cached; None when the cache key is unknown.
        backbone_images: images that would go through the backbone; an upper bound unless ``exact``.
    """

    rows: int
    parts: int
    views: int
    dtype: str
    bytes: int | None
    cached_rows: int | None
    backbone_images: int
    exact: bool


@dataclass(frozen=True)
class Plan:
    """Everything that ``--dry-run`` shows; ``to_json`` is what ``--json`` prints.

    Attributes:
        tasks: per task name, domain, classes, numbers of samples, and whether the bank holds it.
        module: parameters and bytes of one module and of the whole stream's; None when the width is unknown.
    """

    name: str
    run: str
    storage: str
    run_dir: str
    scenario: str
    recipe: str
    objective: str
    routers: tuple[str, ...]
    baselines: tuple[str, ...]
    classes: int
    tasks: list[dict[str, Any]]
    backbone: dict[str, Any]
    features: FeatureWork
    module: dict[str, Any] | None
    bank: dict[str, Any]
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers."""
        return asdict(self)


def print_plan(prepared: Prepared, *, as_json: bool) -> None:
    """Print the plan of a validated run."""
    plan = make_plan(prepared)
    print(json.dumps(plan.to_json(), indent=2) if as_json else _text(plan))


def make_plan(prepared: Prepared) -> Plan:
    """The plan of a validated run.

    Raises:
        BackboneError: the backbone is unknown, has no [CLS] token, or its local weights do not fit.
    """
    experiment = prepared.experiment
    origin = _origin(prepared)
    described = prepared.describe_tasks()
    return Plan(
        name=experiment.name,
        run=experiment.run_id,
        storage=prepared.storage.describe(),
        run_dir=str(prepared.run_dir),
        scenario=prepared.stream.scenario,
        recipe=experiment.recipe,
        objective=experiment.learning.objective,
        routers=experiment.scoring.reported_routers,
        baselines=experiment.evaluation.baselines,
        classes=len(prepared.stream.classes),
        tasks=[
            {**task, "domain": each.task.domain, "learned": position < prepared.learned}
            for position, (task, each) in enumerate(zip(described, prepared.tasks, strict=True))
        ],
        backbone={"name": origin.name, "width": origin.width},
        features=_features(prepared, origin),
        module=None if origin.width is None else _modules(prepared, origin.width),
        bank=_bank(prepared),
        warnings=list(prepared.warnings),
    )


# -- where features come from --------------------------------------------------------------------------------


def _origin(prepared: Prepared) -> Origin:
    experiment, width = prepared.experiment, prepared.stream.feature_width
    dtype = experiment.features.dtype
    settings = experiment.backbone
    ready = prepared.stream.reader.kind == "features"
    name = READY_FEATURES if ready else settings.name
    recorded = None if prepared.head is None else prepared.head.backbone
    if ready:
        assert width is not None
        return Origin(name, width, ready_key(width, dtype))
    if recorded is not None:
        return Origin(name, recorded["width"], cache_key(recorded["fingerprint"], dtype))
    return _loaded_origin(settings, experiment) or Origin(name, _width(settings), None)


def _loaded_origin(settings: BackboneSettings, experiment: Experiment) -> Origin | None:
    """The origin by loading the backbone, when its weights lie in the package or in a local file."""
    from workers.modeling.backbone import Backbone
    from workers.modeling.backbone_models import EMBEDDED, RANDOM

    if settings.weights == RANDOM or (settings.weights is None and settings.name not in EMBEDDED):
        return None
    backbone = Backbone.load(settings, precision=experiment.features.precision)
    key = cache_key(backbone.fingerprint, experiment.features.dtype)
    return Origin(settings.name, backbone.width, key)


def _width(settings: BackboneSettings) -> int:
    """The width of a model whose weights are not here, or are random.

    Raises:
        BackboneError: there is no such model, or it has no [CLS] token.
    """
    from workers.modeling.backbone import Backbone
    from workers.modeling.backbone_check import checked_skeleton
    from workers.modeling.backbone_models import EMBEDDED

    if settings.name in EMBEDDED:
        return Backbone.load(settings).width
    return int(checked_skeleton(settings).num_features)  # type: ignore[arg-type]


# -- what there is to do -------------------------------------------------------------------------------------


def _features(prepared: Prepared, origin: Origin) -> FeatureWork:
    settings = prepared.experiment.features
    ready = origin.name == READY_FEATURES
    sizes = [len(part.rows) for part in prepared.plan.parts]
    key = origin.key or "unknown"
    everything = set(_pairs(prepared, range(len(prepared.tasks)), key))
    needed = set(_pairs(prepared, range(prepared.learned, len(prepared.tasks)), key))
    rescored = set(_pairs(prepared, range(prepared.learned), key, again=True))
    there: set[PartKey] = set()
    if origin.key is not None:
        there = FeatureCache(prepared.storage).has_many(
            {pair[1] for pair in everything | needed | rescored}
        )

    def rows(pairs: Iterable[tuple[int, PartKey]]) -> int:
        return sum(sizes[part] for part, _ in pairs)

    missing = [pair for pair in needed | rescored if pair[1] not in there]
    certain = all(pair in needed for pair in missing)
    total = rows(everything)
    return FeatureWork(
        rows=total,
        parts=len(everything),
        views=settings.views,
        dtype=settings.dtype,
        bytes=None if origin.width is None else total * origin.width * _BYTES[settings.dtype],
        cached_rows=None
        if origin.key is None
        else rows(pair for pair in everything if pair[1] in there),
        backbone_images=0 if ready else rows(missing),
        exact=ready or (origin.key is not None and certain),
    )


def _pairs(
    prepared: Prepared, tasks: Iterable[int], key: str, *, again: bool = False
) -> Iterable[tuple[int, PartKey]]:
    """Parts and views that tasks need; ``again``: tasks that are learned already and may need scoring."""
    experiment = prepared.experiment
    views = range(1 if again else experiment.features.views + 1)
    for position in tasks:
        task = prepared.tasks[position].task
        splits = [task.test] if again else [task.test, task.validation]
        if not again or experiment.evaluation.baselines:
            for part in prepared.plan.parts_of(task.train):
                yield from ((part, prepared.plan.key(part, view, key)) for view in views)
        for rows in splits:
            for part in prepared.plan.parts_of(rows):
                yield part, prepared.plan.key(part, 0, key)


def _modules(prepared: Prepared, width: int) -> dict[str, Any]:
    """Parameters and bytes of what the bank keeps of a task and of all tasks."""
    from workers.modeling.luca_settings import parameter_shapes

    experiment = prepared.experiment
    each = sum(math.prod(shape) for shape in parameter_shapes(width, experiment.luca).values())
    gram = width * (width + 1) // 2 * 8
    slots = sum(len(p.task.classes) for p in prepared.tasks)
    grams = (
        slots if experiment.evaluation.statistics.granularity == "class" else len(prepared.tasks)
    )
    unified = experiment.learning.objective == "unified"
    rows = len(prepared.stream.classes) if unified else slots
    return {
        "flow": experiment.luca.flow,
        "parameters": each,
        "bytes": each * 4,
        "modules": len(prepared.tasks),
        "head_parameters": rows * width + (1 if unified else len(prepared.tasks)),
        "statistics_bytes": grams * gram + slots * (width + 1) * 8,
    }


def _bank(prepared: Prepared) -> dict[str, Any]:
    head = prepared.head
    return {
        "name": prepared.experiment.bank_name,
        "version": None if head is None else head.version,
        "digest": None if head is None else head.digest,
        "bytes": 0 if head is None else int(head.manifest.counts.get("bytes", 0)),
        "tasks": prepared.learned,
        "to_learn": len(prepared.tasks) - prepared.learned,
        "tags": {} if head is None else prepared.bank.refs(),
    }


# -- for people ----------------------------------------------------------------------------------------------


def _text(plan: Plan) -> str:
    titles = ("task", "train", "validation", "test", "in the bank", "classes")
    rows = [
        (
            printable(task["name"]),
            task["train"],
            task["validation"],
            task["test"],
            "yes" if task["learned"] else "no",
            shortened(task["classes"]),
        )
        for task in plan.tasks
    ]
    facts = [
        ("features", _feature_fact(plan)),
        ("backbone", _backbone_fact(plan)),
        ("modules", _module_fact(plan)),
        ("bank", _bank_fact(plan)),
        ("scored with", ", ".join((*plan.routers, *plan.baselines))),
        ("run", f"{plan.run} in {plan.run_dir}"),
    ]
    lines = [
        f"{plan.name}: {plan.scenario}, {plural(plan.classes, 'class', 'classes')} in "
        f"{plural(len(plan.tasks), 'task')}, recipe {plan.recipe}",
        "",
        aligned(titles, rows),
        "",
        *(f"{name:<12}{fact}" for name, fact in facts),
        *(f"warning: {printable(warning)}" for warning in plan.warnings),
        "nothing was started",
    ]
    return "\n".join(lines)


def _feature_fact(plan: Plan) -> str:
    work = plan.features
    views = f", {plural(work.views, 'augmented view')} of training samples" if work.views else ""
    size = "size unknown" if work.bytes is None else human_bytes(work.bytes)
    cached = "" if work.cached_rows is None else f"; {work.cached_rows:,} of them cached"
    width = plan.backbone["width"]
    return (
        f"{work.rows:,} of width {'unknown' if width is None else width} as {work.dtype}, {size}, in "
        f"{plural(work.parts, 'part')}{views}{cached}"
    )


def _backbone_fact(plan: Plan) -> str:
    work, name = plan.features, plan.backbone["name"]
    if name == READY_FEATURES:
        return "none: the features are ready"
    most = "" if work.exact or not work.backbone_images else "at most "
    return f"{name}; {most}{plural(work.backbone_images, 'image')} would go through it"


def _module_fact(plan: Plan) -> str:
    module = plan.module
    if module is None:
        return "sizes depend on the backbone's width, which is unknown before it is loaded"
    return (
        f"{module['parameters']:,} parameters ({human_bytes(module['bytes'])}) each, flow {module['flow']}, "
        f"objective {plan.objective}; {module['modules']:,} in all, heads {module['head_parameters']:,} parameters, "
        f"statistics {human_bytes(module['statistics_bytes'])}"
    )


def _bank_fact(plan: Plan) -> str:
    bank = plan.bank
    if bank["version"] is None:
        return f"{bank['name']} in {plan.storage} does not exist yet; {plural(bank['to_learn'], 'task')} to learn"
    left = plural(bank["to_learn"], "task") if bank["to_learn"] else "nothing"
    return (
        f"{bank['name']} in {plan.storage} version {bank['version']} holds {plural(bank['tasks'], 'task')} "
        f"({human_bytes(bank['bytes'])}); {left} to learn"
    )
