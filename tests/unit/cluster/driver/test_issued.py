"""How many requests users issued, where some of their workers can still say and others are lost."""

from __future__ import annotations

import pyarrow as pa

from squall.cluster.driver.issued import Issued


def rows(*ids: int) -> pa.Table:
    return pa.table({"request_id": pa.array(ids, pa.int64())})


def test_of_a_lost_worker_of_locust_its_rows_count_and_of_others_what_they_say() -> None:
    issued = Issued(None, 3)
    issued.note(rows(0, 3, 6, 1))
    issued.note(rows(2, 5))
    assert issued.total({0: 3, 1: 1, 2: 2}) == 6
    assert issued.total({0: 4, 2: 2}) == 4 + 1 + 2
    assert issued.total({}) == 6


def test_of_a_closed_loop_the_worker_is_that_of_the_user() -> None:
    issued = Issued(5, 2)  # users 0, 2, 4 are of worker 0
    issued.note(rows(0, 5, 2, 4, 9, 1))
    assert issued.total({1: 9}) == 5 + 9
    assert issued.total({0: 8}) == 8 + 1
    assert Issued(5, 2).total({}) == 0
