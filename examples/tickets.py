"""Tickets of a month: what they are about, how much of each, and which ones to read again.

    python examples/tickets.py

Twelve topics with four labelled tickets each, and the 240 tickets of a month, some of which are
about two things. A customer writes about few topics, so the tickets of a customer belong together
(groups). Shares come with intervals, and the tickets in doubt are to be read again. The texts are
made up, and their words counted, so that no model is needed; with a sentence encoder it is
`paddle-ext classify tickets.csv --label topic --text ticket --group customer`.
"""

import re
import zlib

import matplotlib.pyplot as plt
import numpy as np

from paddle_ext import PaddleClassifier
from paddle_ext.research import style

START = ["Hello,", "Good morning,", "Hi,", "Please help:", "Again:", "Urgent!", "Dear team,", ""]
TOPICS = {
    "delivery": "where is my parcel|the parcel has not arrived|parcel is late|when does it arrive",
    "refund": "I want my money back|please refund my order|the refund is missing|no money back yet",
    "password": "I forgot my password|cannot log in|the log in fails|reset my password",
    "invoice": "the invoice is wrong|send me an invoice|invoice has no address|no invoice yet",
    "broken item": "the lamp is broken|it arrived damaged|it broke at once|damaged on arrival",
    "wrong item": "I got the wrong size|not what I ordered|wrong colour|a wrong lamp came",
    "cancel": "please cancel my order|I do not need it any more|cancel it today|stop my order",
    "payment": "my card was refused|the payment failed|card refused again|cannot pay",
    "discount": "the voucher does not work|my discount is gone|voucher refused|no discount",
    "opening hours": "are you open on Sunday|when does the shop close|open today|until when open",
    "job": "I want to apply for a job|are you hiring|do you hire drivers|my application",
    "praise": "great service, thank you|I love your shop|thanks for the help|great lamp",
}
SAID = {topic: said.split("|") for topic, said in TOPICS.items()}
THIS_MONTH = dict(zip(TOPICS, [90, 45, 30, 0, 60, 0, 3, 0, 0, 0, 0, 12], strict=True))


def hashed(texts: list[str], features: int = 512) -> np.ndarray:
    """Counts of words and of their pieces of four letters, hashed by a checksum."""
    rows = np.zeros((len(texts), features))
    for row, text in zip(rows, texts, strict=True):
        for word in re.findall(r"\w+", text.lower()):
            pieces = [f"<{word}>"[i : i + 4] for i in range(max(1, len(word) - 1))]
            for piece in (word, *pieces):
                row[zlib.crc32(piece.encode()) % features] += 1
    return rows


def month(random: np.random.Generator, counts: dict[str, int]) -> tuple[list[str], list[str]]:
    """The tickets and their topics; the second sentence of one in four is about anything."""
    tickets, about = [], []
    for topic in random.permutation(np.repeat(list(counts), list(counts.values()))):
        other = topic if random.random() < 0.75 else random.choice(list(TOPICS))
        start, first, second = map(random.choice, (START, SAID[topic], SAID[other]))
        tickets.append(f"{start} {first}; {second}".strip())
        about.append(str(topic))
    return tickets, about


def draw(model: PaddleClassifier, truth: list[str]) -> None:
    share = model.prevalence_
    order = [k for k in np.argsort(-share.estimate) if share.high[k] > 0.005]
    figure, axes = plt.subplots(figsize=(style.WIDTH, 4.2), layout="constrained")
    style.prepare(axes)
    for place, k in enumerate(order):
        axes.barh(place, 100 * share.estimate[k], 0.7, color=style.paler(style.colour("adaptive")))
        axes.hlines(place, 100 * share.low[k], 100 * share.high[k], style.colour("adaptive"), lw=4)
        true = 100 * truth.count(model.classes_[k]) / len(truth)
        axes.plot([true] * 2, [place - 0.35, place + 0.35], color=style.INK, lw=2)
    style.name_rows(axes, [model.classes_[k] for k in order])
    style.name_panel(axes, "", "% of the tickets")
    style.head(figure, "What the tickets were about", "lines: 90 % intervals; black: the truth")
    plt.show()


def main(arguments: list[str] | None = None) -> None:
    random = np.random.default_rng(0)
    known, topics = month(random, dict.fromkeys(TOPICS, 4))
    tickets, truth = month(random, THIS_MONTH)
    rows = hashed(known + tickets)
    labels = np.array(topics + [None] * len(tickets), dtype=object)
    topic = np.array([list(TOPICS).index(each) for each in truth])
    customer = (topic + random.random(len(topic))).argsort().argsort() // 4  # four tickets each
    customer = np.concatenate([[-1] * len(known), customer])  # of labelled tickets: not used
    for name, groups in {"one batch": None, "by customer": customer}.items():
        model = PaddleClassifier().fit(rows, labels, groups=groups)
        found, doubt = model.transduction_[len(known) :], model.doubt_[len(known) :]
        print(f"{name}: {100 * np.mean(found == truth):.0f} % of {len(tickets)} tickets right")
    print("topics present:", ", ".join(model.present_classes_))
    print("read these again:")
    for i in np.argsort(-doubt)[:5]:
        print(f"  {doubt[i]:.2f} {found[i]}: {tickets[i]}")
    draw(model, truth)


if __name__ == "__main__":
    main()
