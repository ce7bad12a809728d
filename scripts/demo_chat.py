"""demo_chat.py - the family's control tokens, and chapters told as conversations.

The chat format is Kimi-Linear's. A conversation is a run of a chapter's paragraphs, spoken in
turn: whoever reads one as the user's message gets the next as the answer.
"""
import random

# Control tokens and how far behind the last rank the family keeps them.
MARKERS = {
    "[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|im_user|>": 3, "<|im_assistant|>": 4,
    "<|im_system|>": 10, "<|tool_calls_section_begin|>": 11, "<|tool_calls_section_end|>": 12,
    "<|tool_call_begin|>": 13, "<|tool_call_argument_begin|>": 14, "<|tool_call_end|>": 15,
    "<|im_middle|>": 17, "[PAD]": 31,
}
BLOCK = 32  # ids kept for them
ASKED = ["Continue the story.", "Answer with the next paragraph.",
         "You are a novelist. Continue what the user begins."]


def markers(first):
    """{text: id}; first is the number of ranks."""
    return {text: first + at for text, at in MARKERS.items()}


def turn(role, text, encode, marker):
    return [marker[f"<|im_{role}|>"], *encode(role), marker["<|im_middle|>"], *encode(text),
            marker["<|im_end|>"]]


def conversations(document, encode, marker, seed):
    """Ids of a chapter as conversations of two to six turns, back to back; one in three begins
    with a system turn. The heading is left out."""
    pick, out = random.Random(seed), []
    paragraphs = document.rstrip("\n").split("\n\n")[1:]
    while len(paragraphs) >= 2:
        if pick.random() < 1 / 3:
            out += turn("system", pick.choice(ASKED), encode, marker)
        for _ in range(pick.randint(1, 3)):
            if len(paragraphs) < 2:
                break
            out += turn("user", paragraphs.pop(0), encode, marker)
            out += turn("assistant", paragraphs.pop(0), encode, marker)
    return out
