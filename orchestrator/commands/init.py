"""`luca init`: an experiment file for data that nobody has described yet, with the neighbouring options as comments."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.commands.text import plural, shortened
from orchestrator.yaml_text import parse_yaml
from pipelines.discovery import Discovery, discover
from pipelines.stream.class_incremental import permuted
from workers.errors import SettingsError
from workers.storage.atomic import write_file

PUBLISHED = "vit_base_patch16_224.augreg_in21k"
EMBEDDED = "demo_vit"
_TASKS = 10
_MOST_NAMES = 200
"""Class names that are written out in order; more would hide the rest of the file."""
SEED = 1993
STORAGE = "luca-storage"
"""The folder in which ``luca predict`` and ``luca bank`` look when they are started beside it."""


def init_command(
    path: str, *, output: str | None = None, backbone: str | None = None, force: bool = False
) -> None:
    """Write an experiment file for the samples at ``path`` and say what to type next.

    Args:
        output: the file; None names it after the data, in the working directory.
        backbone: None takes timm's published ViT-B where its weights can be had, else the embedded one.
        force: replace a file that is there.

    Raises:
        DataError: there is nothing that can be read; says what would be.
        SettingsError: the file is there already.
        StorageError: the file cannot be written.
    """
    found = discover(path)
    name = experiment_name(path)
    target = Path(output or f"{name}.yaml").expanduser()
    if os.path.isdir(target):
        raise SettingsError(f"--output {str(target)!r} is a folder: name a file")
    if os.path.lexists(target) and not force:
        raise SettingsError(f"{str(target)!r} exists already: name another --output, or --force")
    remarks = [*found.remarks, *found.listing.warnings]
    if backbone is None and found.listing.feature_width is None:
        backbone, why = _available_backbone()
        remarks.append(why)
    text = experiment_text(name, found, backbone=PUBLISHED if backbone is None else backbone)
    _check(text, str(target))
    write_file(target, text.encode())
    for remark in remarks:
        _say(remark)
    print(f"{target}: {_headline(found)}")
    shown = shlex.quote(str(target))
    print(f"look at the tasks:   luca stream show {shown}")
    print(f"see what it costs:   luca run {shown} --dry-run")
    print(f"learn them:          luca run {shown}")


def experiment_name(path: str) -> str:
    """A name for the experiment after its data; never one of a preset, whose bank it would share."""
    from orchestrator.experiment_files import preset_names

    last = path.partition("?")[0].rstrip("/").rpartition("/")[2]
    if last in ("", ".", ".."):
        last = Path(path or ".").resolve().name
    stem = re.sub(r"(\.tar)?\.[A-Za-z0-9]+$", "", last) or last
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:60] or "experiment"
    return f"{name}-data" if name in preset_names() else name


def classes_per_task(classes: int) -> int:
    """Classes of a task so that there are about ten, without a remainder where a division comes near it."""
    if classes < 4:
        return 1
    even = [size for size in range(1, classes) if classes % size == 0]
    near = [size for size in even if 5 <= classes // size <= 20]
    if near:
        return min(near, key=lambda size: abs(classes / size - _TASKS))
    return max(2, round(classes / _TASKS))


def experiment_text(name: str, found: Discovery, *, backbone: str) -> str:
    """The experiment file: settings for the data, and the options a reader may want next, as comments."""
    sections = [
        f"# Written by luca init for {_comment(str(found.source['path']))}\n"
        f"# Found: {_headline(found)}.\n"
        "# Every key and its default: luca schema; any key from the command line: -o key=value\n"
        f"name: {_scalar(name)}\n"
        f"seed: {SEED}                      # class order and all other randomness\n"
        "# Banks, features and runs; a folder, or a URI such as s3://bucket/prefix.  Absolute, so that luca finds the same\n"
        "# from wherever it is started (a relative folder is taken from there); predict and bank take it as --storage.\n"
        f"storage: {_scalar(os.path.abspath(STORAGE))}\n"
        "recipe: local                   # tosca: as published, tasks in order; local_sparse: smaller modules",
        _stream_section(found),
    ]
    if found.listing.feature_width is None:
        sections.append(
            "backbone:\n"
            "  # Any timm model with a [CLS] token; quicker: vit_small_patch16_224.augreg_in21k, often better:\n"
            "  # vit_base_patch14_dinov2.lvd142m; demo_vit is embedded and needs no network, but is weak.\n"
            f"  name: {_scalar(backbone)}\n"
            "  # weights: PATH               # a local .safetensors or .pth file instead of the hub\n\n"
            "features:\n"
            "  views: 0                      # augmented views of training images; 20 is the published recipe, 21 times the work\n"
            "  # precision: bfloat16         # quicker on a GPU\n"
            "  # tolerate_unreadable: 3      # go on without so many unreadable images, each of them named"
        )
    sections.append(
        "evaluation:\n"
        "  routers: [lda, entropy, oracle]   # the first is the headline; also ridge, lda_ridge, prototype, batch_entropy\n"
        "  baselines: [simplecil, joint_linear]   # also slda, ranpac, fecam, sequential_linear, joint_luca\n"
        "# gate: {min_accuracy: 0.8}     # tag a version 'production' only when validation says so\n"
        "# tracking: {wandb: {mode: online}}   # without a key runs are recorded offline, to be sent later"
    )
    return "\n\n".join(sections) + "\n"


def _stream_section(found: Discovery) -> str:
    classes = found.listing.classes
    per_task = classes_per_task(len(classes))
    tasks = -(-len(classes) // per_task)
    lines = [
        "stream:",
        "  scenario: class_incremental   # every task brings new classes; also task_incremental, explicit (tasks by name)",
    ]
    domains = found.domains
    if domains:
        lines += [
            f"  # The samples come from {plural(len(domains), 'domain')} ({_comment(shortened(domains))}). "
            "One task a domain,",
            "  # all classes in each, is: scenario: domain_incremental, without classes_per_task and class_order.",
        ]
    lines += [
        f"  classes_per_task: {per_task:<12}# {plural(len(classes), 'class', 'classes')} in {plural(tasks, 'task')}; "
        "first_task_classes: N makes the first one larger",
        *_order_lines(classes),
        "  validation_fraction: 0.0      # 0.1 holds a tenth of train out, for the gate and for sweeps",
        "  # shots: 5                    # few-shot; long_tail: 0.01 and blurry: 0.1 make the stream harder",
        "  source:",
        *(f"    {key}: {_scalar(value)}" for key, value in found.source.items()),
        *_split_lines(found),
    ]
    return "\n".join(lines)


def _order_lines(classes: Sequence[str]) -> list[str]:
    """The order of the classes as the seed permutes them, written out so that it stays when new ones arrive."""
    if len(classes) > _MOST_NAMES:
        return [
            "  # class_order: [...]          # every class by name; left out: permuted by the seed",
        ]
    order = permuted(classes, SEED)
    return [
        f"  class_order: [{', '.join(_scalar(name) for name in order)}]",
        f"    # as seed {SEED} permutes them; a class that arrives later goes to the end, and the bank learns just that one",
    ]


def _split_lines(found: Discovery) -> list[str]:
    if found.own_split:
        return ["    # The data say themselves what is train and what is test."]
    return [
        "    test_fraction: 0.2          # the data name no test samples, so this much of every class is kept for test",
        "    # split_seed: 1             # another choice of them",
    ]


def _headline(found: Discovery) -> str:
    """The data in half a sentence."""
    listing = found.listing
    splits = Counter(listing.samples["split"].to_pylist())
    width = listing.feature_width
    what = "images" if width is None else f"features of width {width}"
    domains = f", {plural(len(found.domains), 'domain')}" if found.domains else ""
    return (
        f"{sum(splits.values()):,} {what} of {plural(len(listing.classes), 'class', 'classes')}{domains}, "
        f"{splits['train']:,} for training and {splits['test']:,} for test"
    )


def _scalar(value: Any) -> str:
    """A value as YAML that reads back as itself, whatever is in it."""
    if isinstance(value, str):
        if re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*", value) and parse_yaml(value) == value:
            return value
        text = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else _escaped(c) for c in text)
    return json.dumps(value)


def _escaped(character: str) -> str:
    """A character as YAML escapes it between double quotes (JSON's pairs of surrogates mean something else there)."""
    return f"\\U{ord(character):08x}"


def _comment(text: str) -> str:
    """Text that may stand in a comment: one line, nothing but printable characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _check(text: str, where: str) -> None:
    """Refuse to write what could not be read again."""
    from orchestrator.experiment_files import parse_experiment

    parse_experiment(parse_yaml(text), where=where)


def _available_backbone() -> tuple[str, str]:
    """timm's published ViT-B where its weights are on this machine or can be fetched, else the embedded backbone."""
    from workers.modeling.hub import published_weights

    state = published_weights(PUBLISHED)
    if state.available:
        return PUBLISHED, f"backbone {PUBLISHED}: its weights are {state.where}"
    return EMBEDDED, (
        f"backbone {EMBEDDED}: the weights of {PUBLISHED} are not on this machine and the hub cannot be reached; with a "
        "weights file, set backbone.name and backbone.weights"
    )


def _say(sentence: str) -> None:
    print(f"luca: {sentence}", file=sys.stderr)
