"""Reads the `[swe]` table of a task file: each row that can run becomes a task."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from polar.data.row_files import raw_rows
from polar.data.swe.row import SweRow
from polar.data.swe.sources import Repositories, has_image, images_here, in_loop
from polar.data.swe.table import SweTable
from polar.data.swe.task import SweTasks
from polar.data.task_sets import SetItems, SkippedTask, TaskItem
from polar.errors import ConfigError, PolarError, first_problem
from polar.evaluators.swe_bench.grading import MISSING, is_installed


class PlacedRow(NamedTuple):
    where: str
    row: SweRow


def read_swe(table: Mapping[str, Any], folder: Path) -> SetItems:
    if not is_installed():
        raise ConfigError(MISSING)
    options = _options(table)
    skipped: list[SkippedTask] = []
    rows = _chosen(_rows(options, folder, skipped), options, skipped)
    problems = _problems(rows, options, folder)
    tasks = SweTasks(options, Repositories(_folder_of(options, folder)))
    items: list[TaskItem] = []
    for where, row in rows:
        if options.limit is not None and len(items) == options.limit:
            break
        try:
            if problem := problems.get(row.instance_id):
                raise ValueError(problem)
            items.append(TaskItem(where, tasks.task_of(row), of_set=True))
        except ValueError as error:
            skipped.append(SkippedTask(where, f"{row.instance_id}: {error}"))
    return SetItems(items, skipped)


def _options(table: Mapping[str, Any]) -> SweTable:
    try:
        return SweTable.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(first_problem(error)) from error


def _folder_of(options: SweTable, folder: Path) -> Path | None:
    return folder / options.repositories if options.repositories is not None else None


def _rows(options: SweTable, folder: Path, skipped: list[SkippedTask]) -> list[PlacedRow]:
    """Of all files; a row that has no usable fields, and a second one with the same id, are skipped."""
    found: list[PlacedRow] = []
    first: dict[str, str] = {}
    for name in options.row_files:
        for raw in raw_rows(folder / name, options.split):
            try:
                if raw.problem:
                    raise ValueError(raw.problem)
                row = SweRow.model_validate(raw.value)
                if (other := first.setdefault(row.instance_id, raw.where)) != raw.where:
                    raise ValueError(f"instance_id {row.instance_id!r} is used at {other} too")
                found.append(PlacedRow(raw.where, row))
            except ValidationError as error:
                skipped.append(SkippedTask(raw.where, first_problem(error)))
            except ValueError as error:
                skipped.append(SkippedTask(raw.where, str(error)))
    return found


def _chosen(rows: list[PlacedRow], options: SweTable, skipped: list[SkippedTask]) -> list[PlacedRow]:
    wanted = set(options.instances)
    known = {each.row.instance_id for each in rows}
    skipped += [SkippedTask(f"instances: {name}", "no row has this id") for name in sorted(wanted - known)]
    repos = {each.row.repo for each in rows}
    skipped += [
        SkippedTask(f"repos: {name}", "no row is of this repository")
        for name in options.repos
        if name not in repos
    ]
    chosen = [
        each
        for each in rows
        if (not wanted or each.row.instance_id in wanted)
        and (not options.repos or each.row.repo in options.repos)
        and each.row.repo not in options.exclude_repos
    ]
    if options.shuffle_seed is not None:
        chosen.sort(key=lambda each: each.row.instance_id)  # the order of the files does not matter
        random.Random(options.shuffle_seed).shuffle(chosen)
    return chosen


def _problems(rows: list[PlacedRow], options: SweTable, folder: Path) -> dict[str, str]:
    """Instance id to the reason why a session of it could not begin."""
    with_image = {each.row.instance_id: name for each in rows if (name := options.image_of(each.row))}
    others = [each.row for each in rows if each.row.instance_id not in with_image]
    found = Repositories(_folder_of(options, folder)).problems(others)
    if options.only_local_images and with_image:
        try:
            here = in_loop(images_here)
        except PolarError as error:
            raise ConfigError(f"only_local_images: {error}") from error
        missing = "the Docker Engine of this machine does not have its image {!r}: `docker pull` it"
        found |= {key: missing.format(name) for key, name in with_image.items() if not has_image(name, here)}
    return found
