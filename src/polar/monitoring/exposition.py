"""Metrics in the text format that Prometheus scrapes, and the families that every process of ours has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

CONTENT_TYPE = CONTENT_TYPE_LATEST
OTHER = "other"
"""The label of whatever comes after the first `LabelLimit.most` values."""
LONGEST_LABEL = 200

Samples = Mapping[tuple[str, ...], float]
"""By the values of the labels, in their order."""


class MetricSource(Protocol):
    def collect(self) -> Iterable[Metric]: ...


class LabelLimit:
    """Bounds the values of a label that other processes choose, in number and in length: Prometheus keeps a series
    for each, for weeks."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        # A lone surrogate cannot be written: it would fail every scrape from now on.
        value = value[:LONGEST_LABEL].encode(errors="replace").decode()
        if value in self._known or len(self._known) < self._most:
            self._known.add(value)
            return value
        return OTHER


class Meters:
    """What one app counts: a registry for each, so that two in one process do not mix. Has the process's memory,
    CPU and file descriptors."""

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        self._version = version
        ProcessCollector(registry=self._registry)

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        """`name` without `_total`."""
        return Counter(name, about, labels, registry=self._registry)

    def histogram(self, name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=buckets, registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        yield gauge("polar_build_info", "Version of Polar.", {(self._version,): 1.0}, ["version"])
        yield from self._registry.collect()


def gauge(name: str, about: str, samples: Samples | float, labels: Sequence[str] = ()) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, value in _samples(samples).items():
        family.add_metric(values, value)
    return family


def counter(name: str, about: str, samples: Samples | float, labels: Sequence[str] = ()) -> Metric:
    """`name` without `_total`."""
    family = CounterMetricFamily(name, about, labels=labels)
    for values, value in _samples(samples).items():
        family.add_metric(values, value)
    return family


def histogram(name: str, about: str, counts: Mapping[int, int], buckets: Sequence[int]) -> Metric:
    """Of values that were counted: how often there was each."""
    within = [(str(float(most)), sum(n for value, n in counts.items() if value <= most)) for most in buckets]
    everything = ("+Inf", sum(counts.values()))
    family = HistogramMetricFamily(name, about)
    family.add_metric([], [*within, everything], sum(value * count for value, count in counts.items()))
    return family


def exposition(*sources: MetricSource) -> bytes:
    """All families of the sources."""
    return generate_latest(_WithoutCreationTimes(sources))  # pyright: ignore[reportArgumentType]


def _samples(samples: Samples | float) -> Samples:
    return samples if isinstance(samples, Mapping) else {(): samples}


class _WithoutCreationTimes:
    """Leaves out the time at which each series began: as many series again, of which no query has use."""

    def __init__(self, sources: Sequence[MetricSource]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            for family in source.collect():
                family.samples = [one for one in family.samples if not one.name.endswith("_created")]
                yield family
