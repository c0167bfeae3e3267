"""A file of each trace format, as others write it: four arrivals, at 0, 1, 1 and 5 s, of two sessions and of none.

Client windows (`servegen`) hold no instants: theirs are two clients in one window, and one of them in the next.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from squall.scenarios.traces.parts.options import TraceFormat

S = 1_000_000_000
STAMPS_NS = [0, S, S, 5 * S]
SESSIONS = ["a", "a", "b", ""]
TOKENS = ([7, 8, 9, 10], [1, 2, 3, 4])
BYTES = [70, 80, 90, 100]

_LOG = """\
a - - [01/Jan/1970:00:00:00 +0000] "GET / HTTP/1.0" 200 70
a - - [01/Jan/1970:00:00:01 +0000] "GET / HTTP/1.0" 200 80
b - - [01/Jan/1970:00:00:01 +0000] "GET / HTTP/1.0" 200 90
- - - [01/Jan/1970:00:00:05 +0000] "GET / HTTP/1.0" 200 100
"""
TEXTS: dict[TraceFormat, str] = {
    "azure-llm": """\
TIMESTAMP,ContextTokens,GeneratedTokens
1970-01-01 00:00:00.0000000,7,1
1970-01-01 00:00:01.0000000,8,2
1970-01-01 00:00:01.0000000,9,3
1970-01-01 00:00:05.0000000,10,4
""",
    "burstgpt": """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
0,a,,,7,1,8,
1,a,,,8,2,10,
1,b,,,9,3,12,
5,,,,10,4,14,
""",
    "mooncake": """\
{"timestamp": 0, "input_length": 7, "output_length": 1, "hash_ids": []}
{"timestamp": 1000, "input_length": 8, "output_length": 2, "hash_ids": []}
{"timestamp": 1000, "input_length": 9, "output_length": 3, "hash_ids": []}
{"timestamp": 5000, "input_length": 10, "output_length": 4, "hash_ids": []}
""",
    "bailian": """\
{"chat_id": 0, "parent_chat_id": -1, "timestamp": 0, "input_length": 7, "output_length": 1, "turn": 1}
{"chat_id": 1, "parent_chat_id": 0, "timestamp": 1, "input_length": 8, "output_length": 2, "turn": 2}
{"chat_id": 2, "parent_chat_id": -1, "timestamp": 1, "input_length": 9, "output_length": 3, "turn": 1}
{"chat_id": 3, "parent_chat_id": -1, "timestamp": 5, "input_length": 10, "output_length": 4, "turn": 1}
""",
    "intervals": "0\n1000000\n0\n4000000\n",
    "fixed-schedule": """\
{"data": [
{"payload": [{}], "timestamp": [0]},
{"payload": [{}], "timestamp": [1000]},
{"payload": [{}], "timestamp": [1000]},
{"payload": [{}], "timestamp": [5000]}
]}
""",
    "servegen": """\
model,client,window_start_s,rate,cv,iat_family,shape,scale
,a,0,0.5,1.4,Gamma,0.5,4
,b,0,0.25,1,Weibull,1,4
,a,600,0.5,1,Gamma,1,2
""",
    "common-log": _LOG,
    "combined-log": _LOG.replace("\n", ' "-" "-"\n'),
    "alb-log": """\
http 1970-01-01T00:00:00.500000Z app/x 192.0.2.1:1 10.0.0.1:80 0.000 0.500 0.000 200 200 1 70 "GET / HTTP/1.1" - - -
http 1970-01-01T00:00:01.500000Z app/x 192.0.2.1:1 10.0.0.1:80 0.000 0.500 0.000 200 200 1 80 "GET / HTTP/1.1" - - -
http 1970-01-01T00:00:01.500000Z app/x 192.0.2.2:1 10.0.0.1:80 0.000 0.500 0.000 200 200 1 90 "GET / HTTP/1.1" - - -
http 1970-01-01T00:00:05.500000Z app/x 192.0.2.3:1 10.0.0.1:80 0.000 0.500 0.000 200 200 1 100 "GET / HTTP/1.1" - - -
""",
    "elb-log": """\
1970-01-01T00:00:00.000000Z lb 192.0.2.1:1 10.0.0.1:80 0.000 0.500 0.000 200 200 1 70 "GET / HTTP/1.1" - - -
1970-01-01T00:00:01.000000Z lb 192.0.2.1:1 10.0.0.1:80 0.000 0.500 0.000 200 200 1 80 "GET / HTTP/1.1" - - -
1970-01-01T00:00:01.000000Z lb 192.0.2.2:1 10.0.0.1:80 0.000 0.500 0.000 200 200 1 90 "GET / HTTP/1.1" - - -
1970-01-01T00:00:05.000000Z lb 192.0.2.3:1 10.0.0.1:80 0.000 0.500 0.000 200 200 1 100 "GET / HTTP/1.1" - - -
""",
    "envoy-log": """\
