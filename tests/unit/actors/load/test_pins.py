"""Which connection a sequence has."""

from __future__ import annotations

from squall.actors.load.sequence_pins import Pins


def test_a_key_has_its_connection_until_it_is_released_or_that_is_gone() -> None:
    pins: Pins[str] = Pins()
    pins.keep(None, "a")
    assert not pins.holds("a")
    for key, connection in ((1, "a"), (2, "a"), (3, "b"), (1, "a")):
        pins.keep(key, connection)
    assert [pins.of(key) for key in (1, 2, 3, 4, None)] == ["a", "a", "b", None, None]
    assert pins.release(1) == "a"
    assert pins.release(1) is None
    assert pins.holds("a")
    pins.drop("b")
    assert pins.of(3) is None
    assert pins.release(2) == "a"
    assert not pins.holds("a")
    pins.drop("a")
