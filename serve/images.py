"""Pictures of a request: found where they stand, read from their data URLs, measured, and put into
the ids. docs/IMAGES.md says what the model makes of them.

Nothing is ever fetched: an address of this server's network or disk is refused like any other.
"""

import binascii

from serve import engine
from serve.budget import Share
from serve.errors import invalid

MOST = 32  # in a prompt, as the library has it
KINDS = ("image", "image_url", "input_image")
PIECE = 1 << 20  # characters of base64; a multiple of four
SCHEMES = ("http", "https", "file", "ftp", "blob", "cid")  # those that a refusal repeats


class Part(dict):
    """A picture as other dialects have it, in a message of ours. path: where the client put it."""

    def __init__(self, path, source):
        super().__init__(type="image_url", image_url=source)
        self.path = path


class Picture:
    """One of them. source: a data URL, or an object that has one, or bytes as Anthropic's."""

    def __init__(self, path, source, name):
        self.path, self.source, self.name = path, source, name
        self.data, self.rows = b"", 0

    def read(self, container, most_patches):
        """From base64 to bytes, and what the model makes of them by their head. Any thread."""
        text, self.source = _base64(self.path, self.source), None
        self.data = _decoded(self.path, text)
        try:
            info = engine.image_look(container, self.data, most_patches)
        except engine.Failure as e:
            if e.status in (engine.E_OOM, engine.E_IO):
                raise
            raise invalid(self.path, f"{self.path}: {e}", "invalid_image") from None
        self.rows = info.n_rows
        return info


class Pictures:
    """All of a request's. Taken out of its messages at once, so that an address of megabytes does
    not live as long as the answer; what is left there is what the chat format is to be told."""

    def __init__(self, messages):
        self.parts, self.share = [], None
        for i, message in enumerate(messages):
            content = message.get("content") if isinstance(message, dict) else None
            for j, part in enumerate(content if isinstance(content, list) else ()):
                if isinstance(part, dict) and part.get("type") in KINDS:
                    self._take(part, f"messages[{i}].content[{j}]")
        if len(self.parts) > MOST:
            picture, _ = self.parts[MOST]
            raise invalid(picture.path, f"{picture.path}: {len(self.parts)} images, at most {MOST} "
                                        "in a conversation", "too_many_images")

    def _take(self, part, path):
        source = next((part[m] for m in ("image_url", "image", "source") if part.get(m)), None)
        name = f"image-{len(self.parts)}"
        self.parts.append((Picture(getattr(part, "path", path), source, name), part))
        part.clear()
        part.update(type="image_url", image_url={"url": name})

    def __bool__(self):
        return bool(self.parts)

    @property
    def first_path(self):
        return self.parts[0][0].path

    def hold(self, budget):
        """Their bytes, about, of what all requests may have of them. Event loop only, as release."""
        self.share = Share(budget)
        self.share.grow(sum(_length(picture.source) for picture, _ in self.parts) * 3 // 4)

    def release(self):
        """Nobody will read them again."""
        for picture, _ in self.parts:
            picture.source, picture.data = None, b""
        if self.share:
            self.share.release()

    def read(self, container, most_patches):
        for picture, part in self.parts:
            info = picture.read(container, most_patches)
            part.update(width=info.width, height=info.height)

    def placed(self, prompt):
        """In the order of the prompt's places, which grow to their rows."""
        by_name = {picture.name: picture for picture, _ in self.parts}
        found = [by_name.pop(name, None) for _, name in prompt.places]
        if None in found:  # what this JSON says depends on who reads it
            raise invalid("messages", "messages has an image in a part that names a member twice")
        prompt.expand([picture.rows for picture in found])
        return found


def _length(source):
    if isinstance(source, dict):
        source = source.get("data") or source.get("url")
    return len(source) if isinstance(source, str) else 0


def _base64(path, source):
    if isinstance(source, dict):
        kind = source.get("type")
        if kind == "base64":  # its media_type is not looked at: the bytes decide
            if not isinstance(source.get("data"), str):
                raise invalid(path, f"{path}: source.data has to be a string")
            return source["data"]
        source = source.get("url")
    if not isinstance(source, str):
        raise invalid(path, f"{path}: an image has to bring its bytes, in a data: URL or as base64")
    if source[:5].lower() != "data:":
        scheme = source[:16].split(":")[0].lower()
        known = f": this one begins with {scheme}:" if scheme in SCHEMES else ""
        raise invalid(path, f"{path}: images are read from data: URLs, and nothing is fetched"
                            f"{known}", "invalid_image_url")
    comma = source.find(",", 0, 512)
    if comma < 0 or not source[:comma].lower().endswith(";base64"):
        raise invalid(path, f"{path}: a data: URL of an image has to say ;base64",
                      "invalid_image_url")
    return source[comma + 1:]


def _bytes_of(text):
    """In pieces, between which other threads run."""
    if text.find("=", 0, max(len(text) - 2, 0)) >= 0:
        raise ValueError("padding before the end")
    return b"".join(binascii.a2b_base64(text[at:at + PIECE], strict_mode=True)
                    for at in range(0, len(text), PIECE))


def _decoded(path, text):
    try:
        try:
            data = _bytes_of(text)
        except ValueError:  # lines of 76 characters are usual
            data = _bytes_of("".join(text.split()))
    except ValueError as e:
        raise invalid(path, f"{path}: this is no base64: {e}", "invalid_image") from None
    if not data:
        raise invalid(path, f"{path}: the image is empty", "invalid_image")
    return data
