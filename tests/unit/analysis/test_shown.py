"""What others wrote, as screens, HTML and Markdown are given it."""

from __future__ import annotations

import pytest

from squall.analysis.shown import escaped_lines, html_text, markdown_row, markdown_text


def test_screens_are_given_no_control_characters() -> None:
    assert escaped_lines("seqlen_head: 5 µs … 20\u00a0%\nü 漢") == "seqlen_head: 5 µs … 20\u00a0%\nü 漢"
    assert escaped_lines("\x1b]0;x\x07\x00\x7f\x9b\u202e\r\t\ud800\u2028") == (
        "\\x1b]0;x\\x07\\x00\\x7f\\x9b\\u202e\\r\\t\\ud800\\u2028"
    )


def test_html_is_given_no_tags_but_those_of_line_ends() -> None:
    assert html_text("</script><b>&amp;\n\x1b") == "&lt;/script&gt;&lt;b&gt;&amp;amp;<br>\\x1b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("p95 of linear_head_2: +3.1 %", "p95 of linear_head_2: +3.1 %"),
        ("-", "-"),
        ("-0.3 %", "-0.3 %"),
        ("a | b\n c", "a \\| b c"),
        ("a\\|b", "a\\\\\\|b"),
        ("`x` [a](javascript:x) ![a](b)", "\\`x\\` \\[a\\](javascript:x) !\\[a\\](b)"),
        ("<a> &lt;", "&lt;a&gt; &amp;lt;"),
        ("_a_ *b* __c__ ~~d~~", "\\_a\\_ \\*b\\* \\_\\_c\\_\\_ \\~\\~d\\~\\~"),
        ("# a", "\\# a"),
        ("- a", "\\- a"),
        ("\x1b\u202e", "\\\\x1b\\\\u202e"),
    ],
)
def test_markdown_is_given_no_markup(text: str, shown: str) -> None:
    assert markdown_text(text) == shown


def test_a_row_has_as_many_cells_as_it_is_given() -> None:
    assert markdown_row(("a|b", "c")) == "| a\\|b | c |"
