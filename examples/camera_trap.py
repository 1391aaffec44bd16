"""Camera traps: which animals passed, by site and night, with a list of what lives there.

    python examples/camera_trap.py

A network knows 29 mammals, and the cameras stand where 14 of them live. A list of the region says
how often each was seen (the prior), the photos of one site and night belong together (groups), a
photo whose species is unsure is named by its family (roll-up), and photos of none of these animals
are set aside (strangers). Features are made up here; yours are those of any network, and
`paddle-ext classify photos/labelled photos/new --group folder --group-gap 6h --prior list.csv
--parents families.csv` does the same with a folder of photos for each site.
"""

import matplotlib.pyplot as plt
import numpy as np

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
NIGHTS, PHOTOS, HIKERS, LABELLED, FEATURES = 40, 5, 15, 8, 64  # photos of a site and night


def photos(random: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Labelled rows and their species, rows of the traps, and what they show."""
    species = [name for family in FAMILIES.values() for name in family]
    families = np.repeat(np.arange(len(FAMILIES)), [len(x) for x in FAMILIES.values()])
    centres = random.normal(size=(len(FAMILIES), FEATURES))[families]
    centres = centres + 0.7 * random.normal(size=centres.shape)  # of species in a family
    weights = np.array([SEEN.get(name, 0) for name in species]) / sum(SEEN.values())
    labels = np.arange(len(species)).repeat(LABELLED)
    passed = random.choice(len(species), NIGHTS, p=weights).repeat(PHOTOS)
    hikers = random.normal(size=(1, FEATURES)).repeat(HIKERS, axis=0)
    rows = np.concatenate([centres[labels], centres[passed], hikers])
    rows += 2.9 * random.normal(size=rows.shape)
    shown = [species[k] for k in passed] + ["hiker"] * HIKERS
    start = len(labels)
    return rows[:start], np.array(species)[labels], rows[start:], np.array(shown)


def draw(names: list[str], strange: np.ndarray) -> None:
    """How many photos have each name: a species, a family or none."""
    groups = dict.fromkeys((f"some {x}" for x in FAMILIES), style.paler(style.colour("adaptive")))
    groups["no known animal"] = style.WRONG
    given = np.where(strange, "no known animal", names).tolist()
    counts = sorted(((given.count(name), name) for name in set(given)), reverse=True)
    figure, axes = plt.subplots(figsize=(style.WIDTH, 6.5), layout="constrained")
    style.prepare(axes)
    for place, (count, name) in enumerate(counts):
        axes.barh(place, count, 0.7, color=groups.get(name, style.colour("adaptive")))
        style.label_point(axes, count, place, str(count))
    style.name_rows(axes, [name for _, name in counts], strong=list(groups))
    style.name_panel(axes, "", f"photos, of {len(given)}")
    style.head(figure, "What passed the cameras", "bold: families, and no known animal")
    plt.show()


def main(arguments: list[str] | None = None) -> None:
    labelled, labels, new, truth = photos(np.random.default_rng(0))
    rows, animal = np.concatenate([labelled, new]), truth != "hiker"
    known = np.concatenate([labels.astype(object), [None] * len(new)])
    region = {name: SEEN.get(name, 0) for name in set(labels)}
    nights = np.concatenate([np.arange(NIGHTS).repeat(PHOTOS), np.arange(HIKERS) % NIGHTS])
    groups = np.concatenate([np.full(len(labels), -1), nights])  # labelled rows are of no night
    ways = {"alone": (None, None), "list": (region, None), "list and groups": (region, groups)}
    for name, (prior, group) in ways.items():
        model = PaddleClassifier(prior=prior).fit(rows, known, groups=group)
        right = (model.transduction_[len(labels) :] == truth)[animal].mean()
        print(f"{name}: {100 * right:.0f} % right")

    classes = list(model.classes_)
    numbers = np.array([classes.index(name) for name in labels])
    weights = np.array([float(region[name]) for name in classes])
    found = adaptive(labelled, numbers, new, prior=weights, groups=nights)
    parents = {name: f"some {family}" for family, names in FAMILIES.items() for name in names}
    nodes = presence.roll_up(found, parents, classes=classes, confidence=0.9)
    names = [name or "unsure" for name in nodes.names()]
    strange = presence.strangers(found, labelled, numbers, new, rate=0.05).numpy()
    named = [i for i in np.flatnonzero(animal & ~strange) if names[i] != "unsure"]
    right = 100 * np.mean([names[i] in (truth[i], parents[truth[i]]) for i in named])
    print(f"{len(named)} photos named by species or family: {right:.0f} % right")
    hikers, animals = (f"{strange[x].sum()} of {x.sum()}" for x in (~animal, animal))
    print(f"set aside: {hikers} hikers, {animals} animals")
    draw(names, strange)


if __name__ == "__main__":
    main()
