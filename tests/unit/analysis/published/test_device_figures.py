from __future__ import annotations
from squall.analysis.published.device_figures import device_figures
from squall.analysis.storage.store import RunStore
import time

def test_x(two_heads: RunStore) -> None:
    for p in ("linear_head","seqlen_head"):
        t=time.time(); print(p, device_figures(two_heads,[p]), time.time()-t)
