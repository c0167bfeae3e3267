"""What a scenario may say of Locust, what it implies, and what it refuses beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.arrivals.users import LARGEST_USER_COUNT
from squall.scenarios.config.clients.client import ClientConfig
from squall.scenarios.config.loader import load_scenario, make_scenario, scenario_from_mapping
from squall.scenarios.config.locust.load import DRAIN_NS
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.units import NS_PER_S

ARRIVALS = {"kind": "poisson", "rate": "1/s"}
PHASES = [
    {"name": "main", "kind": "measure", "duration": "2s"},
    {"name": "end", "kind": "drain", "duration": "1s"},
]
MODELS = [{"name": "linear_head"}, {"name": "seqlen_head"}]


def mapping_of(locust: Any, **more: Any) -> dict[str, Any]:
    whole = {"name": "users", "seed": 1, "model": {"name": "linear_head"}, "load": {"locust": locust}, **more}
    return {key: value for key, value in whole.items() if value is not None}


def of(more: dict[str, Any] | None = None, **locust: Any) -> Scenario:
    """Phases of `run_time`, unless `more` has some."""
    stated = {"file": "locustfile.py", **locust}
    if "phases" not in (more or {}):
        stated = {"run_time": "5s", **stated}
    return scenario_from_mapping(mapping_of(stated, **(more or {})), "test")


def refusal(more: dict[str, Any] | None = None, **locust: Any) -> str:
    with pytest.raises(ScenarioError) as refused:
        of(more, **locust)
    text = str(refused.value)
    assert text.startswith("test: ")
    assert "\n" not in text
    return text.removeprefix("test: ")


def test_the_phases_follow_from_users_spawn_rate_and_run_time() -> None:
    phases = of(users=30, spawn_rate=4, run_time="2m").phases
    assert [(one.name, one.kind, one.duration_ns) for one in phases] == [
        ("warmup", "warmup", round(7.5 * NS_PER_S) + NS_PER_S),
        ("measure", "measure", 120 * NS_PER_S),
        ("drain", "drain", DRAIN_NS),
    ]
    assert [one.arrivals and one.arrivals.kind for one in phases] == ["locust", "locust", None]
    assert of(spawn_rate=1e9).phases[0].duration_ns == NS_PER_S + 1
    null = {**mapping_of({"file": "locustfile.py", "run_time": "5s"}), "phases": None}
    assert scenario_from_mapping(null, "test") == of()


def test_users_have_the_drain_to_end_and_no_more() -> None:
    assert of(stop_timeout="2m").phases[-1].duration_ns == 120 * NS_PER_S
    assert of(stop_timeout="1s").phases[-1].duration_ns == DRAIN_NS
    assert of({"phases": PHASES}, stop_timeout="1s").phases[-1].duration_ns == NS_PER_S
    text = refusal({"phases": PHASES}, stop_timeout="1500ms")
    assert text == "load.locust.stop_timeout: 1500ms is longer than the drain of 1s, in which users end"


def test_stated_phases_need_no_arrivals_and_may_name_those_of_locust() -> None:
    named = [{**PHASES[0], "arrivals": {"kind": "locust"}}, PHASES[1]]
    assert of({"phases": PHASES}) == of({"phases": named})


EVERY_KEY: dict[str, Any] = {
    "include": ["data", "more.csv"],
    "users": 20,
    "spawn_rate": 2.5,
    "run_time": "90s",
    "user_classes": ["Reader", "Writer"],
    "tags": ["slow"],
    "exclude_tags": ["broken"],
    "host": "http://other:8000",
    "stop_timeout": "0s",
    "options": ["--tenant", "a b", "--loglevel=DEBUG", "-x", ""],
    "web": {"port": 9000},
    "html": True,
}


def test_every_key_comes_back_and_is_in_the_digest() -> None:
    full = of(**EVERY_KEY)
    again = scenario_from_mapping(full.to_mapping(), "again")
    assert again == full
    assert again.digest() == full.digest()
    plain = of()
    assert plain.digest() != full.digest()
    for key, value in EVERY_KEY.items():
        changed = of(**{key: value})
        assert scenario_from_mapping(changed.to_mapping(), "again") == changed
        assert changed.digest() != plain.digest(), key
        assert changed.to_mapping()["load"]["locust"][key] == value
    assert yaml.safe_load(yaml.safe_dump(full.to_mapping())) == full.to_mapping()


def test_a_scenario_without_it_has_the_digest_of_before_it_was_there() -> None:
    plain = scenario_from_mapping(
        {
            "name": "x",
            "seed": 1,
            "model": {"name": "m"},
            "phases": [{**PHASES[0], "arrivals": ARRIVALS}, PHASES[1]],
        },
        "test",
    )
    assert "load" not in plain.to_mapping()


@pytest.mark.parametrize(
    ("locust", "said"),
    [
        ({"users": 0}, "load.locust.users: 0 must be at least 1"),
        ({"users": 1.5}, "load.locust.users: 1.5 is not a whole number"),
        ({"users": True}, "load.locust.users: True is not a whole number"),
        ({"users": LARGEST_USER_COUNT + 1}, "must be at most 1000000"),
        ({"users": 10**400}, "must be at most 1000000"),
        ({"spawn_rate": 0}, "load.locust.spawn_rate: 0 must be above 0"),
        ({"spawn_rate": "10/s"}, "load.locust.spawn_rate: '10/s' is not a number"),
        ({"spawn_rate": float("nan")}, "load.locust.spawn_rate: nan is not a finite number"),
        ({"spawn_rate": float("inf")}, "load.locust.spawn_rate: inf is not a finite number"),
        ({"spawn_rate": 1e-300}, "spawn_rate: at 1e-300 a second 1 users take longer than"),
        ({"run_time": 5}, "load.locust.run_time: 5 has no unit"),
        ({"run_time": "0s"}, "load.locust.run_time: '0s' must be above 0"),
        ({"run_time": ["1s"]}, "load.locust.run_time: ['1s'] is not a duration"),
        ({"run_time": None}, "phases: missing, they must be given, or load.locust.run_time"),
        ({"stop_timeout": "-1s"}, "load.locust.stop_timeout: '-1s' is negative"),
        ({"tags": "slow"}, "load.locust.tags: 'slow' is not a list"),
        ({"user_classes": [1]}, "load.locust.user_classes[0]: 1 is not a text"),
        ({"host": ""}, "load.locust.host: '' is empty"),
        ({"web": {"port": 0}}, "load.locust.web.port: 0 must be at least 1"),
        ({"web": {"host": "0.0.0.0"}}, "load.locust.web.host: unknown key, allowed are port"),
        ({"user": 3}, "load.locust.user: unknown key, did you mean 'users'?"),
        ({"file": ""}, "load.locust.file: '' is empty"),
        ({"file": 3}, "load.locust.file: 3 is not a text"),
        ({"file": "a/users.txt"}, "file: users.txt is no locustfile, whose name ends in .py"),
        ({"include": "data"}, "load.locust.include: 'data' is not a list"),
        ({"include": [""]}, "load.locust.include[0]: '' is empty"),
        ({"include": ["../data"]}, "include: ../data does not lie in the folder of the locustfile"),
        ({"include": ["a/../../data"]}, "does not lie in the folder of the locustfile"),
        ({"file": "a/l.py", "include": ["b/x"]}, "include: b/x does not lie in the folder of the locustfile"),
        ({"include": ["/data"]}, "include: /data does not lie in the folder of the locustfile"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_key_and_no_other(locust: dict[str, Any], said: str) -> None:
    text = refusal(**locust)
    assert said in text
    assert "more)" not in text


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--users=5", "--users has a key of its own, use load.locust.users"),
        ("-u", "-u has a key of its own, use load.locust.users"),
        ("-u5", "-u has a key of its own, use load.locust.users"),
        ("-Hhttp://x", "use load.locust.host"),
        ("--html=x.html", "use load.locust.html"),
        ("-T", "use load.locust.tags"),
        ("--stop-timeout", "use load.locust.stop_timeout"),
        ("-f", "use load.locust.file"),
        ("--master", "--master is for squall to say, leave it out"),
        ("--processes=-1", "--processes is for squall to say"),
        ("-P8080", "-P is for squall to say"),
        ("--csv", "--csv is for squall to say"),
        ("--headless", "--headless is for squall to say"),
        ("--reset-stats", "--reset-stats is for squall to say"),
        ("--list", "--list is for the command locust alone"),
        ("-V", "-V is for the command locust alone"),
        ("--help", "--help is for the command locust alone"),
    ],
)
def test_an_option_that_squall_sets_is_refused_with_the_key_to_use(option: str, said: str) -> None:
    assert f"load.locust: options: {said}" in refusal(options=["--own", "1", option]) or said in refusal(
        options=[option]
    )


@pytest.mark.parametrize(
    "option", ["--enable-rebalancing", "--userspace", "--hostile=1", "--tagged", "-x5", "Reader"]
)
def test_any_other_option_is_left_to_locust(option: str) -> None:
    load = of(options=[option]).load
    assert load is not None
    assert load.locust.options == (option,)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"phases": [{**PHASES[0], "arrivals": ARRIVALS}, PHASES[1]]},
            "phases.main.arrivals: load.locust says",
        ),
        (
            {"phases": [{**PHASES[0], "arrivals": {"kind": "closed", "users": 2}}, PHASES[1]]},
            "phases.main.arrivals: load.locust says what is sent",
        ),
        ({"phases": [{**PHASES[0], "timeout": "1s"}, PHASES[1]]}, "phases.main.timeout: the locustfile says"),
        (
            {"phases": [{**PHASES[0], "rows": {"kind": "constant", "value": 2}}, PHASES[1]]},
            "phases.main.rows: the",
        ),
        ({"phases": [{**PHASES[0], "speed": 2}, PHASES[1]]}, "speed: a closed loop has no schedule"),
        (
            {
                "phases": [{**PHASES[0], "shares": {"linear_head": 1}}, PHASES[1]],
                "models": MODELS,
                "model": None,
            },
            "phases.main.shares: the locustfile says",
        ),
        ({"phases": []}, "phases: [] is empty"),
        (
            {"clients": {"request": {"compression": "gzip"}}},
            "clients.request.compression: a TritonUser compresses",
        ),
        ({"promises": {"response": "p(95)<50ms"}}, "no response time; promise service times"),
        ({"promises": {"service": {"threshold": "p(95)<1s", "abortOnFail": True}}}, "abortOnFail decides"),
        ({"promises": {"service{burst:any}": "p(95)<1s"}}, "promises"),
        (
            {"stop_when": "decided", "promises": {"service": "p(95)<1s"}},
            "stop_when: decided is for promises over",
        ),
    ],
)
def test_what_is_of_a_schedule_is_refused_beside_it(more: dict[str, Any], said: str) -> None:
    assert said in refusal(more)


def test_run_time_and_phases_of_another_length_exclude_each_other() -> None:
    text = refusal({"phases": PHASES}, run_time="5s")
    assert text == "load.locust.run_time: phases say how long the run is; leave one of both out"


OF_OWN_CLIENT: dict[str, Any] = {
    "priority": "normal", "cores": 1, "protocol": "grpc", "tls": {"ca": "ca.pem"}, "unix": "/run/t.sock", "spin": "1ms",
    "try_first": False, "max_in_flight": 3, "connections": 3, "deal": "hash",
    "routing": {"kind": "random"},
    "rows": {"kind": "constant", "value": 2}, "check": {"function": "right.py:answers"}, "data": {"path": "x.npy"},
    "shared_memory": {}, "stream": {}, "sequences": {"length": {"kind": "constant", "value": 2}},
}  # fmt: skip
OF_LOCUST: dict[str, Any] = {
    "workers_per_node": 4, "on_client_loss": "stop", "inputs": {"X": {"low": 0, "high": 1}}, "payload_variants": 3,
    "request": {"parameters": {"a": 1}}, "headers": {"A": "b"}, "timeout": "1s",
    "largest_reply": "1 MiB",
}  # fmt: skip


def test_each_key_of_the_clients_is_either_of_locust_or_refused_by_name() -> None:
    keys = {field.alias or name for name, field in ClientConfig.model_fields.items()}
    assert keys == OF_OWN_CLIENT.keys() | OF_LOCUST.keys()
    for key, value in OF_OWN_CLIENT.items():
        text = refusal({"clients": {key: value}})
        assert text == f"clients.{key}: is of squall's own client, and load.locust has Locust's; leave it out"
    for key, value in OF_LOCUST.items():
        assert of({"clients": {key: value}}).clients != ClientConfig()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"share": 2}, "models[1].share: the locustfile says which models its users ask"),
        ({"rows": {"kind": "constant", "value": 2}}, "models[1].rows: is of squall's own client"),
        ({"check": {"function": "right.py:answers"}}, "models[1].check: is of squall's own client"),
        ({"data": {"path": "x.npy"}}, "models[1].data: is of squall's own client"),
    ],
)
def test_an_entry_of_models_says_nothing_of_requests_that_are_not_squalls(
    entry: dict[str, Any], said: str
) -> None:
    models = [MODELS[0], {**MODELS[1], **entry}]
    assert said in refusal({"models": models, "model": None})
    kept = [MODELS[0], {**MODELS[1], "payload_variants": 2, "inputs": {"X": {"low": 0, "high": 1}}}]
    assert of({"models": kept, "model": None}).model_names == ("linear_head", "seqlen_head")


def test_service_times_and_failures_may_be_promised() -> None:
    promised = of({"promises": {"service": "p(95)<50ms", "failures": "rate<1%"}}).promises
    assert promised is not None
    assert len(promised) == 2


@pytest.mark.parametrize(
    "load", [{}, [], {"k6": {}}, {"locust": None}, {"locust": "locustfile.py"}, {"locust": []}]
)
def test_another_load_is_one_line_with_its_key(load: Any) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario_from_mapping({**mapping_of({}), "load": load}, "test")
    assert str(refused.value).startswith("test: load")
    assert "\n" not in str(refused.value)


def test_arrivals_of_locust_need_it() -> None:
    phases = [{**PHASES[0], "arrivals": {"kind": "locust"}}, PHASES[1]]
    with pytest.raises(
        ScenarioError, match=r"phases\.main\.arrivals: kind 'locust' is of a scenario with load\.locust"
    ):
        scenario_from_mapping(mapping_of(None, load=None, phases=phases), "test")


def written(folder: Path, locust: dict[str, Any], **more: Any) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(mapping_of(locust, **more)), encoding="utf-8")
    return path


def stated(scenario: Scenario) -> Any:
    assert scenario.load is not None
    return scenario.load.locust


def test_paths_are_of_the_scenarios_folder_and_links_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "real.py").write_text("")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "users.py").symlink_to(tmp_path / "elsewhere" / "real.py")
    locust = {"file": "own/users.py", "include": ["own/data", "own/a/../b"], "run_time": "5s"}
    found = stated(load_scenario(written(tmp_path, locust)))
    assert found.file == str(tmp_path / "own" / "users.py")
    assert found.include == (str(tmp_path / "own" / "data"), str(tmp_path / "own" / "b"))


def test_users_are_set_on_the_command_line_and_the_warmup_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, {"file": "locustfile.py", "run_time": "5s"})
    changes = ["load.locust.users=5", "load.locust.tags=[slow]", "load.locust.web.port=9001"]
    found = load_scenario(path, changes)
    assert (stated(found).users, stated(found).tags, stated(found).web.port) == (5, ("slow",), 9001)
    assert found.phases[0].duration_ns == 6 * NS_PER_S
    monkeypatch.chdir(tmp_path.parent)
    assert stated(load_scenario(path, ["load.locust.file=other.py"])).file == str(
        tmp_path.parent / "other.py"
    )
    with pytest.raises(ScenarioError, match=r"load\.locust\.user: unknown key, did you mean 'users'"):
        load_scenario(path, ["load.locust.user=5"])


def test_a_scenario_is_changed_in_python_and_its_phases_follow(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, {"file": "locustfile.py", "run_time": "5s"}))
    changed = make_scenario(scenario, {"load.locust.users": 9, "load.locust.run_time": "7s"})
    assert [one.duration_ns for one in changed.phases[:2]] == [10 * NS_PER_S, 7 * NS_PER_S]
    with_phases = load_scenario(written(tmp_path, {"file": "locustfile.py"}, phases=PHASES))
    assert make_scenario(with_phases, {"load.locust.users": 9}).phases == with_phases.phases
