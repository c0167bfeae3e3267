"""Whose CPU it was, by a folder of processes that is written here."""

from __future__ import annotations

from pathlib import Path

from squall.actors.sampling.cpu_groups import OtherProcesses


def test_names_are_in_the_order_of_what_all_their_processes_had(tmp_path: Path) -> None:
    names = {1: "one-large", **dict.fromkeys(range(2, 6), "four-small"), 6: "next"}
    gained = {1: 300, **dict.fromkeys(range(2, 6), 120), 6: 200}
    clock = dict.fromkeys(names, 0)
    for pid, name in names.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    others = OtherProcesses(str(tmp_path), clock.get)
    others.look(dict.fromkeys(names, 0), {})
    clock.update(gained)
    others.look(dict.fromkeys(names, 0), {})
    assert list(others.busiest().items()) == [
        ("four-small", {"n": 4, "ratio": 480 / 980}),
        ("one-large", {"n": 1, "ratio": 300 / 980}),
        ("next", {"n": 1, "ratio": 200 / 980}),
    ]