[1970-01-01T00:00:00.000Z] "GET / HTTP/2" 200 - 1 70 500 400 "192.0.2.1" "-" "a" "x" "10.0.0.1:80"
[1970-01-01T00:00:01.000Z] "GET / HTTP/2" 200 - 1 80 500 400 "192.0.2.1" "-" "b" "x" "10.0.0.1:80"
[1970-01-01T00:00:01.000Z] "GET / HTTP/2" 200 - 1 90 500 400 "192.0.2.2" "-" "c" "x" "10.0.0.1:80"
[1970-01-01T00:00:05.000Z] "GET / HTTP/2" 200 - 1 100 500 400 "192.0.2.3" "-" "d" "x" "10.0.0.1:80"
""",
    "haproxy-log": """\
Jan 1 00:00:00 h haproxy[1]: 192.0.2.1:1 [01/Jan/1970:00:00:00.000] in s/s 1/0/3/6/10 200 70 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1"
Jan 1 00:00:01 h haproxy[1]: 192.0.2.1:1 [01/Jan/1970:00:00:01.000] in s/s 1/0/3/6/10 200 80 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1"
Jan 1 00:00:01 h haproxy[1]: 192.0.2.2:1 [01/Jan/1970:00:00:01.000] in s/s 1/0/3/6/10 200 90 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1"
Jan 1 00:00:05 h haproxy[1]: 192.0.2.3:1 [01/Jan/1970:00:00:05.000] in s/s 1/0/3/6/10 200 100 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1"
""",  # noqa: E501
    "w3c-log": """\
#Version: 1.0
#Fields: date time c-ip cs-method sc-bytes time-taken
1970-01-01 00:00:00 192.0.2.1 GET 70 0
1970-01-01 00:00:01 192.0.2.1 GET 80 0
1970-01-01 00:00:01 192.0.2.2 GET 90 0
1970-01-01 00:00:05 192.0.2.3 GET 100 0
""",
    "counts": "second,count\n0,1\n1,2\n2,0\n5,1\n",
    "csv": "timestamp_ns,tokens,session\n0,7,a\n1000000000,8,a\n1000000000,9,b\n5000000000,10,\n",
    "jsonl": """\
{"timestamp_ns": 0, "tokens": 7, "session": "a"}
{"timestamp_ns": 1000000000, "tokens": 8, "session": "a"}
{"timestamp_ns": 1000000000, "tokens": 9, "session": "b"}
{"timestamp_ns": 5000000000, "tokens": 10, "session": ""}
""",
    "lines": "0\n1\n1\n5\n",
}
_TOKENS = dict(zip(("input_length", "output_length"), TOKENS, strict=True))
_BYTES = {"bytes": BYTES}
SIZES: dict[TraceFormat, dict[str, list[int]]] = {
    "azure-llm": {"ContextTokens": TOKENS[0], "GeneratedTokens": TOKENS[1]},
    "burstgpt": {"Request tokens": TOKENS[0], "Response tokens": TOKENS[1], "Total tokens": [8, 10, 12, 14]},
    "mooncake": _TOKENS, "bailian": _TOKENS,
    "common-log": _BYTES, "combined-log": _BYTES, "alb-log": _BYTES, "elb-log": _BYTES, "envoy-log": _BYTES,
    "haproxy-log": _BYTES, "w3c-log": {"sc_bytes": BYTES},
    **{format: {"tokens": TOKENS[0]} for format in ("csv", "jsonl", "parquet", "arrow")},
}  # fmt: skip
"""The size columns that are read; none of the other formats."""
WITHOUT_SESSIONS = ("azure-llm", "mooncake", "intervals", "fixed-schedule", "envoy-log", "counts", "lines")


def example_file(folder: Path, format: TraceFormat) -> Path:
    """The example of a format as a file in `folder`, whose name says nothing."""
    path = folder / "trace"
    if format in TEXTS:
        path.write_text(TEXTS[format])
        return path
    table = pa.table({"timestamp_ns": STAMPS_NS, "tokens": TOKENS[0], "session": SESSIONS})
    if format == "parquet":
        pq.write_table(table, path)
    else:
        with path.open("wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return path
