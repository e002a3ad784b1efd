"""`luca predict`: class, task and confidences of images or features, from a version of a bank."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from orchestrator.api import open_bank
from orchestrator.commands.bank.naming import split_name
from orchestrator.commands.prediction_output import (
    PredictionWriter,
    TextFormat,
    text_writer,
    writing_to,
)
from pipelines.unlabelled import find_inputs
from workers.errors import DataError, SettingsError
from workers.wording import plural

if TYPE_CHECKING:
    from pipelines.prediction import Model


def predict_command(
    bank: str,
    paths: Sequence[str],
    *,
    storage: str,
    output: str | None = None,
    text_format: str | None = None,
    router: str | None = None,
    batch_size: int = 64,
    skip_unreadable: bool = False,
    backbone: str | None = None,
    weights: str | None = None,
    device: str = "auto",
    feature_column: str = "feature",
    image_column: str | None = None,
) -> None:
    """Predict everything below ``paths`` and write it as it comes.

    Args:
        bank: NAME, NAME@tag or NAME@version.
        output: a file that appears whole; None writes to standard output in ``text_format``.
        skip_unreadable: name images that cannot be read on standard error and go on; else the first one ends it.

    Raises:
        LucaError: one clear sentence; no output file is left.
    """
    kind = _text_format(text_format, output)
    # Read when torch is first imported: threads that wait asleep, since spinning ones and the decoders would take each
    # other's cores (ten times slower on a busy machine).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    name, ref = split_name(bank)
    opened = open_bank(storage, name)
    inputs, notes = find_inputs(paths, feature_column=feature_column, image_column=image_column)
    model = opened.load(ref, router=router, backbone=backbone, weights=weights, device=device)
    if model.order_dependent:
        raise SettingsError(
            f"router '{model.router}' decides on whole batches, so a prediction would depend on its neighbours: "
            "choose lda, or another that looks at one sample"
        )
    for item in inputs:
        model.check_input(item)
    for note in notes:
        _say(note)
    skipped: list[str] = []

    def unreadable(sentence: str) -> None:
        if not skip_unreadable:
            raise DataError(f"{sentence}; --skip-unreadable goes on without such images")
        skipped.append(sentence)
        _say(f"skipped: {sentence}")

    started, count = time.perf_counter(), 0
    with _writer(output, kind) as writer:
        if any(item.kind == "images" for item in inputs):
            _ = model.backbone
            started = time.perf_counter()
        for ids, predicted in model.predict_inputs(
            inputs, batch_size=batch_size, unreadable=unreadable
        ):
            writer.write(ids, predicted)
            count += len(ids)
        if count + len(skipped) == 0:
            raise DataError(f"nothing to predict: the tables in {', '.join(paths)} have no rows")
        writer.close()
    _say(_summary(model, count, len(skipped), time.perf_counter() - started, output))


def _text_format(asked: str | None, output: str | None) -> TextFormat:
    """The format on standard output.

    Raises:
        SettingsError: there is no such format, or a file is written instead.
    """
    if asked is None:
        return "table"
    if output is not None:
        raise SettingsError("--format is for standard output; --output says its format by its name")
    known: dict[str, TextFormat] = {"table": "table", "csv": "csv", "jsonl": "jsonl"}
    if asked not in known:
        raise SettingsError(f"--format {asked!r} is unknown: choose table, csv or jsonl")
    return known[asked]


def _writer(
    output: str | None, text_format: TextFormat
) -> AbstractContextManager[PredictionWriter]:
    if output is not None:
        return writing_to(output)
    return nullcontext(text_writer(text_format, sys.stdout))


def _summary(model: Model, count: int, skipped: int, seconds: float, output: str | None) -> str:
    version = model.version
    unread = f", {skipped:,} unreadable and skipped" if skipped else ""
    where = f" in {output}" if output is not None else ""
    return (
        f"{plural(count, 'prediction')}{where}{unread} ({count / max(seconds, 1e-9):,.0f}/s), by bank "
        f"{version.bank.name} version {version.version} with router {model.router}"
    )


def _say(sentence: str) -> None:
    print(f"luca: {sentence}", file=sys.stderr)
