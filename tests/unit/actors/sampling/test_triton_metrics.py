from __future__ import annotations

import math

import pytest

from squall.actors.sampling.triton_metrics import (
    MetricsError,
    _series,
    failure_key,
    model_counters,
    parse_metrics,
)


def parsed(text: str) -> list[tuple[str, dict[str, str], float]]:
    return [(name, dict(labels), value) for name, labels, value in parse_metrics(text)]


@pytest.mark.parametrize(
    ("line", "series"),
    [
        ("a 1", ("a", {}, 1.0)),
        ("a{} 1", ("a", {}, 1.0)),
        ("a:b_c2 -1.5e+06", ("a:b_c2", {}, -1.5e6)),
        ('a{m="x",v="1"} 2', ("a", {"m": "x", "v": "1"}, 2.0)),
        ('a{m="x", v="1",} 2', ("a", {"m": "x", "v": "1"}, 2.0)),
        ('a{m="two words} 7"} 2', ("a", {"m": "two words} 7"}, 2.0)),
        (r'a{m="q\"q",n="b\\",o="l\nl"} 2', ("a", {"m": 'q"q', "n": "b\\", "o": "l\nl"}, 2.0)),
        ('a{m="x"} 2 1700000000000', ("a", {"m": "x"}, 2.0)),
        ('a{m="x"} 2 # {trace_id="k v",b="} 9"} 0.5 170.1', ("a", {"m": "x"}, 2.0)),
        ('a{m="x"} 2 1700000000 # {} 0.5', ("a", {"m": "x"}, 2.0)),
        ('a{m="#"} +Inf', ("a", {"m": "#"}, math.inf)),
        ("a 1\r", ("a", {}, 1.0)),
    ],
)
def test_a_series_is_read_as_the_format_says(line: str, series: tuple[str, dict[str, str], float]) -> None:
    for text in (line, f"# HELP a b\n# TYPE a counter\n\n{line}\n# EOF\n"):
        assert parsed(text) == [series]


def test_no_number_is_a_value_too() -> None:
    ((_, _, value),) = parsed("a NaN")
    assert math.isnan(value)


@pytest.mark.parametrize(
    "line",
    [
        "a", "a ", "1a 1", "a 1 2 3", "a one", "a 1_000",
        'a{m="x" 1', 'a{m=x} 1', 'a{m="x"v="y"} 1', 'a{m="x",m="y"} 1',
        'a{m="x",,} 1', 'a{m="x\n"} 1', "<html>", 'a{m="x"} 2 # no exemplar', 'a{1m="x"} 2',
    ],
)  # fmt: skip
def test_a_line_that_is_no_series_is_refused_and_shown(line: str) -> None:
    with pytest.raises(MetricsError, match="line that cannot be read") as caught:
        list(parse_metrics(f"b 1\n{line}\n"))
    assert line.split("\n")[0].strip()[:20] in str(caught.value)


TEXT = r"""
nv_inference_request_success{model="m",version="1"} 7
nv_inference_request_success{model="m",version="2"} 8
nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 3
nv_inference_request_failure{model="m",reason="OTHER",version="1"} 1
nv_inference_pending_request_count{model="m",version="1"} 4
nv_inference_pending_request_count{model="m",version="2"} NaN
nv_inference_request_summary_us{model="m",version="1",quantile="0.5"} 99
nv_inference_count{gpu_uuid="GPU-a",model="m",version="1"} 10
nv_inference_count{gpu_uuid="GPU-b",model="m",version="1"} 20
nv_inference_count{model="a \"b\", c",version="1"} 5
nv_inference_queue_duration_us{model="m",version="1"} 1.5e+06
nv_cpu_utilization 0.5
"""


def test_counters_are_those_of_each_version_of_each_model() -> None:
    models = model_counters(TEXT)
    assert set(models) == {("m", "1"), ("m", "2"), ('a "b", c', "1")}
    one = models["m", "1"]
    assert one.counters == {
        "nv_inference_request_success": 7, failure_key("REJECTED"): 3, failure_key("OTHER"): 1,
        "nv_inference_count": 30, "nv_inference_queue_duration_us": 1_500_000,
    }  # fmt: skip
    assert one.pending_count == 4
    assert models["m", "2"].pending_count is None  # NaN is no number of requests
    assert models["m", "2"].counters == {"nv_inference_request_success": 8}


def test_a_server_without_models_has_no_counters() -> None:
    assert model_counters("# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0.5\n") == {}


def test_a_line_or_a_count_that_no_server_has_is_refused() -> None:
    with pytest.raises(MetricsError, match=r"^the metrics have a line of more than 65,536 characters$"):
        parsed("#" * 65_537)
    labels = '{model="m",version="1"}'
    for value in ("1e300", "-1e300", "9e15\nnv_inference_count" + labels + " 9e15"):
        with pytest.raises(MetricsError, match=r"^the metrics count more than 9,007,199,254,740,992$"):
            model_counters(f"nv_inference_count{labels} {value}")


def test_long_series_are_not_kept() -> None:
    _series.cache_clear()
    assert parsed(f'a{{m="{"x" * 60_000}"}} 1\na 1')[1] == ("a", {}, 1.0)
    assert _series.cache_info().currsize == 1
