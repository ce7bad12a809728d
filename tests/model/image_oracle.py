"""image_oracle.py - model/image*.c against Pillow, to the byte, over pictures made here.

    image_oracle.py IMAGE_DUMP [--quick]

--quick leaves out the one of 8000 x 6000 pixels.
"""
import io
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.dont_write_bytecode = True

import oracle_image  # noqa: E402

RNG = np.random.default_rng(20261130)


def scene(w, h, channels=3):
    """Something with edges, slopes and noise, so that no coefficient is without effect. What is large
    is tiled."""
    if w * h > 1 << 20:
        part = scene(997, 991, channels)
        return np.tile(part, (-(-h // 991), -(-w // 997), 1))[:h, :w]
    y, x = np.mgrid[0:h, 0:w].astype(np.float32)
    c = np.arange(channels, dtype=np.float32)
    smooth = 127 + 90 * np.sin(x[..., None] / (7 + 5 * c) + y[..., None] / (11 + c)) \
        + 60 * (((x[..., None] // 13 + y[..., None] // 9 + c) % 2) - 0.5)
    smooth = smooth + RNG.normal(0, 12, smooth.shape)
    return np.clip(smooth, 0, 255).astype(np.uint8)


def picture(w, h, mode="RGB"):
    n = len(Image.new(mode, (1, 1)).getbands())
    array = scene(w, h, n)
    return Image.fromarray(array[..., 0] if n == 1 else array, mode)


def save(image, form, **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def exif(orientation):
    e = Image.Exif()
    e[0x0112] = orientation
    return e.tobytes()


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
         (0, 1, 1, 2)]


def pack(samples, bits):
    """[h][values] -> rows of bytes, each with filter 0 before it."""
    rows = []
    for row in samples:
        if bits == 16:
            body = row.astype(">u2").tobytes()
        elif bits == 8:
            body = row.astype(np.uint8).tobytes()
        else:
            flat = ((row[:, None] >> np.arange(bits - 1, -1, -1)) & 1).astype(np.uint8).ravel()
            body = np.packbits(flat).tobytes()
        rows.append(b"\0" + body)
    return b"".join(rows)


def png(w, h, colour, bits, interlaced=False, before=b""):
    """A PNG of any kind, written by hand: Pillow writes neither interlaced nor 16-bit colour."""
    n = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    samples = RNG.integers(0, 1 << bits, (h, w, n))
    passes = [samples[y0::dy, x0::dx] for x0, y0, dx, dy in ADAM7] if interlaced else [samples]
    data = b"".join(pack(p.reshape(p.shape[0], -1), bits) for p in passes if p.size)
    head = struct.pack(">IIBBBBB", w, h, bits, colour, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before
            + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))


def palette(bits, alpha=0):
    n = 1 << bits
    out = chunk(b"PLTE", RNG.integers(0, 256, 3 * n).astype(np.uint8).tobytes())
    if alpha:
        out += chunk(b"tRNS", RNG.integers(0, 256, alpha).astype(np.uint8).tobytes())
    return out


def animation(mode):
    """Three frames; the later ones differ and must not be seen."""
    frames = [picture(90, 70, mode) for _ in range(3)]
    return save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True,
                duration=50)


def webp_of_a_part(has_alpha):
    """An animation whose first frame covers a part of its canvas."""
    frame = save(picture(40, 30, "RGBA" if has_alpha else "RGB"), "WEBP", lossless=True)
    body = frame[12:]
    if body[:4] == b"VP8X":
        body = body[18:]
    anmf = (10).to_bytes(3, "little") + (5).to_bytes(3, "little") + (39).to_bytes(3, "little") \
        + (29).to_bytes(3, "little") + (50).to_bytes(3, "little") + b"\0" + body
    flags = 2 | (16 if has_alpha else 0)
    vp8x = bytes([flags, 0, 0, 0]) + (99).to_bytes(3, "little") + (79).to_bytes(3, "little")

    def riff(name, data):
        return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    inner = b"WEBP" + riff(b"VP8X", vp8x) + riff(b"ANIM", b"\xff\x80\x40\xff\0\0") \
        + riff(b"ANMF", anmf)
    return b"RIFF" + struct.pack("<I", len(inner)) + inner


def pictures(quick):
    """(name, bytes) of every picture."""
    sizes = [(1, 1), (2, 3), (13, 14), (14, 13), (28, 28), (29, 57), (354, 354), (640, 480),
             (896, 896), (1920, 1080), (3000, 40), (40, 3000), (1, 2000), (2000, 1), (20000, 30),
             (449, 447)]
    for w, h in sizes:
        yield f"png {w}x{h}", save(picture(w, h), "PNG", compress_level=1)
    yield "jpeg 4000x3000", save(picture(4000, 3000), "JPEG", quality=70)
    if not quick:
        yield "jpeg 8000x6000", save(picture(8000, 6000), "JPEG", quality=50)
    for o in range(1, 9):
        yield f"jpeg turned {o}", save(picture(700, 500), "JPEG", exif=exif(o))
        yield f"png turned {o}", save(picture(61, 47, "RGBA"), "PNG", exif=exif(o))
    yield "jpeg turned 6 in big-endian order", save(
        picture(70, 50), "JPEG",
        exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0")
    yield "webp turned 8", save(picture(500, 700), "WEBP", exif=exif(8))
    for sampling in (0, 1, 2):
        yield f"jpeg sampling {sampling}", save(picture(517, 433), "JPEG", subsampling=sampling)
    yield "jpeg progressive", save(picture(801, 603), "JPEG", progressive=True, quality=90)
    yield "jpeg grey", save(picture(801, 603, "L"), "JPEG")
    yield "jpeg cmyk", save(picture(801, 603, "CMYK"), "JPEG")
    yield "jpeg cmyk progressive", save(picture(80, 63, "CMYK"), "JPEG", progressive=True)
    yield "jpeg with restarts", save(picture(800, 600), "JPEG", restart_marker_rows=2)
    for mode in ("1", "L", "P", "LA", "RGBA"):
        image = picture(610, 333, mode) if mode not in ("1", "P") else picture(610, 333).convert(mode)
        yield f"png {mode}", save(image, "PNG")
    yield "png palette with one transparent", save(picture(600, 500).convert("P"), "PNG",
                                                   transparency=3)
    yield "png grey with a transparent level", save(picture(300, 200, "L"), "PNG", transparency=127)
    yield "png with a transparent colour", save(picture(30, 20), "PNG", transparency=(10, 20, 30))
    for colour, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)),
                           (6, (8, 16))):
        for bits in depths:
            for interlaced in (False, True):
                before = palette(bits, alpha=2 if bits > 1 else 0) if colour == 3 else b""
                yield (f"png colour {colour} bits {bits}{' interlaced' * interlaced}",
                       png(467, 411, colour, bits, interlaced, before))
    yield "png 3x2 interlaced", png(3, 2, 6, 8, True)
    yield "webp", save(picture(640, 427), "WEBP")
    yield "webp lossless", save(picture(333, 512), "WEBP", lossless=True)
    yield "webp alpha", save(picture(640, 427, "RGBA"), "WEBP")
    yield "webp lossless alpha", save(picture(640, 427, "RGBA"), "WEBP", lossless=True)
    yield "webp animated", animation("RGB")
    yield "webp animated alpha", animation("RGBA")
    yield "webp part of a canvas", webp_of_a_part(False)
    yield "webp part of a clear canvas", webp_of_a_part(True)


def expected(data, max_patches, side_patches):
    size, fitted, padded = oracle_image.preprocess(data, max_patches, side_patches)
    h, w = padded.shape[:2]
    words = (*size, *fitted, w, h, w * h // oracle_image.TILE ** 2)
    return " ".join(map(str, words)) + f" {zlib.crc32(padded.tobytes()):08x}"


def dumped(dump, path, max_patches=1024, side_patches=512, ms=0):
    args = [dump, *map(str, (max_patches, side_patches, ms)), path]
    return subprocess.run(args, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def late(dump, where):
    """How many formats are not refused when their time is over; sound pictures, one millisecond."""
    path, bad = Path(where, "slow"), 0
    image = picture(4000, 3000)
    for name, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {"compress_level": 1}),
                          ("WEBP", {"quality": 95, "method": 0})):
        path.write_bytes(save(image, name, **options))
        got = dumped(dump, path, ms=1)
        if "a picture may take 1" not in got or " LEFT" in got:
            bad += 1
            print(f"{name} {options}: {got}, after 1 ms")
    return bad


def compare(dump, where, quick, max_patches, side_patches):
    """(how many pictures, how many differ); every picture is made, written and forgotten."""
    n = bad = 0
    path = Path(where, "picture")
    for name, data in pictures(quick):
        path.write_bytes(data)
        want = expected(data, max_patches, side_patches)
        got = dumped(dump, path, max_patches, side_patches)
        n += 1
        if got != want:
            bad += 1
            print(f"{name}: {got}\n{' ' * len(name)}  {want} expected")
    return n, bad


def main(dump, *options):
    with tempfile.TemporaryDirectory() as where:
        n, bad = compare(dump, where, "--quick" in options, 1024, 512)
        m, worse = compare(dump, where, True, 4096, 40)
        bad += late(dump, where)
    print(f"{n} + {m} pictures, {bad + worse} differ")
    return bad + worse != 0 or n < 40


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
