"""Tasks for Label Studio, and corrections from its exports.

The exports are written by hand after https://labelstud.io/guide/export and what its converter
writes, for a project of one group of choices.
"""

import json
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

import pytest
from classify_data import (
    NAMES,
    column,
    embedding_files,
    picture_folders,
    refused,
    run,
    said,
    table,
    table_with_gaps,
)

from paddle_ext.app.label_studio import read_label_studio


def texts(folder: Path) -> list[object]:
    """A table of texts with embeddings and ids, and the options for it."""
    keys, words = [f"K{row}" for row in range(64)], [f"text <{row}>" for row in range(64)]
    path = table_with_gaps(folder / "table.csv", key=keys, said=words)
    return [path, "--text", "said", "--embedding", "f", "--id", "key", "--output", folder]


def test_tasks_of_texts(tmp_path: Path) -> None:
    target = tmp_path / "studio" / "tasks.json"
    assert f"{target}, {target.with_suffix('.xml')}" in said(
        *texts(tmp_path), "--export", "label-studio", target
    )
    tasks, rows = json.loads(target.read_text()), table(tmp_path / "answers.csv")
    assert len(tasks) == len(rows) == 40
    for task, row in zip(tasks, rows, strict=True):
        assert task["data"] == {"name": row["key"], "text": row["text"], "digest": ANY}
        (prediction,) = task["predictions"]
        assert prediction["score"] == pytest.approx(float(row["probability"]), abs=1e-4)
        assert prediction["model_version"].startswith("paddle_ext ")
        (result,) = prediction["result"]
        assert result["value"] == {"choices": [row["label"]]}
        assert (result["from_name"], result["to_name"]) == ("label", "text")
        assert result["type"] == "choices"
    assert len({task["predictions"][0]["result"][0]["id"] for task in tasks}) == 40
    view = ET.fromstring(target.with_suffix(".xml").read_text())
    assert [tag.tag for tag in view] == ["Text", "Choices"]
    assert view[0].attrib == {"name": "text", "value": "$text"}
    assert view[1].attrib == {"name": "label", "toName": "text", "choice": "single"}
    assert [choice.attrib["value"] for choice in view[1]] == [*NAMES, "unknown"]


def test_corrected_samples_are_annotated(tmp_path: Path) -> None:
    """What was corrected elsewhere comes back with the labels that people add."""
    (tmp_path / "a.csv").write_text("key,label\nK30,unknown\nK33,elm\n")
    target = tmp_path / "tasks.json"
    more = ("--corrected", tmp_path / "a.csv", "--export", "label-studio", target)
    said(*texts(tmp_path), *more)
    back = read_label_studio(target)
    assert {key.name: label for key, label in back.items()} == {"K30": "unknown", "K33": "elm"}
    assert "by name alone" not in said(*texts(tmp_path), "--corrected", target)


@pytest.mark.usefixtures("quick_network")
def test_tasks_of_images(tmp_path: Path) -> None:
    labelled, new = picture_folders(tmp_path)
    odd = new / "deep" / "chess" / "a b & ?ü.jpg"
    (new / "deep" / "chess" / "0.jpg").rename(odd)
    target = tmp_path / "tasks.json"
    said(labelled, new, "--output", tmp_path, "--export", "label-studio", target)
    tasks = {task["data"]["name"]: task for task in json.loads(target.read_text())}
    assert set(tasks) == {*column(tmp_path / "answers.csv", "file")}
    for name, task in tasks.items():
        url = urlsplit(task["data"]["image"])
        assert url.path == "/data/local-files/"
        (place,) = parse_qs(url.query)["d"]
        assert (tmp_path / place).samefile(new / name)
        assert "efficientnet_lite0" in task["predictions"][0]["model_version"]
    assert "<Image " in target.with_suffix(".xml").read_text()


# --- what comes back ----------------------------------------------------------------------------


def annotation(number: int, choices: list[str], **more: Any) -> dict[str, Any]:
    result = {
        "id": f"r{number}",
        "from_name": "label",
        "to_name": "text",
        "type": "choices",
        "origin": "manual",
        "value": {"choices": choices},
    }
    updated = f"2026-05-01T10:00:{number:02}.000000Z"
    own = {"id": number, "result": [result] if choices else [], "updated_at": updated}
    return {**own, "was_cancelled": False, "lead_time": 4.288, "task": number, **more}


