"""The files of a figure: pictures that open, numbers that can be drawn again."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kvreuse.errors import ConfigError
from kvreuse.study.figures import catalogue
from kvreuse.study.figures.record import Record

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", list(catalogue.KINDS))
class TestFiles:
    def test_all_are_written(self, name: str, measured: dict[str, Record], tmp_path: Path) -> None:
        folder = tmp_path / "new" / "folder"
        paths = catalogue.write(measured[name], folder)
        wanted = {
            f"{name}-{theme}.{kind}" for theme in ("light", "dark") for kind in ("svg", "png")
        }
        assert {path.name for path in paths} == {f"{name}.json", *wanted}
        assert set(folder.iterdir()) == set(paths)
        title = catalogue.captions_of(measured[name]).en.title
        for theme in ("light", "dark"):
            root = ET.parse(folder / f"{name}-{theme}.svg").getroot()
            assert root.tag == f"{SVG}svg"
            assert root.get("width") == "660.24pt"
            assert title in {text.text for text in root.iter(f"{SVG}text")}
            png = (folder / f"{name}-{theme}.png").read_bytes()
            width, height = struct.unpack(">II", png[16:24])
            assert png.startswith(b"\x89PNG")
            assert (width, height > 300) == (1320, True)

    def test_drawn_again_from_their_numbers(
        self, name: str, measured: dict[str, Record], tmp_path: Path
    ) -> None:
        first = catalogue.write(measured[name], tmp_path / "first")
        record = catalogue.read(tmp_path / "first" / f"{name}.json")
        again = catalogue.write(record, tmp_path / "again")
        for one, other in zip(first, again, strict=True):
            assert one.read_bytes() == other.read_bytes()
        assert record.as_dict() == measured[name].as_dict()

    def test_the_json_says_all(self, name: str, measured: dict[str, Record]) -> None:
        found = json.loads(catalogue.as_json(measured[name]))
        kinds = {"figure": str, "model": str, "machine": dict, "settings": dict, "data": dict}
        assert {key: type(found[key]) for key in kinds} == kinds
        assert found["figure"] == name
        assert set(found["machine"]) == {"cpu", "isa", "threads", "memory_available"}
        assert {language: set(caption) for language, caption in found["captions"].items()} == {
            "en": {"title", "text"},
            "zh": {"title", "text"},
        }
        assert "/" not in found["model"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON"),
        ("[]", "lacks 'figure'"),
        ('{"figure": "growth"}', "lacks 'model'"),
    ],
)
def test_a_file_that_is_no_record(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "growth.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        catalogue.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", list(catalogue.KINDS))
def test_a_record_without_its_numbers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    empty = {"figure": name, "model": "m", "machine": {}, "settings": {}, "data": {}, "summary": {}}
    path.write_text(json.dumps(empty))
    with pytest.raises(ConfigError, match=f"is no record of the figure {name}"):
        catalogue.read(path)


def test_a_record_of_an_unknown_figure(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    record = Record("pie", "m", {}, {}, {}, {})
    path.write_text(json.dumps(record.as_dict()))
    with pytest.raises(ConfigError, match="no figure 'pie'"):
        catalogue.read(path)
