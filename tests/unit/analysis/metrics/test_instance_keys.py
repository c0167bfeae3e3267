"""The key of an instance, and what it says again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.metrics.measures import instance_key, instance_of, server_of

names = st.text("abc_0:.-@gpu", min_size=1).filter(lambda name: "@gpu" not in name)


@given(server=st.sampled_from(("server-0", "server-12")), name=names, device=st.integers(-1, 12))
def test_a_key_says_its_server_name_and_device(server: str, name: str, device: int) -> None:
    key = instance_key(server, name, device, "model")
    assert (server_of(key), *instance_of(key)) == (server, name, device)


def test_without_a_name_the_model_stands_in_the_key() -> None:
    assert instance_key("server-0", "", -1, "seqlen_head") == "server-0/seqlen_head"
    assert instance_key("server-0", "seqlen_head_0_0", 1, "seqlen_head") == "server-0/seqlen_head_0_0@gpu1"
