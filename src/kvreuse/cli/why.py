"""``kvreuse why``: why two prompts, or those of a log, share no more than they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvreuse.cli import text, why_report
from kvreuse.cli.progress import progress
from kvreuse.errors import RequestError
from kvreuse.kv.layout import check_page_size


def why(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A GGUF file, or a name that pull knows.")
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B | LOG",
            help="Two texts or chats in JSON; or one log of requests, one a line.",
        ),
    ],
    *,
    page_size: Annotated[
        int, typer.Option(metavar="N", help="Tokens in a page of the KV cache.")
    ] = 32,
    worst: Annotated[
        int, typer.Option(metavar="N", min=0, help="Lines of a log to show, the worst first.")
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object.")
    ] = False,
) -> None:
    """Say how far prompts share what was computed for others, and what breaks it.

    Nothing is computed, and no weights are read. A chat is a list of messages,
    or an OpenAI request with messages and tools. A log has a request a line:
    batch files, or the server's own log with its prompts.

    \b
      kvreuse why smollm2-135m monday.json tuesday.json
      kvreuse why smollm2-135m prompt-a.txt prompt-b.txt
      kvreuse why smollm2-135m requests.jsonl
      kvreuse why smollm2-135m requests.jsonl --json | jq .causes
    """
    if len(files) > 2:
        raise RequestError(f"give two files, or one log, not {len(files)} files")
    check_page_size(page_size)
    result = _log(model, files[0], page_size) if len(files) == 1 else _pair(model, files, page_size)
    if as_json:
        text.write_out(json.dumps(result.as_json()) + "\n")
    else:
        result.show(worst)


def _pair(model: str, files: list[Path], page_size: int) -> why_report.PairReport:
    from kvreuse.study.why.files import compare_files  # noqa: PLC0415

    names = (str(files[0]), str(files[1]))
    return why_report.PairReport(names, compare_files(model, files[0], files[1], page_size))


def _log(model: str, path: Path, page_size: int) -> why_report.LogView:
    from kvreuse.study.why.files import replay_file  # noqa: PLC0415

    with progress(f"Replaying {path.name}") as tell:
        return why_report.LogView(str(path), replay_file(model, path, page_size, tell))
