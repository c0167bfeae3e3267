"""An immutable record behaves as the frozen dataclass of its fields."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.records import Frozen


class Ours(Frozen):
    a: int
    b: int = 3
    c: dict[str, int] = field(default_factory=dict, repr=False, compare=False)


class Below(Ours):
    d: int = 7


@dataclass(frozen=True)
class Plain:
    a: int
    b: int = 3
    c: dict[str, int] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class PlainBelow(Plain):
    d: int = 7


values = st.lists(st.integers(0, 2), max_size=5)
names = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2))


def made(kind: Any, given: list[int], named: dict[str, int]) -> Any:
    try:
        return kind(*given, **named)
    except TypeError:
        return None


@given(values, names, values, names)
def test_a_record_is_made_shown_and_compared_as_a_dataclass(
    one: list[int], named: dict[str, int], other: list[int], others: dict[str, int]
) -> None:
    for ours, plain in ((Ours, Plain), (Below, PlainBelow)):
        a, b = (made(ours, *given) for given in ((one, named), (other, others)))
        c, d = (made(plain, *given) for given in ((one, named), (other, others)))
        assert ((a is None), (b is None), a == b) == ((c is None), (d is None), c == d)
        if a is not None:
            assert repr(a) == repr(c).replace("Plain", "Ours" if ours is Ours else "")
            assert (vars(a), asdict(a), hash(a)) == (vars(c), asdict(c), hash(c))
            assert vars(replace(a, a=9)) == vars(replace(c, a=9))
            assert pickle.loads(pickle.dumps(a)) == a


def test_a_record_stays_as_it_is() -> None:
    one = Ours(1)
    changes: list[Callable[[], None]] = [lambda: setattr(one, "a", 2), lambda: delattr(one, "a")]
    for change in changes:
        with pytest.raises(AttributeError, match="'a' of Ours"):
            change()
    assert one.a == 1
