"""The confusion matrix as a picture: counts, shares, names; up to many classes."""

from __future__ import annotations

import numpy as np
import pytest

from onward.errors import OptionError
from onward.runner.figures.confusion_heatmap import draw_confusion
from onward.runner.figures.figure import Box, Words
from tests.runner.figures.marks import parsed, texts


def test_cells_have_counts_shares_and_tips() -> None:
    figure = draw_confusion([[8, 2], [0, 0.5]], ["cat", "dog"])
    parsed(figure)
    for text in ("cat", "dog", "8", "80.0%", "2", "20.0%", "0.5", "100.0%", "label", "answer"):
        assert text in texts(figure)
    boxes = [mark for mark in figure.marks if isinstance(mark, Box)]
    tips = ["cat right: 8 (80.0%)", "cat taken for dog: 2 (20.0%)", "", "dog right: 0.5 (100.0%)"]
    assert [box.tip for box in boxes] == tips
    (across, down), (across_next, down_next) = boxes[0].corner, boxes[1].corner
    assert across < across_next and down == down_next  # answers are across


@pytest.mark.parametrize("classes", [1, 3, 20, 50, 60])
def test_counts_of_up_to_50_classes_fit_their_cells(classes: int) -> None:
    counts = np.full((classes, classes), 125)
    figure = draw_confusion(counts, [f"a class with a very long name {i}" for i in range(classes)])
    parsed(figure)
    boxes = [mark for mark in figure.marks if isinstance(mark, Box)]
    drawn = [mark for mark in figure.marks if isinstance(mark, Words) and mark.text == "125"]
    assert len(boxes) == len(drawn) == classes**2
    assert boxes[0].size[0] >= 17 and drawn[0].size >= 7
    assert figure.width < 1400


def test_one_name_per_class_is_needed() -> None:
    with pytest.raises(OptionError, match=r"of 1 classes has shape \[1, 1\], not \[2, 2\]\ngive"):
        draw_confusion(np.eye(2), ["cat"])
