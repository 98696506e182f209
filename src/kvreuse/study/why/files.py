"""Two files compared, or the log in one replayed: what ``kvreuse why`` does."""

from __future__ import annotations

import os
from pathlib import Path

from kvreuse.errors import RequestError
from kvreuse.study.why.asked import read_file, read_log
from kvreuse.study.why.compare import Comparison, compare
from kvreuse.study.why.log import LogReport, Progress, report
from kvreuse.study.why.rendered import Texts


def compare_files(
    model: str | os.PathLike[str], one: Path, other: Path, page_size: int = 32
) -> Comparison:
    """What the prompt in ``other`` shares with that in ``one``, on this model.

    RequestError for a file that holds no prompt, or one that the model refuses; ModelFileError;
    OSError.
    """
    asked = read_file(one), read_file(other)
    texts = Texts.of_model(model)
    return compare(texts.rendered(asked[0]), texts.rendered(asked[1]), page_size)


def replay_file(
    model: str | os.PathLike[str],
    path: Path,
    page_size: int = 32,
    progress: Progress | None = None,
) -> LogReport:
    """What the requests of a log reuse, lose and could have, on this model.

    RequestError, naming the line, for one that holds no request, or one that the model refuses;
    ModelFileError; OSError.
    """
    requests = read_log(path)
    if not requests:
        raise RequestError(f"{path}: there is no request in it")
    return report(requests, Texts.of_model(model), page_size, progress)
