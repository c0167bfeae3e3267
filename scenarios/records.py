"""What the records of a run are made of: frozen dataclasses whose fields are the keys of a JSON object, in that order.

`squall.analysis.record` writes and reads them. A field without a default must be there; one that is absent has its
default. Nothing here imports pydantic: processes that only make records do without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Frozen:
    """An immutable record: a subclass is a dataclass, whose methods are these. `dataclasses` would make them for each
    class anew, which takes half a millisecond of the start of every command: there are hundreds."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]]
    __own: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, eq: bool = True, kw_only: bool = False) -> None:
        super().__init_subclass__()
        dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        cls.__own = {one.name: one for one in fields(cls)}
        if not eq:
            cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__  # type: ignore[method-assign]

    def __init__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self.__match_args__, values, strict=False), **named)
        absent = self.__own.keys() - given.keys()
        given |= {one: default for one in absent if (default := default_of(self.__own[one])) is not MISSING}
        n_given = len(values) + len(named) + len(absent)
        if given.keys() != self.__own.keys() or n_given != len(self.__own):
            raise TypeError(
                f"{type(self).__name__} is made of {[*self.__own]}, not of {len(values)} and {[*named]}"
            )
        self.__dict__.update({name: given[name] for name in self.__own})
        self.__post_init__()

    def __post_init__(self) -> None:
        """What a kind of record checks of itself."""

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot change {name!r} of {type(self).__name__}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete {name!r} of {type(self).__name__}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__compared() == other.__compared()

    def __hash__(self) -> int:
        return hash(self.__compared())

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name, one in self.__own.items() if one.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __compared(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name, one in self.__own.items() if one.compare])


def default_of(one: Field[Any]) -> Any:
    """The default of a field, MISSING where it has none."""
    return one.default if one.default_factory is MISSING else one.default_factory()


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Record(Frozen, kw_only=True):
    """Part of the record of a run. The text below a field says what it means.

    Read strictly, as JSON has it: no number for a text, no truth value for a number, no number that is not finite.
    """

    LEAD: ClassVar[str] = ""
    """Field that brings those marked `Led`: they are written, whatever their value, if it has not its default."""
    REST: ClassVar[str] = ""
    """Field that holds the keys that no other field has."""
    __pydantic_config__: ClassVar[dict[str, bool]] = {"strict": True, "allow_inf_nan": False}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__(kw_only=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def gather(given: Any) -> Any:
            """The JSON object with its further keys in one."""
            if not isinstance(given, dict):
                return given
            known = cls.__dataclass_fields__.keys() - {cls.REST}
            rest = {key: value for key, value in given.items() if key not in known}
            return {**{key: given[key] for key in given.keys() & known}, cls.REST: rest}

        schema = handler(source)
        return core_schema.no_info_before_validator_function(gather, schema) if cls.REST else schema


class _LeftOut:
    """Marks a field that is not written while it has its default, so that no null is read for it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(_not_null, handler(source))


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("is null")
    return value


class _Number:
    """Marks a number that is read as it is written: what is whole stays whole, and has at most 64 bits."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_wrap_validator_function(_as_written, handler(source))


def _as_written(value: Any, check: Callable[[Any], Any]) -> Any:
    check(value)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError(f"is not within {_MOST_BITS} bits")
    return value


class _Listed:
    """Marks a list whose reading ends at its first wrong item: a fault of each would take more memory than the list."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "fail_fast": True}


_MOST_BITS = 64
LEFT_OUT, LED = _LeftOut(), object()

LeftOut = Annotated[T, LEFT_OUT]
Led = Annotated[T, LED]
"""Type of a field that is not written while it and the `LEAD` of its record have their defaults."""
Int = Annotated[int, _Number()]
Float = Annotated[float, _Number()]
Listed = Annotated[tuple[T, ...], _Listed()]


class RayPriority(Record):
    """How Ray started its processes on a node, and what squall made of it for its own."""

    niceness_given: Int
    """niceness from Ray"""
    niceness: Int
    """niceness that is left"""
    oom_score_adj_given: Int
    """oom_score_adj from Ray"""
    oom_score_adj: Int
    """oom_score_adj that is left"""


class GpuPlace(Record):
    """Where a GPU sits; null: not told."""

    uuid: str
    """the GPU"""
    pcie_generation: Int | None = None
    """highest that GPU and slot can have"""
    pcie_lanes: Int | None = None
    """most that GPU and slot can have"""
    numa_node: Int | None = None
    """by the kernel"""
    cores: Listed[Int] | None = None
    """logical CPUs beside it"""
    n_nvlinks: Int | None = None
    """NVLinks that are up"""
    ways: Mapping[str, str] = field(default_factory=dict)
    """what lies between it and each other GPU of the node, by UUID"""


class GpuUse(Record):
    """What a GPU did at one moment; null: not told."""

    uuid: str
    """the GPU"""
    util: Float | None = None
    """nvidia-smi's utilisation, 0 to 1, of the last 1/6 to 1 s"""
    memory_used_bytes: Int | None = None
    """of all processes and the driver"""
    processes: Listed[Int] | None = None
    """ids of the processes with a context, as NVML tells them"""


class SenderScheduling(Record):
    """What a worker's sending thread got."""

    policy: str
    """fifo: in real time"""
    realtime_priority: Int
    """of fifo"""
    niceness: Int
    """else"""
    cores: Listed[Int] = ()
    """cores of its own; empty: all of the process"""
    why_less: str = ""
    """why it has less than was asked for; empty where it has it"""


class AddressFacts(Record):
    """What a load generator had of one address of a server's name."""

    server: str
    """which server"""
    address: str
    """IP and port"""
    n_connections: Int
    """connections to it that came about"""
    why_left_out: str = ""
    """why none went there any more; empty where they did"""
