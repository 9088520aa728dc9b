"""Curves of trainers: one point for each run, phase and step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, delete, insert, select, update

from polar.server.errors import not_found
from polar.server.records.tables import training_points, training_runs
from polar.server.state import Change
from polar.types import TrainingPage, TrainingPoint, TrainingReport, TrainingRun


def report(change: Change, run_id: str, given: TrainingReport) -> TrainingRun:
    """A repeated point changes nothing. One with other metrics replaces the older: a trainer that went back to its
    checkpoint does the steps after it again."""
    latest = {(point.phase, point.step): point for point in given.points}
    known = _known(change.connection, run_id, latest.values())
    new = [point for key, point in latest.items() if key not in known or known[key].metrics != point.metrics]
    replaced = [point for point in new if (point.phase, point.step) in known]
    for point in replaced:
        this = {"run_id": run_id, "phase": point.phase, "step": point.step}
        change.connection.execute(delete(training_points).filter_by(**this))
    if new:
        _count(change, run_id, new, len(new) - len(replaced))
        change.connection.execute(insert(training_points), [_row(run_id, point) for point in new])
    return _run(change.connection, run_id)


def listing(connection: Connection, limit: int) -> list[TrainingRun]:
    """The last updated first."""
    query = select(training_runs).order_by(training_runs.c.updated.desc(), training_runs.c.run_id).limit(limit)
    return [TrainingRun.model_validate(dict(row)) for row in connection.execute(query).mappings()]


def page(connection: Connection, run_id: str, after: int, limit: int) -> TrainingPage:
    _run(connection, run_id)  # raises if it is unknown
    query = (
        select(training_points.c.cursor, training_points.c.body)
        .where(training_points.c.run_id == run_id, training_points.c.cursor > after)
        .order_by(training_points.c.cursor)
        .limit(limit)
    )
    rows = connection.execute(query).all()
    return TrainingPage(
        points=tuple(TrainingPoint.model_validate_json(row.body) for row in rows),
        cursor=rows[-1].cursor if rows else after,
    )


def _known(
    connection: Connection, run_id: str, points: Iterable[TrainingPoint]
) -> dict[tuple[str, int], TrainingPoint]:
    """Stored points of the same steps."""
    query = select(training_points.c.body).where(
        training_points.c.run_id == run_id, training_points.c.step.in_({point.step for point in points})
    )
    found = map(TrainingPoint.model_validate_json, connection.execute(query).scalars())
    return {(point.phase, point.step): point for point in found}


def _count(change: Change, run_id: str, new: Sequence[TrainingPoint], more: int) -> None:
    step = max(point.step for point in new)
    before = change.connection.execute(select(training_runs).where(training_runs.c.run_id == run_id)).one_or_none()
    if before is None:
        row = {"run_id": run_id, "points": more, "last_step": step, "started": change.now, "updated": change.now}
        change.connection.execute(insert(training_runs).values(**row))
        return
    change.connection.execute(
        update(training_runs)
        .where(training_runs.c.run_id == run_id)
        .values(points=before.points + more, last_step=max(before.last_step, step), updated=change.now)
    )


def _row(run_id: str, point: TrainingPoint) -> dict[str, object]:
    return {"run_id": run_id, "phase": point.phase, "step": point.step, "body": point.model_dump_json()}


def _run(connection: Connection, run_id: str) -> TrainingRun:
    row = connection.execute(select(training_runs).where(training_runs.c.run_id == run_id)).mappings().first()
    if row is None:
        raise not_found("training run", run_id)
    return TrainingRun.model_validate(dict(row))
