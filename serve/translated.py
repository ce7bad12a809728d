"""A request in another dialect, as chat formats know it, and what the client calls its members: the
library's refusals name ours, and a client cannot find what it never sent."""

import re

# Ours, as a refusal has them, and the client's; the first that fits.
_FUNCTION = ((r"tools\[(\d+)\]\.function\b", r"tools[\1]"), (r"tool_choice\.function\b", "tool_choice"))
ANTHROPIC = ((r"tools\[(\d+)\]\.function\.parameters\b", r"tools[\1].input_schema"), *_FUNCTION,
             (r"reasoning_effort\b", "thinking"),
             (r"response_format(\.json_schema)?\b", "output_format"))
RESPONSES = (*_FUNCTION, (r"reasoning_effort\b", "reasoning.effort"),
             (r"response_format(\.json_schema)?\b", "text.format"))

_MESSAGE = re.compile(r"messages\[(\d+)\][\w.\[\]]*")


class Translated(dict):
    """origins: where each of its messages stood. names: ANTHROPIC or RESPONSES."""

    def __init__(self, members, origins, names):
        super().__init__(members)
        self.origins, self.names = origins, names

    def told(self, text):
        """A path of ours, or a sentence that begins with one, for the client."""
        message = text and _MESSAGE.match(text)
        if message and int(message[1]) < len(self.origins):
            return self.origins[int(message[1])] + text[message.end():]
        for ours, theirs in self.names if text else ():
            if re.match(ours, text):
                return re.sub(ours, theirs, text, count=1)
        return text


def told(body, text):
    """The same of any body: OpenAI's chat requests are ours as they come."""
    return body.told(text) if isinstance(body, Translated) else text
