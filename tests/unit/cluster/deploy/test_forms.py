"""What `squall deploy` prints is what its readers take: Ray's own schema, KubeRay's, the shells."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from squall.cluster.deploy.forms import filled
from squall.cluster.deploy.kinds import Kind
from squall.cluster.remote.session import LOCAL_SETTINGS
from squall.scenarios.errors import ClusterError

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
ALL = {kind: filled(kind, hosts=HOSTS) for kind in Kind}
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}


def _closed(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_ENV = _closed(
    ("name",),
    name={"type": "string"},
    value={"type": "string"},
    valueFrom=_closed(
        ("secretKeyRef",),
        secretKeyRef=_closed(("key", "name"), name=_NAME, key={"type": "string"}),
    ),
)
_CONTAINER = _closed(
    ("name", "image"),
    name=_NAME,
    image={"type": "string", "minLength": 1},
    env={"type": "array", "items": _ENV},
    volumeMounts={
        "type": "array",
        "items": _closed(("name", "mountPath"), name=_NAME, mountPath={"type": "string", "pattern": "^/"}),
    },
    resources=_closed((), limits={"type": "object", "additionalProperties": {"type": ["integer", "string"]}}),
)
_VOLUME = _closed(
    ("name",),
    name=_NAME,
    emptyDir=_closed((), medium={"enum": ["", "Memory"]}, sizeLimit={"type": "string"}),
    configMap=_closed((), name=_NAME, optional={"type": "boolean"}),
)
_POD = _closed(
    ("spec",),
    spec=_closed(
        ("containers",),
        containers={"type": "array", "minItems": 1, "items": _CONTAINER},
        volumes={"type": "array", "items": _VOLUME},
    ),
)
_PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
_CLUSTER = _closed(
    ("headGroupSpec",),
    rayVersion={"type": "string"},
    headGroupSpec=_closed(("rayStartParams", "template"), rayStartParams=_PARAMETERS, template=_POD),
    workerGroupSpecs={
        "type": "array",
        "items": _closed(
            ("groupName", "maxReplicas", "minReplicas", "rayStartParams", "template"),
            groupName={"type": "string"},
            replicas={"type": "integer"},
            minReplicas={"type": "integer"},
            maxReplicas={"type": "integer"},
            rayStartParams=_PARAMETERS,
            template=_POD,
        ),
    },
)
_JOB = _closed(
    (),
    entrypoint={"type": "string"},
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
    shutdownAfterJobFinishes={"type": "boolean"},
    rayClusterSpec=_CLUSTER,
)
"""The part of ray.io/v1 that the files use, as KubeRay's types RayClusterSpec and RayJobSpec have it (read 2026-11-24;
later ones require less), and no key beside it: what KubeRay itself would drop unseen fails here."""


def _kuberay(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return _closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=_closed(("name",), name=_NAME),
        spec=spec,
    )


@pytest.mark.parametrize("kind", Kind)
def test_every_file_names_the_versions_and_holds_no_token(kind: Kind) -> None:
    assert f"squall {version('squall')}" in ALL[kind]
    assert not re.search(r"(?<![\[\"$])@[A-Z_]+@", ALL[kind]), "no place is left unfilled"
    assert not re.search(r"RAY_AUTH_TOKEN[=:] *[\"']?[0-9a-f]{8}", ALL[kind])


def test_ray_takes_the_launchers_file_and_finds_its_hosts() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load(ALL[Kind.RAY_UP])
    validate_config(prepare_config(config))
    assert (config["provider"]["head_ip"], config["provider"]["worker_ips"]) == (HOSTS[0], [*HOSTS[1:]])
    with pytest.raises(jsonschema.ValidationError):
        validate_config({**config, "hosts": []})
    with pytest.raises(ClusterError, match="--host ADDRESS"):
        filled(Kind.RAY_UP, hosts=HOSTS[:1])


def test_kuberay_takes_cluster_and_job_with_the_token_of_a_secret() -> None:
    texts = {
        kind: yaml.safe_load(filled(kind, clients=3, servers=2, gpus=8))
        for kind in (Kind.RAYCLUSTER, Kind.RAYJOB)
    }
    jsonschema.validate(texts[Kind.RAYCLUSTER], _kuberay("RayCluster", _CLUSTER))
    jsonschema.validate(texts[Kind.RAYJOB], _kuberay("RayJob", _JOB))
    spec = texts[Kind.RAYCLUSTER]["spec"]
    assert texts[Kind.RAYJOB]["spec"]["rayClusterSpec"] == spec
    groups = {one["groupName"]: one for one in spec["workerGroupSpecs"]}
    assert {name: one["replicas"] for name, one in groups.items()} == {"clients": 3, "servers": 2}
    assert spec["headGroupSpec"]["rayStartParams"] == groups["clients"]["rayStartParams"] == {"num-gpus": "0"}
    for group in (spec["headGroupSpec"], *groups.values()):
        (container,) = group["template"]["spec"]["containers"]
        environment = {one["name"]: one.get("value") for one in container["env"]}
        assert environment == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": None, **LOCAL_SETTINGS}
    limits = groups["servers"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 8}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(texts[Kind.RAYCLUSTER], _kuberay("RayCluster", _JOB))


@pytest.mark.parametrize(("kind", "shell"), [(Kind.RAY_START, "sh"), (Kind.SLURM, "bash")])
def test_the_shells_can_read_the_scripts(kind: Kind, shell: str) -> None:
    done = subprocess.run([shell, "-n"], input=ALL[kind], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_ray_is_not_started_without_a_token_nor_in_another_role(tmp_path: Path) -> None:
    for words, env, said in (
        (["head"], {}, "no token"),
        (["tail"], {"RAY_AUTH_TOKEN": "t"}, "say head or node"),
        (["node"], {"RAY_AUTH_TOKEN": "t"}, "HEAD_ADDRESS"),
    ):
        done = subprocess.run(
            ["/bin/sh", "-s", "--", *words], input=ALL[Kind.RAY_START], capture_output=True, text=True, check=False,
            env={"HOME": str(tmp_path), "PATH": "/nonexistent", **env},
        )  # fmt: skip
        assert done.returncode != 0
        assert said in done.stderr


def test_words_that_could_not_stand_in_a_file_are_refused() -> None:
    for word in ("a b", "x\ny", "", "$(id)"):
        with pytest.raises(ClusterError, match="is no name or address"):
            filled(Kind.RAYCLUSTER, image=word)


def test_the_container_file_has_both_nodes_made_of_a_bundle_by_its_own_installer() -> None:
    stages: dict[str, list[str]] = {}
    for line in ALL[Kind.CONTAINERFILE].replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = [base]
        elif stages and word in ("COPY", "RUN", "ENV"):
            stages[[*stages][-1]].append(word)
        else:
            assert not line or word in ("#", "ARG"), line
    assert stages == {name: [f"${{{name.upper()}_BASE}}", "COPY", "RUN", "ENV"] for name in ("client", "gpu")}
