"""Who asks an object store, and where it is: what another process is given, and what nobody is shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from squall.analysis.storage.object_folder import Access

PROFILES = """
[default]
aws_access_key_id = of-all
aws_secret_access_key = hidden-of-all
[loads]
aws_access_key_id = of-loads
aws_secret_access_key = hidden%of-loads
aws_session_token = passing
[role]
role_arn = arn:aws:iam::1:role/loads
"""
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "of-env", "AWS_SECRET_ACCESS_KEY": "hidden-of-env"}


@pytest.mark.parametrize(
    ("environment", "keys"),
    [
        (ENVIRONMENT, ("of-env", "hidden-of-env", "")),
        ({**ENVIRONMENT, "AWS_PROFILE": "loads"}, ("of-env", "hidden-of-env", "")),  # as AWS's own chain
        ({**ENVIRONMENT, "AWS_SESSION_TOKEN": "passing"}, ("of-env", "hidden-of-env", "passing")),
        ({}, ("of-all", "hidden-of-all", "")),
        ({"AWS_PROFILE": "loads"}, ("of-loads", "hidden%of-loads", "passing")),
        ({"AWS_PROFILE": "role"}, ()),
        ({"AWS_PROFILE": "none"}, ()),
        ({"AWS_SHARED_CREDENTIALS_FILE": "/none"}, ()),
        ({"AWS_SHARED_CREDENTIALS_FILE": "/proc/self/exe"}, ()),
    ],
)
def test_keys_are_those_of_the_environment_else_of_the_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], keys: tuple[str, ...]
) -> None:
    (tmp_path / "credentials").write_text(PROFILES)
    for name in (
        "ACCESS_KEY_ID",
        "SECRET_ACCESS_KEY",
        "SESSION_TOKEN",
        "PROFILE",
        "REGION",
        "DEFAULT_REGION",
    ):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    places = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_ENDPOINT_URL": "http://a:1"}
    for name, value in {**places, **environment}.items():
        monkeypatch.setenv(name, value)
    found = Access.of_environment()
    assert (found.keys, found.endpoint, found.region) == (keys, "http://a:1", "")
    assert pickle.loads(pickle.dumps(found)) == found
    assert not [one for one in keys if one and one in f"{found} {found!r}"]
