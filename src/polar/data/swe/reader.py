"""Reads the `[swe]` table of a task file: each row that can run becomes a task."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from pydantic import ValidationError

from polar.data.row_files import RawRow, raw_rows
from polar.data.row_store import RowStore
from polar.data.swe.row import SweRow
from polar.data.swe.sources import Repositories, has_image, images_here
from polar.data.swe.table import SweTable
from polar.data.swe.task import SweTasks
from polar.data.task_sets import SkippedTask, TaskItem
from polar.errors import ConfigError, PolarError, first_problem
from polar.evaluators.swe_bench.grading import MISSING, is_installed
from polar.runtimes.host.threads import in_loop


class PlacedRow(NamedTuple):
    """Of a row what choosing it needs; the rest is not in memory."""

    position: int
    where: str
    instance_id: str
    repo: str
    base_commit: str
    image: str
    """Empty: its repository is a bundle or clone."""


def read_swe(table: Mapping[str, Any], folder: Path) -> Iterator[TaskItem | SkippedTask]:
    if not is_installed():
        raise ConfigError(MISSING)
    options = _options(table)
    skipped: list[SkippedTask] = []
    store = RowStore()
    rows = _chosen(_rows(options, folder, store, skipped), options, skipped)
    yield from skipped
    problems = _problems(rows, options, folder)
    tasks = SweTasks(options, Repositories(_folder_of(options, folder)))
    count = 0
    for row in rows:
        if count == options.limit:
            return
        try:
            if problem := problems.get(row.instance_id):
                raise ValueError(problem)
            value = tasks.task_of(SweRow.model_validate_json(store.at(row.position)))
        except ValueError as error:
            yield SkippedTask(row.where, f"{row.instance_id}: {error}")
        else:
            count += 1
            yield TaskItem(row.where, value, of_set=True)


def _options(table: Mapping[str, Any]) -> SweTable:
    try:
        return SweTable.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(first_problem(error)) from error


def _folder_of(options: SweTable, folder: Path) -> Path | None:
    return folder / options.repositories if options.repositories is not None else None


def _rows(options: SweTable, folder: Path, store: RowStore, skipped: list[SkippedTask]) -> list[PlacedRow]:
    """Of all files; a row that has no usable fields, and a second one with the same id, are skipped."""
    found: list[PlacedRow] = []
    for name in options.row_files:
        for raw in raw_rows(folder / name, options.split):
            try:
                found.append(_stored(raw, options, store))
            except ValidationError as error:
                skipped.append(SkippedTask(raw.where, first_problem(error)))
            except ValueError as error:
                skipped.append(SkippedTask(raw.where, str(error)))
    return found


def _stored(raw: RawRow, options: SweTable, store: RowStore) -> PlacedRow:
    """Raises ValueError if it is no row."""
    if raw.problem:
        raise ValueError(raw.problem)
    row = SweRow.model_validate(raw.value)
    if (other := store.add(row.instance_id, row.model_dump_json().encode(), raw.where)) is not None:
        raise ValueError(f"instance_id {row.instance_id!r} is used at {other} too")
    key = (row.instance_id, intern(row.repo), row.base_commit, options.image_of(row))
    return PlacedRow(len(store) - 1, raw.where, *key)


def _chosen(rows: list[PlacedRow], options: SweTable, skipped: list[SkippedTask]) -> list[PlacedRow]:
    wanted = set(options.instances)
    known = {each.instance_id for each in rows}
    skipped += [SkippedTask(f"instances: {name}", "no row has this id") for name in sorted(wanted - known)]
    repos = {each.repo for each in rows}
    skipped += [
        SkippedTask(f"repos: {name}", "no row is of this repository")
        for name in options.repos
        if name not in repos
    ]
    chosen = [
        each
        for each in rows
        if (not wanted or each.instance_id in wanted)
        and (not options.repos or each.repo in options.repos)
        and each.repo not in options.exclude_repos
    ]
    if options.shuffle_seed is not None:
        chosen.sort(key=lambda each: each.instance_id)  # the order of the files does not matter
        random.Random(options.shuffle_seed).shuffle(chosen)
    return chosen


def _problems(rows: list[PlacedRow], options: SweTable, folder: Path) -> dict[str, str]:
    """Instance id to the reason why a session of it could not begin."""
    with_image = {each.instance_id: each.image for each in rows if each.image}
    others = (each for each in rows if not each.image)
    found = Repositories(_folder_of(options, folder)).problems(others)
    if options.only_local_images and with_image:
        try:
            here = in_loop(images_here)
        except PolarError as error:
            raise ConfigError(f"only_local_images: {error}") from error
        missing = "the Docker Engine of this machine does not have its image {!r}: `docker pull` it"
        found |= {key: missing.format(name) for key, name in with_image.items() if not has_image(name, here)}
    return found
