"""Within which a served head is right, by its precision; the reference is always float32."""

from __future__ import annotations

TOLERANCE = {"fp32": (1e-3, 1e-5), "fp16": (2e-2, 2e-2)}
"""rtol and atol. The largest differences seen took 0.31 (fp32) and 0.55 (fp16) of what is allowed: `docs/models.md` has
the heads, sizes and seeds. fp32's are the defaults of `clients.check`."""
