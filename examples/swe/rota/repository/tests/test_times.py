"""Intervals, rules and working hours."""

from datetime import date, datetime, timedelta

import pytest

from rota import Interval, Rule, WorkingHours, merge, overlapping, subtract

DAY = datetime(2026, 3, 2)  # a Monday


def hours(start, end):
    return Interval(DAY + timedelta(hours=start), DAY + timedelta(hours=end))


def test_an_interval_does_not_end_before_it_starts():
    with pytest.raises(ValueError, match="before its start"):
        hours(3, 2)


def test_overlapping_pairs():
    assert overlapping([hours(4, 6), hours(1, 3), hours(2, 5)]) == [
        (hours(1, 3), hours(2, 5)),
        (hours(2, 5), hours(4, 6)),
    ]


def test_merge_of_overlapping_intervals():
    assert merge([hours(5, 6), hours(1, 3), hours(2, 4)]) == [hours(1, 4), hours(5, 6)]


def test_subtract():
    assert subtract(hours(0, 10), [hours(2, 3), hours(5, 7)]) == [hours(0, 2), hours(3, 5), hours(7, 10)]


def test_subtract_all():
    assert subtract(hours(2, 4), [hours(1, 5)]) == []


def test_every_second_day():
    days = Rule("daily", every=2).occurrences(DAY, count=3)
    assert [day.day for day in days] == [2, 4, 6]


def test_until():
    assert len(Rule("weekly").occurrences(DAY, until=DAY + timedelta(weeks=2))) == 3


def test_a_rule_without_an_end():
    with pytest.raises(ValueError, match="for ever"):
        Rule("daily").occurrences(DAY)


def test_weekdays_of_a_week():
    days = Rule("weekly", weekdays=(0, 2)).occurrences(DAY, count=4)
    assert [day.day for day in days] == [2, 4, 9, 11]


def test_months():
    days = Rule("monthly", every=5).occurrences(datetime(2026, 10, 15), count=3)
    assert [(day.year, day.month, day.day) for day in days] == [(2026, 10, 15), (2027, 3, 15), (2027, 8, 15)]


def test_open_and_closed():
    office = WorkingHours()
    assert office.is_open(DAY.replace(hour=9))
    assert not office.is_open(DAY.replace(hour=17))
    assert not office.is_open(datetime(2026, 3, 7, 12))


def test_work_within_a_day():
    assert WorkingHours().add(DAY.replace(hour=10), timedelta(hours=3)) == DAY.replace(hour=13)


def test_work_over_a_weekend():
    friday = datetime(2026, 3, 6, 16)
    assert WorkingHours().add(friday, timedelta(hours=2)) == datetime(2026, 3, 9, 10)


def test_a_holiday_is_skipped():
    office = WorkingHours().with_holidays([date(2026, 3, 3)])
    assert office.add(DAY.replace(hour=16), timedelta(hours=2)) == datetime(2026, 3, 4, 10)
