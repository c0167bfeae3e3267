"""What the models of the zoo answer: computed in Triton by their Python backend, and by the driver of a run.

A function for each model, of arrays by name. It imports only numpy: a copy lies in each model's folder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
_WEIGHTS = np.sin(np.arange(18, dtype=np.float32)).reshape(6, 3)


def affine(given: Arrays) -> Arrays:
    return {"y": given["x"] @ _WEIGHTS + np.float32(0.5)}


def halves(given: Arrays) -> Arrays:
    return {"y": given["x"] * np.float16(2) + np.float16(1)}


def integers(given: Arrays) -> Arrays:
    total = given["wide"].sum(axis=1, keepdims=True) - given["small"].astype(np.int64).sum(
        axis=1, keepdims=True
    )
    return {"total": total, "flipped": np.uint8(255) - given["octets"], "turned": -given["small"]}


def widths(given: Arrays) -> Arrays:
    return {f"{name}_next": array + array.dtype.type(1) for name, array in given.items()}


def flags(given: Arrays) -> Arrays:
    both = given["left"] & given["right"]
    return {"both": both, "n_both": both.sum(axis=1, keepdims=True).astype(np.uint32)}


def tokens(given: Arrays) -> Arrays:
    ids, mask = given["ids"], given["mask"]
    kept = (ids * mask).astype(np.float32)
    return {
        "pooled": np.stack([kept.mean(axis=1), kept.max(axis=1)], axis=1),
        "reversed": ids[:, ::-1],
        "length": np.full((len(ids), 1), ids.shape[1], np.int32),
    }


def grid(given: Arrays) -> Arrays:
    return {"sums": given["cells"].sum(axis=1), "is_high": given["cells"].max(axis=0, keepdims=True) > 1}


def growing(given: Arrays) -> Arrays:
    """From none to six numbers."""
    return {"numbers": np.arange(given["n"][0] % 7, dtype=np.int64)}


def empty(given: Arrays) -> Arrays:
    """Its input has no rows."""
    return {"firsts": given["pairs"][:, 0], "n": np.array([given["pairs"].size], np.int32)}


def optional(given: Arrays) -> Arrays:
    return {"y": given["x"] + given["shift"] if "shift" in given else given["x"]}


def scalar(given: Arrays) -> Arrays:
    """In Triton without the dimension of one that the wire has."""
    return {"y": given["x"] * np.float32(3)}


def widen(given: Arrays) -> Arrays:
    return {"y": given["x"].astype(np.float32) / np.float32(8)}


def score(given: Arrays) -> Arrays:
    x = given["x"]
    return {"scores": np.stack([x.sum(axis=1), x.max(axis=1)], axis=1)}


def label(given: Arrays) -> Arrays:
    scores = given["scores"]
    return {"label": scores.argmax(axis=1)[:, None], "is_sure": np.ptp(scores, axis=1, keepdims=True) > 10}


def pipeline(given: Arrays) -> Arrays:
    """The three before it, one after the other; the second's answer is given too."""
    scores = score({"x": widen(given)["y"]})
    return scores | label(scores)


def fork(given: Arrays) -> Arrays:
    """After the first step two that do not wait for each other."""
    wide = widen(given)["y"]
    return score({"x": wide}) | limited({"x": wide})


def nested(given: Arrays) -> Arrays:
    """`pipeline`, and its last step once more."""
    first = pipeline(given)
    again = label({"scores": first["scores"]})
    return {**again, "first": first["label"], "is_first_sure": first["is_sure"]}


def caller(given: Arrays) -> Arrays:
    """In Triton it asks `affine`."""
    return {"z": affine(given)["y"] * np.float32(2)}


def version_1(given: Arrays) -> Arrays:
    return {"y": given["x"] * np.float32(1)}


def version_2(given: Arrays) -> Arrays:
    return {"y": given["x"] * np.float32(2)}


def version_3(given: Arrays) -> Arrays:
    return {"y": given["x"] * np.float32(3)}


def cached(given: Arrays) -> Arrays:
    return {"y": given["x"] - np.float32(1)}


def limited(given: Arrays) -> Arrays:
    return {"y": given["x"] * given["x"]}


def uneven(given: Arrays) -> Arrays:
    """In Triton it takes `wait_ms` of its first row."""
    return {"waited": given["wait_ms"] * 2}


def failing(given: Arrays) -> Arrays:
    """In Triton it answers with an error where the first number of a request is below 0."""
    return {"y": -given["x"]}


def raising(given: Arrays) -> Arrays:
    """In Triton it raises there."""
    return {"y": -given["x"]}


def bulk(given: Arrays) -> Arrays:
    return {"y": given["x"] + np.float32(1)}


def odd_names(given: Arrays) -> Arrays:
    return {'serving/ "é" y:0': given['serving/ "é" x:0'][:, ::-1]}


def echo(given: Arrays) -> Arrays:
    return {"OUTPUT": given["IN"]}


def wrong_floats(given: Arrays) -> Arrays:
    """Not what `affine` answers."""
    return {"y": affine(given)["y"] + np.float32(1)}


def wrong_text(given: Arrays) -> Arrays:
    """Not what `text` answers."""
    found = given["IN"].copy()
    found.flat[0] += b"!"
    return {"OUTPUT": found}


def raises(_: Arrays) -> Arrays:
    raise KeyError("no such input")
