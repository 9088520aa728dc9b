"""How long a session waits for its model, by a clock that tests turn themselves."""

from __future__ import annotations

from polar.gateway.slots import WaitClock


class Turned:
    def __init__(self) -> None:
        self.at_s = 0.0
        self.waits = WaitClock(lambda: self.at_s)

    def waited(self) -> tuple[float, float, float]:
        read = self.waits.read()
        return read.paused_s, read.engine_s, read.silent_s


def test_a_call_waits_from_its_arrival_to_its_first_token() -> None:
    clock = Turned()
    clock.at_s = 5.0
    assert clock.waited() == (0.0, 0.0, 0.0), "who asks nothing waits for nothing"
    with clock.waits.call() as call:
        clock.at_s += 3.0
        assert clock.waited() == (0.0, 3.0, 3.0)
        call.tokens_came()
        clock.at_s += 2.0
        assert clock.waited() == (0.0, 3.0, 2.0)
    clock.at_s += 7.0
    assert clock.waited() == (0.0, 3.0, 0.0)


def test_a_pause_is_counted_separately() -> None:
    clock = Turned()
    with clock.waits.call() as call:
        clock.at_s += 1.0
        with call.paused():
            clock.at_s += 10.0
        clock.at_s += 2.0
        call.tokens_came()
    assert clock.waited() == (10.0, 3.0, 0.0)


def test_a_session_does_not_wait_while_one_of_its_calls_is_sampled() -> None:
    clock = Turned()
    with clock.waits.call() as main:
        main.tokens_came()
        with clock.waits.call():
            clock.at_s += 4.0
            assert clock.waited() == (0.0, 0.0, 4.0)
            main.tokens_came()
            assert clock.waited() == (0.0, 0.0, 0.0), "one of them has just got a token"


def test_calls_that_wait_together_wait_once() -> None:
    clock = Turned()
    with clock.waits.call(), clock.waits.call():
        clock.at_s += 4.0
    assert clock.waited() == (0.0, 4.0, 0.0)
