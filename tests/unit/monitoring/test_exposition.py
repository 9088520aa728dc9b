from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from polar.monitoring.exposition import LabelLimit, Meters, counter, exposition, gauge, histogram
from polar.monitoring.loop_lag import watched_lag
from waiting import until


class Families:
    def __init__(self, *families: object) -> None:
        self._families = families

    def collect(self) -> tuple[object, ...]:
        return self._families


def samples(*sources: object) -> dict[tuple[str, str], float]:
    """By name and the values of the labels."""
    families = text_string_to_metric_families(exposition(*sources).decode())  # type: ignore[arg-type]
    return {(s.name, ",".join(s.labels.values())): s.value for family in families for s in family.samples}


def test_families_with_and_without_labels() -> None:
    found = samples(
        Families(
            gauge("a_gauge", "About.", 2),
            gauge("b_gauge", "About.", {("x",): 1.0, ("y",): 0.0}, ["name"]),
            counter("c", "About.", {('quo"te\n',): 3.0}, ["name"]),
        )
    )
    assert found == {
        ("a_gauge", ""): 2,
        ("b_gauge", "x"): 1,
        ("b_gauge", "y"): 0,
        ("c_total", 'quo"te\n'): 3,
    }


def test_a_histogram_of_counted_values() -> None:
    found = samples(Families(histogram("age", "About.", {0: 5, 2: 3, 40: 1}, (0, 1, 2, 32))))
    buckets = {edge: found["age_bucket", edge] for edge in ("0.0", "1.0", "2.0", "32.0", "+Inf")}
    assert buckets == {"0.0": 5, "1.0": 5, "2.0": 8, "32.0": 8, "+Inf": 9}
    assert (found["age_sum", ""], found["age_count", ""]) == (46, 9)


def test_two_apps_in_one_process_count_apart() -> None:
    one, two = Meters("1.0"), Meters("1.0")
    first, second = one.counter("calls", "About."), two.counter("calls", "About.")
    first.inc(2)
    second.inc(5)
    assert samples(one)["calls_total", ""] == 2 and samples(two)["calls_total", ""] == 5
    assert samples(one)["polar_build_info", "1.0"] == 1
    assert not [name for name, _ in samples(one) if name.endswith("_created")]


def test_labels_that_others_choose_are_bounded() -> None:
    limit = LabelLimit(2)
    assert [limit(value) for value in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]


def test_a_label_that_others_choose_is_short_and_can_be_written() -> None:
    """One half of a character would fail every scrape from then on, and a megabyte be sent with each."""
    meters, limit = Meters("1.0"), LabelLimit(2)
    reasons = meters.counter("polar_breaks", "Breaks.", "reason")
    for reason in ("half \ud800", "x" * 10_000):
        reasons.labels(limit(reason)).inc()
    text = exposition(meters).decode()
    assert 'reason="half ?"' in text
    assert max(map(len, text.splitlines())) < 500


async def test_a_stalled_event_loop_is_seen() -> None:
    import time

    meters = Meters("1.0")
    async with watched_lag(meters):
        await until(lambda: samples(meters)["polar_event_loop_lag_seconds_count", ""] >= 1)
        time.sleep(0.4)  # noqa: ASYNC251 - this is what it has to notice
        await until(lambda: samples(meters)["polar_event_loop_lag_seconds_sum", ""] > 0.25)
    found = samples(meters)
    assert found["polar_event_loop_lag_seconds_bucket", "0.25"] < found["polar_event_loop_lag_seconds_count", ""]
