"""What of the sanitizers' reports tells of the lane."""

from __future__ import annotations

from tests.sanitize import LIBRARY, faults

OVERFLOW = """=================================================================
==1==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x603000000010
WRITE of size 1 at 0x603000000010 thread T0
    #0 0x7f in Lane_know_head actors/native/templates.c:84

0x603000000010 is located 0 bytes to the right of 19-byte region"""
OF_THE_LANE = f"""Direct leak of 205 byte(s) in 41 object(s) allocated from:
    #0 0x7f in __interceptor_realloc asan_malloc_linux.cpp:85
    #1 0x7f in grown ({LIBRARY}+0x12)"""
OF_OTHERS = """Direct leak of 80 byte(s) in 1 object(s) allocated from:
    #0 0x7f in __interceptor_realloc asan_malloc_linux.cpp:85
    #1 0x7f  (/somewhere/native/site-packages/pydantic_core.so+0x144818)"""
UNDEFINED = "actors/native/due.c:7:3: runtime error: signed integer overflow: 1 + 2 cannot be represented"


def test_any_fault_counts_and_leaks_where_the_lane_is_on_the_stack() -> None:
    assert faults("\n\n".join([OVERFLOW, OF_OTHERS, OF_THE_LANE])) == [
        OVERFLOW.split("\n\n", maxsplit=1)[0],
        OF_THE_LANE,
    ]
    assert faults(UNDEFINED) == [UNDEFINED]
    assert faults(OF_OTHERS) == []
    assert faults("") == []
