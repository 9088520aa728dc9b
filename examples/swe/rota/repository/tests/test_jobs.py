"""Agenda, dependent jobs and retries."""

from datetime import datetime, timedelta

import pytest

from rota import Agenda, CircleError, delays, finish_times, order

NOON = datetime(2026, 3, 2, 12)


def test_jobs_come_in_the_order_of_their_times():
    agenda = Agenda()
    agenda.add("later", NOON + timedelta(hours=1))
    agenda.add("sooner", NOON)
    assert agenda.due(NOON + timedelta(hours=2)) == [("sooner", None), ("later", None)]


def test_a_job_whose_time_has_not_come_stays():
    agenda = Agenda()
    agenda.add("later", NOON + timedelta(hours=1))
    assert agenda.due(NOON) == []
    assert "later" in agenda and len(agenda) == 1


def test_a_cancelled_job_is_not_due():
    agenda = Agenda()
    agenda.add("a", NOON)
    agenda.add("b", NOON)
    agenda.cancel("a")
    assert agenda.due(NOON) == [("b", None)]


def test_an_unknown_job_cannot_be_cancelled():
    with pytest.raises(KeyError, match="no job"):
        Agenda().cancel("a")


def test_next_time():
    agenda = Agenda()
    assert agenda.next_time() is None
    agenda.add("a", NOON)
    assert agenda.next_time() == NOON


def test_order_of_a_chain():
    assert order({"c": ["b"], "b": ["a"]}) == ["a", "b", "c"]


def test_order_by_name_where_there_is_a_choice():
    assert order({"z": [], "y": [], "x": []}) == ["x", "y", "z"]


def test_a_circle():
    with pytest.raises(CircleError) as error:
        order({"a": ["b"], "b": ["c"], "c": ["a"]})
    assert sorted(error.value.circle) == ["a", "b", "c"]


def test_finish_times_of_a_chain():
    takes = {"a": timedelta(hours=1), "b": timedelta(hours=2)}
    assert finish_times({"b": ["a"]}, takes)["b"] == timedelta(hours=3)


def test_delays_grow():
    seconds = [delay.total_seconds() for delay in delays(timedelta(seconds=1), 2, timedelta(seconds=60), 4)]
    assert seconds == [1, 2, 4]
