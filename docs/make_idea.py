"""Draw the idea of the start page: ``python docs/make_idea.py``.

A pile without names, the kinds that are known, of which three light up, and the sorted pile.
"""

import math
import random
from pathlib import Path

FIGURE = Path(__file__).resolve().parent / "figures" / "idea.svg"
WIDTH, HEIGHT = 640, 580
INK, GREY, PALE = "#222222", "#8a8a8a", "#d9d9d9"
LIT = {5: "#0072b2", 12: "#d55e00", 23: "#009e73"}  # the kinds in the pile, with their colours
PILE = [5] * 9 + [12] * 7 + [23] * 5
UNSURE = 15  # the one of the sorted pile that is worth a look
KINDS = 24


def shape(kind: int, x: float, y: float, size: float, colour: str, turn: float = 0) -> str:
    """One of 24 kinds: eight outlines, each filled, hollow or with a hole."""
    corners = {0: 0, 1: 3, 2: 4, 3: 5, 4: 6}.get(kind % 8)
    style = (
        f'fill="{colour}"' if kind // 8 == 0 else f'fill="none" stroke="{colour}" stroke-width="4"'
    )
    if corners == 0:
        body = f'<circle r="{size:g}" {style}/>'
    else:
        body = f'<path d="{outline(kind % 8, size)}" {style} stroke-linejoin="round"/>'
    if kind // 8 == 2:
        body += f'<circle r="{size / 3:g}" fill="{colour}"/>'
    return f'<g transform="translate({x:g} {y:g}) rotate({turn:g})">{body}</g>'


def outline(form: int, size: float) -> str:
    """A polygon, a star, a cross or a drop, around the origin."""
    if form == 5:  # a star
        radii = [size * (1.15 if i % 2 == 0 else 0.5) for i in range(10)]
    elif form == 6:  # a cross
        a, b = size, size / 3
        points = [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b), (b, a), (-b, a), (-b, b),
                  (-a, b), (-a, -b), (-b, -b)]  # fmt: skip
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"
    elif form == 7:  # a drop
        a, b = size, size / 4
        right = f"C{a:.1f} {-b:.1f} {a:.1f} {a:.1f} 0 {a:.1f}"
        return f"M0 {-1.2 * a:.1f}{right}S{-a:.1f} {-b:.1f} 0 {-1.2 * a:.1f}Z"
    else:
        radii = [size * 1.1] * (form + 2)
    turns = [2 * math.pi * i / len(radii) - math.pi / 2 for i in range(len(radii))]
    points = [(r * math.cos(t), r * math.sin(t)) for r, t in zip(radii, turns, strict=True)]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + "Z"


def text(x: float, y: float, words: str, size: int = 19, extra: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{INK}" {extra}>{words}</text>'


def pile() -> list[str]:
    """All of it in grey, in no order."""
    chance = random.Random(2)
    order = PILE[:]
    chance.shuffle(order)
    parts = [text(24, 40, "You have a pile without names …", 22, 'font-weight="bold"')]
    for number, kind in enumerate(order):
        line, column = divmod(number, 11)
        x, y = 50 + 54 * column + 20 * line, 80 + 46 * line
        parts.append(shape(kind, x, y, 14, GREY, chance.uniform(-30, 30)))
    return parts


def shelf() -> list[str]:
    """All kinds that are known; those of the pile light up."""
    parts = [text(24, 190, "… and a few examples of many kinds.", 22, 'font-weight="bold"')]
    for kind in range(KINDS):
        line, column = divmod(kind, 8)
        x, y = 24 + 75 * column, 206 + 58 * line
        colour = LIT.get(kind, PALE)
        width = 3 if kind in LIT else 1.5
        parts.append(
            f'<rect x="{x}" y="{y}" width="67" height="50" rx="8" fill="white" stroke="{colour}" '
            f'stroke-width="{width}"/>'
        )
        parts.append(shape(kind, x + 33.5, y + 26, 13, colour))
    return parts


def sorted_pile() -> list[str]:
    """The pile by kind, with counts and one to look at."""
    parts = [
        text(24, 416, "It finds the few kinds that are there, and sorts.", 22, 'font-weight="bold"')
    ]
    number = 0
    for line, (kind, colour) in enumerate(LIT.items()):
        y = 450 + 46 * line
        count = PILE.count(kind)
        parts.append(text(24, y + 7, str(count), 22, f'font-weight="bold" style="fill:{colour}"'))
        for column in range(count):
            x = 76 + 46 * column
            parts.append(shape(kind, x, y, 14, colour))
            if number == UNSURE:
                parts.append(f'<circle cx="{x}" cy="{y}" r="21" fill="none" stroke="{INK}" '
                             'stroke-width="2" stroke-dasharray="4 3"/>')  # fmt: skip
            number += 1
    parts.append(text(384, 503, "← look at this one"))
    return parts


def figure() -> str:
    """The whole figure, as SVG."""
    title = (
        "A pile without names; the kinds that are known, three of which light up; the sorted pile"
    )
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="DejaVu Sans, Verdana, sans-serif" role="img">'
        ),
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="white"/>',
    ]
    return "\n".join([*parts, *pile(), *shelf(), *sorted_pile(), "</svg>"]) + "\n"


if __name__ == "__main__":
    FIGURE.write_text(figure())
