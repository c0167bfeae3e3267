"""Image files as tensors of the model that takes them decoded."""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray

from squall.models.spec import Dims

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name of a picture with so many channels."""
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
"""Those of the suffixes that are taken for pictures. Pillow tells by content and starts programs for others: for EPS
Ghostscript, by its name on the PATH."""
_WIDE = {"I": "whole numbers of more than 8 bits", "F": "floats"}
"""By the first letter of Pillow's mode: pictures of which it cuts all that is above 255."""


def decoded(data: bytes, dims: Dims) -> NDArray[np.uint8]:
    """Pixels from 0 to 255 as `dims` say: (height, width), or with 1, 3 or 4 channels as the last or first of them.

    Nothing is scaled: a picture of another size does not fit the dims. Raises ValueError, in words that follow the name
    of the input, for dims of no picture and bytes of none.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ValueError("takes decoded pictures, and Pillow is not installed: pip install pillow") from error

    n_channels, is_last = _channels(dims)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                if image.mode[0] in _WIDE:
                    raise ValueError(f"its pixels are {_WIDE[image.mode[0]]}, not 0 to 255")
                pixels = np.asarray(image.convert(_MODES[n_channels]))
    except UnidentifiedImageError as error:
        raise ValueError(f"is no picture that can be read: none of {', '.join(_FORMATS)}") from error
    except (OSError, ValueError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"is no picture that can be read: {' '.join(str(error).split())[:120]}") from error
    except Image.DecompressionBombError as error:
        raise ValueError("is a picture of too many pixels") from error
    if len(dims) == 2:
        return pixels
    pixels = pixels.reshape(*pixels.shape[:2], n_channels)
    return pixels if is_last else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _channels(dims: Dims) -> tuple[int, bool]:
    """How many, and whether they are the last of the dims."""
    if len(dims) == 2:
        return 1, True
    if len(dims) == 3 and dims[2] in _MODES:
        return dims[2], True
    if len(dims) == 3 and dims[0] in _MODES:
        return dims[0], False
    raise ValueError(
        f"has dims {list(dims)}, and a picture is [height, width] with 1, 3 or 4 channels last or first"
    )