def task(number: int, name: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": number,
        "data": {"name": name, "text": f"text of {name}"},
        "annotations": annotations,
        "predictions": [
            {"model_version": "x", "score": 0.9, "result": annotation(9, ["wrong"])["result"]}
        ],
        "meta": {},
        "project": 83,
    }


# K30 was relabelled, K31 skipped, K32 has only a prediction, K33 a class of its own.
TASKS = [
    task(1, "K30", [annotation(3, ["elm"]), annotation(1, ["ash"])]),
    task(2, "K31", [annotation(2, ["elm"], was_cancelled=True)]),
    task(3, "K32", []),
    task(4, "K33", [annotation(4, ["oak, red"])]),
    task(5, "K34", [annotation(5, [])]),
]
EXPECTED = {"K30": "elm", "K33": "oak, red"}


def export(path: Path, tasks: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(tasks))
    return path


def test_labels_come_back(tmp_path: Path) -> None:
    words = texts(tmp_path)
    said(*words, "--corrected", export(tmp_path / "export.json", TASKS))
    kept = table(tmp_path / "corrected.csv")
    assert {row["name"]: row["label"] for row in kept} == EXPECTED
    several = [task(1, "K30", [annotation(1, ["elm", "ash"])])]
    told = refused(*words, "--corrected", export(tmp_path / "export.json", several))
    assert "--corrected must have one label for each sample, got" in told
    assert "for 'K30' in" in told


# The same as CSV: columns are sorted by name, and there is a row for each annotation.
EXPORTED_TABLE = """"annotation_id","annotator","label","name","text","updated_at","was_cancelled"
3,"a@b","elm","K30","text of K30","2026-05-01T10:00:03Z","False"
1,"a@b","ash","K30","text of K30","2026-05-01T10:00:01Z","False"
2,"a@b","elm","K31","text of K31","2026-05-01T10:00:02Z","True"
4,"a@b","oak, red","K33","text of K33","2026-05-01T10:00:04Z","False"
5,"a@b","","K34","text of K34","2026-05-01T10:00:05Z","False"
"""


def test_labels_come_back_as_a_table(tmp_path: Path) -> None:
    words, path = texts(tmp_path), tmp_path / "export.csv"
    path.write_text(EXPORTED_TABLE)
    said(*words, "--corrected", path)
    kept = table(tmp_path / "corrected.csv")
    assert {row["name"]: row["label"] for row in kept} == EXPECTED
    two = '"{""choices"": [""elm"", ""ash""]}"'
    path.write_text(f"annotation_id,label,name\n1,{two},K30\n")
    assert "must have one label for each sample, got" in refused(*words, "--corrected", path)


def test_choices_that_mean_no_label(tmp_path: Path) -> None:
    tasks = [task(1, "K30", [annotation(1, ["None"])]), task(2, "K31", [annotation(2, ["elm"])])]
    said(*texts(tmp_path), "--corrected", export(tmp_path / "export.json", tasks))
    assert {row["name"]: row["label"] for row in table(tmp_path / "corrected.csv")} == {
        "K31": "elm"
    }


ODD: list[Any] = [5, "x", {"a": 1}, [None], ["x"], [{"result": 5}], [{"result": ["x"]}]]


def test_other_files(tmp_path: Path) -> None:
    words = texts(tmp_path)
    path = tmp_path / "export.json"
    unnamed = task(1, "", [annotation(1, ["elm"])])
    for content, message in (
        ('{"a": 1}', "--corrected must be an export of Label Studio, got something else"),
        ('[{"text": "a"}]', "--corrected must be an export of Label Studio, got something else"),
        ("[", "must be JSON, got one that cannot be read"),
        (json.dumps([unnamed]), "--corrected must have tasks with a name, as classify --export"),
        *((json.dumps([task(1, "a", odd)]), "got something else in") for odd in ODD),
    ):
        path.write_text(content)
        assert message in refused(*words, "--corrected", path)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    files = (*embedding_files(tmp_path), "--output", tmp_path)
    told = refused(*files, "--export", "label-studio", tmp_path / "tasks.json")
    assert "--export must be omitted unless there are images or texts" in told
    assert not (tmp_path / "answers.csv").exists()
    done = run(*files, "--export", "prodigy", tmp_path / "tasks.json")
    assert done.exit_code == 2
    assert 'Invalid value "prodigy" for --export. Choose from: "label-studio".' in done.output
