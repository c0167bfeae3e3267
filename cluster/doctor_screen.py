"""The screen of `squall doctor`, within 80 columns. Rendering only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 80
_STYLES = {"ok": "green", "limited": "yellow", "missing": "bold red"}


def render(result: Mapping[str, Any], width: int = WIDTH) -> RenderableType:
    """What `squall doctor` prints, from `cluster.doctor.diagnose`, within `width` columns."""
    driver = result["driver"]
    head = Text(
        f"squall doctor   squall {driver['squall']}, Python {driver['python']}, Ray {driver['ray']}", "bold"
    )
    parts: list[RenderableType] = [head]
    for label, node in result["nodes"].items():
        parts += [Text(), _node_table(label, node, width)]
    return Group(*parts, Text(), _verdict(result))


def _node_table(label: str, node: Mapping[str, Any], width: int) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, width=width, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold"
    )  # fmt: skip
    table.add_column(label, no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for one in node["findings"]:
        text = Text(one["what"])
        if one["mend"]:
            text.append("\nmend: ", "dim")
            text.append(one["mend"], "cyan")
        table.add_row(one["topic"], Text(one["status"], _STYLES[one["status"]]), text)
    return table


def _verdict(result: Mapping[str, Any]) -> Text:
    counts = dict.fromkeys(_STYLES, 0)
    for node in result["nodes"].values():
        for one in node["findings"]:
            counts[one["status"]] += 1
    text = Text()
    is_fine = result["can_run"]
    text.append("CAN RUN" if is_fine else "CANNOT RUN", "bold green" if is_fine else "bold red")
    text.append(f"   {counts['ok']} ok, {counts['limited']} limited, {counts['missing']} missing", "dim")
    return text
