"""The picture of a calibration's errors."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from kvreuse.kv.codec.calibration import Calibration
from kvreuse.study.quality.heatmap import heat_map

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(("layers", "heads"), [(2, 1), (30, 3), (80, 8)])
def test_every_plane_has_a_cell_at_each_width(layers: int, heads: int) -> None:
    rng = np.random.default_rng(1)
    errors = 10 ** rng.uniform(-4, 0, (2, layers, 2, heads))
    widths = rng.integers(0, 3, (layers, 2, heads)).astype(np.uint8)
    calibration = Calibration("ab", errors=errors.astype(np.float32), widths=widths)
    root = ET.fromstring(heat_map(calibration, "a <model> & more"))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert len(titles) == 2 * 2 * layers * heads
    assert titles[0] == f"layer 0, head 0: {errors[1, 0, 0, 0]:.2%}"
    marks = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "mark"]
    assert marks.count("8") == (widths == 1).sum()
    assert marks.count("16") == (widths == 0).sum()
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("x") is not None:
            assert left <= float(rect.attrib["x"]) <= width - float(rect.attrib["width"])
            assert top <= float(rect.attrib["y"]) <= height - float(rect.attrib["height"])
