"""A camera trap: which animals passed, with a list of what lives there, and strangers.

    python examples/camera_trap.py

A network knows 29 mammals, and the camera stands where 14 of them live. A list of the region says
how often each was seen (the prior), a photo whose species is unsure is named by its family
(roll-up), and photos of none of these animals are set aside (strangers). Features are made up here;
yours are those of any network, and `paddle-ext classify photos/labelled photos/new --prior list.csv
--parents families.csv` does the same with folders of photos.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from paddle_ext import PaddleClassifier, adaptive, presence
from paddle_ext.research import style

FAMILIES = {
    "deer": ["red deer", "roe deer", "fallow deer", "elk", "white-tailed deer", "mule deer"],
    "dogs": ["red fox", "wolf", "coyote", "grey fox", "raccoon dog", "golden jackal"],
    "cats": ["wildcat", "lynx", "bobcat", "puma"],
    "martens": ["pine marten", "stone marten", "badger", "otter", "polecat", "wolverine"],
    "bears": ["brown bear", "black bear"],
    "hares": ["brown hare", "mountain hare", "snowshoe hare"],
    "pigs": ["wild boar", "collared peccary"],
}
# Sightings in the region last year; the animals that are not listed do not live there.
SEEN = {"roe deer": 400, "red fox": 250, "wild boar": 200, "red deer": 120, "badger": 100,
        "stone marten": 80, "brown hare": 60, "pine marten": 40, "raccoon dog": 30,
        "fallow deer": 20, "wildcat": 15, "polecat": 10, "lynx": 5, "otter": 5}  # fmt: skip
PHOTOS, HIKERS, LABELLED, FEATURES = 200, 15, 8, 64


def photos(random: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Labelled rows and their species, rows of the trap, and what they show."""
    species = [name for family in FAMILIES.values() for name in family]
    families = np.repeat(np.arange(len(FAMILIES)), [len(x) for x in FAMILIES.values()])
    centres = random.normal(size=(len(FAMILIES), FEATURES))[families]
    centres = centres + 0.8 * random.normal(size=centres.shape)  # of species in a family
    weights = np.array([SEEN.get(name, 0) for name in species], dtype=float)
    labels = np.arange(len(species)).repeat(LABELLED)
    passed = random.choice(len(species), PHOTOS, p=weights / weights.sum())
    hiker = random.normal(size=FEATURES)
    rows = np.concatenate([centres[labels], centres[passed], np.tile(hiker, (HIKERS, 1))])
    rows += 2.6 * random.normal(size=rows.shape)
    shown = [species[k] for k in passed] + ["hiker"] * HIKERS
    start = len(labels)
    return rows[:start], np.array([species[k] for k in labels]), rows[start:], np.array(shown)


def draw(names: list[str], strange: np.ndarray) -> None:
    """How many photos have each name: a species, a family or none."""
    groups = {"no known animal": style.WRONG}
    groups |= {f"some {family}": style.paler(style.colour("adaptive")) for family in FAMILIES}
    given = np.where(strange, "no known animal", names).tolist()
    counts = sorted(((given.count(name), name) for name in set(given)), reverse=True)
    figure, axes = plt.subplots(figsize=(style.WIDTH, 6.5), layout="constrained")
    style.prepare(axes)
    for place, (count, name) in enumerate(counts):
        axes.barh(place, count, 0.7, color=groups.get(name, style.colour("adaptive")))
        style.label_point(axes, count, place, str(count))
    style.name_rows(axes, [name for _, name in counts], strong=list(groups))
    style.name_panel(axes, "", f"photos, of {len(given)}")
    style.head(figure, "What passed the camera", "bold: named by family, or by nothing it knows")
    plt.show()


def main(arguments: list[str] | None = None) -> None:
    labelled, labels, new, truth = photos(np.random.default_rng(0))
    rows = np.concatenate([labelled, new])
    known = np.concatenate([labels.astype(object), [None] * len(new)])
    animal = truth != "hiker"
    region = {name: SEEN.get(name, 0) for name in set(labels)}
    for prior in (None, region):
        model = PaddleClassifier(prior=prior).fit(rows, known)
        right = (model.transduction_[len(labels) :] == truth)[animal].mean()
        print(f"{'with' if prior else 'without'} the list of the region: {100 * right:.0f} % right")

    classes = list(model.classes_)
    support, query = torch.from_numpy(labelled), torch.from_numpy(new)
    numbers = torch.tensor([classes.index(name) for name in labels])
    weights = torch.tensor([float(region[name]) for name in classes])
    found = adaptive(support, numbers, query, prior=weights)
    parents = {name: f"some {family}" for family, names in FAMILIES.items() for name in names}
    nodes = presence.roll_up(found, parents, classes=classes, confidence=0.9)
    names = [name or "unsure" for name in nodes.names()]
    strange = presence.strangers(found, support, numbers, query, rate=0.05).numpy()
    fits = [name in (there, parents.get(there)) for name, there in zip(names, truth, strict=True)]
    named = animal & ~strange & (np.array(names) != "unsure")
    right = 100 * np.mean(np.array(fits)[named])
    print(f"{named.sum()} photos named by species or family: {right:.0f} % right")
    print(f"set aside: {strange[~animal].sum()} of {HIKERS} hikers, ", end="")
    print(f"{strange[animal].sum()} of {PHOTOS} animals")
    draw(names, strange)


if __name__ == "__main__":
    main()
