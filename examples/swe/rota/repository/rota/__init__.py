"""Plans work over time."""

from rota.agenda import Agenda
from rota.hours import WorkingHours
from rota.intervals import Interval, merge, overlapping, subtract
from rota.jobs import CircleError, finish_times, order
from rota.retries import delays
from rota.rules import Rule

__all__ = [
    "Agenda",
    "CircleError",
    "Interval",
    "Rule",
    "WorkingHours",
    "delays",
    "finish_times",
    "merge",
    "order",
    "overlapping",
    "subtract",
]
