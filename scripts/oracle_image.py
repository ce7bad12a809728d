"""oracle_image.py - the released preprocessing of images, by Pillow and numpy.

Independent of model/image*.c: sizes by the rule of docs/IMAGES.md, pixels by Pillow's own decoders and
resize, transparency and padding by numpy. Where Pillow's reading of a file is not kept (16-bit grey,
which it clips instead of scaling), that is said here and in docs/IMAGES.md.
"""
import io
import math

import numpy as np
from PIL import Image, ImageOps

PATCH = 14
TILE = 2 * PATCH
Image.MAX_IMAGE_PIXELS = None


def fit(width, height, max_patches=1024, side_patches=512):
    """(resized width, height) of a picture; never larger than it was."""
    most = side_patches * PATCH
    area = max(1, width // PATCH) * max(1, height // PATCH)
    s = min(1.0, math.sqrt(max_patches / area), most / width, most / height)
    return (min(max(1, math.floor(width * s)), most), min(max(1, math.floor(height * s)), most))


def upright(data):
    """A picture as RGB or RGBA, turned as its EXIF says."""
    image = Image.open(io.BytesIO(data))
    image.seek(0)
    image.load()
    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I"):  # 16-bit grey: the high byte, as Pillow does for 16-bit colour
        turned = Image.fromarray((np.asarray(turned, np.int64) >> 8).astype(np.uint8))
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        return turned.convert("RGBA")
    return turned.convert("RGB")


def over_chessboard(rgba):
    """[h][w][4] over fields of 8 pixels, the first one white, the next 180 grey."""
    h, w = rgba.shape[:2]
    odd = (np.arange(h)[:, None] // 8 + np.arange(w) // 8) % 2
    ground = np.where(odd, 180, 255)[..., None]
    alpha = rgba[..., 3:].astype(np.int64)
    return ((rgba[..., :3] * alpha + ground * (255 - alpha)) // 255).astype(np.uint8)


def preprocess(data, max_patches=1024, side_patches=512):
    """Bytes of a file -> (upright size, resized size, padded uint8 [h][w][3])."""
    image = upright(data)
    size = fit(*image.size, max_patches, side_patches)
    pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
    if pixels.shape[2] == 4:
        pixels = over_chessboard(pixels)
    h, w = pixels.shape[:2]
    padded = np.zeros((-(-h // TILE) * TILE, -(-w // TILE) * TILE, 3), np.uint8)
    padded[:h, :w] = pixels
    return image.size, size, padded


def patches(padded, mean=(0.5,) * 3, std=(0.5,) * 3, dtype=np.float64):
    """[patches][588], row-major over patches, (channel, y, x) within one."""
    h, w = padded.shape[:2]
    x = (padded.astype(dtype) / dtype(255) - np.asarray(mean, dtype)) / np.asarray(std, dtype)
    x = x.reshape(h // PATCH, PATCH, w // PATCH, PATCH, 3).transpose(0, 2, 4, 1, 3)
    return x.reshape(-1, 3 * PATCH * PATCH)
