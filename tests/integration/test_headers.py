"""Real commands against a gateway that asks for a header: it goes with every call, and its value is kept nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway import Gateway
from tests.integration.live_runs import Bench, scenario_mapping
from tests.null_process import NullProcess

pytestmark = [pytest.mark.slow, pytest.mark.beside]
NAME, SECRET = "X-Api-Key", "s3cr3t-of-the-gateway"
ALLOWED = ("--allow-env", "GATEWAY_KEY")


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def mapping_for(port: int, protocol: str = "http", **server: object) -> dict[str, object]:
    mapping = scenario_mapping(
        model={"name": "linear_head"}, server={"url": f"http://127.0.0.1:{port}", **server}
    )
    mapping["clients"] = {**mapping["clients"], "protocol": protocol}
    return mapping


@pytest.mark.parametrize("is_reference", [True, False])
def test_a_run_behind_a_gateway_has_its_statistics_and_keeps_no_secret(
    joined: Bench, *, is_reference: bool
) -> None:
    with NullProcess() as null, Gateway(null.ports["http"], NAME, SECRET) as gateway:
        mapping = mapping_for(gateway.port)
        value = "${GATEWAY_KEY}" if is_reference else SECRET
        mapping["clients"]["headers"] = {NAME: value}  # type: ignore[index]
        live = joined.start_run(mapping, "--json", *ALLOWED, env={"GATEWAY_KEY": SECRET})
        code = live.end()
    assert code in (0, 3), live.error_line()
    store = joined.store()
    assert gateway.turned_away == []
    assert {"/v2/models/stats", "/v2/health/ready"} <= set(gateway.passed)
    assert store.read("triton_samples").num_rows
    kept = json.loads((store.run_dir / "manifest.json").read_text())["scenario"]["clients"]["headers"]
    assert kept == {NAME: "${GATEWAY_KEY}" if is_reference else "${X_API_KEY}"}
    assert files_with(store.run_dir, SECRET) == []
    assert SECRET not in "".join(live.lines)


def test_what_a_gateway_refuses_is_named_in_one_line_and_the_run_goes_on(joined: Bench) -> None:
    refused = ("/v2/models/stats", "/v2/health", "/ready", "/config")
    with NullProcess() as null, Gateway(null.ports["http"], NAME, SECRET, refused) as gateway:
        mapping = mapping_for(gateway.port)
        mapping["clients"]["headers"] = {NAME: "${GATEWAY_KEY}"}  # type: ignore[index]
        live = joined.start_run(mapping, "--json", *ALLOWED, env={"GATEWAY_KEY": SECRET})
        code = live.end()
    said = "".join(live.lines)
    assert code in (0, 3), live.error_line()
    for api in ("health", "configuration", "statistics"):
        assert said.count(f"refuses {api} (status 403: \\x1b[31mnot for [left out])") == 1, said
    store = joined.store()
    assert not store.has("triton_samples") or not store.read("triton_samples").num_rows
    n_ok = sum(one == "ok" for one in store.read("requests").column("outcome").to_pylist())
    assert n_ok > 0
    assert SECRET not in said
    assert "\x1b[31m" not in said
    assert files_with(store.run_dir, SECRET) == []


def test_without_the_header_a_run_ends_with_one_line_before_ray(with_own_ray: Bench) -> None:
    with NullProcess() as null, Gateway(null.ports["http"], NAME, SECRET) as gateway:
        live = with_own_ray.start_run(mapping_for(gateway.port))
        assert live.end() == 1
    assert "refuses who asks" in live.error_line()
    assert "status 401" in live.error_line()
    assert "clients.headers" in live.error_line()
    assert "starting Ray" not in "".join(live.lines)


def test_init_and_perf_take_a_header_and_what_init_writes_runs(joined: Bench, tmp_path: Path) -> None:
    with NullProcess() as null, Gateway(null.ports["http"], NAME, SECRET) as gateway:
        url, env = f"http://127.0.0.1:{gateway.port}", {"GATEWAY_KEY": SECRET}
        written = tmp_path / "drafted.yaml"
        init = joined.start(
            "init",
            "--server",
            url,
            "--model",
            "linear_head",
            "-H",
            f"{NAME}:${{GATEWAY_KEY}}",
            "--out",
            str(written),
            env=env,
        )
        assert init.end() == 0, init.error_line()
        assert init.lines[-1] == f"{written} is written: squall run {written} --allow-env GATEWAY_KEY"
        assert SECRET not in written.read_text()
        shorter = ("--set", "phases.warmup.duration=1s", "--set", "phases.measure.duration=2s")
        ray = ("--ray", joined.ray or "", "--out", str(joined.out))
        run = joined.start("run", str(written), *ALLOWED, *shorter, *ray, env=env)
        assert run.end() in (0, 3), run.error_line()
        perf = joined.start(
            "perf", "-m", "linear_head", "-u", f"127.0.0.1:{gateway.port}", "-H", f"{NAME}:{SECRET}",
            "-p", "500", "--max-trials", "3", *ray[:2], "--out", str(tmp_path / "levels"),
        )  # fmt: skip
        assert perf.end() in (0, 3, 4), perf.lines  # 4: no stable level, as on a busy host
        assert gateway.turned_away == []
    assert "Throughput" in joined.stdout()
    assert files_with(tmp_path / "levels", SECRET) == []
