"""`crossknn match`: pairs of records that match, within one table or between two, and their clusters."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from crossknn.cli import options
from crossknn.cli.config import configurable
from crossknn.cli.console import ProgressBars, out, print_json, resumable, say
from crossknn.search.rendering import one_line

if TYPE_CHECKING:
    from crossknn.matching.matches import ClusterMethod, Matches

SHOWN = 20
ClusterMethodName = StrEnum("ClusterMethodName", ["components", "pivot"])


@configurable
@options.with_groups
def match(
    *,
    corpus: Annotated[Path, Argument(help="Records: an index, .jsonl, .csv, .tsv, .parquet, .txt, or a BEIR folder.")],
    other: Annotated[
        Path | None, Option(help="Another table, or an index of one: match each record of CORPUS to it.")
    ] = None,
    threshold: Annotated[float | None, Option(help="Lowest score of a match.")] = None,
    min_probability: Annotated[float | None, Option(help="The same as a probability, by --calibration.")] = None,
    k: Annotated[int | None, Option("-k", min=1, help="Keep at most this many matches per record, its best.")] = None,
    budget: Annotated[
        int | None, Option(min=1, help="Cross-encoder calls per record, on average over all. Default: 20 pairs' worth.")
    ] = None,
    max_calls: Annotated[int | None, Option(min=1, help="Cross-encoder calls in total.")] = None,
    max_per_record: Annotated[
        int | None, Option(min=1, help="Calls in the search of one record. Default: ten times the average.")
    ] = None,
    symmetric: Annotated[
        bool, Option("--symmetric", help="Score both directions of a pair, two calls, and take the mean.")
    ] = False,
    sample: Annotated[
        int | None,
        Option(
            min=0,
            help="Calls, of the total, that estimate the share of pairs found. Default: 10%, at most 2,000; 0 with -k.",
        ),
    ] = None,
    deadline: Annotated[float | None, Option(help="Seconds; then write the pairs found so far.")] = None,
    seed: options.SeedOption = 0,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Pairs: .jsonl, .csv or .parquet.")
    ] = None,
    clusters: Annotated[
        Path | None, Option(metavar="FILE", help="Records by cluster: .jsonl, .csv or .parquet.")
    ] = None,
    cluster_method: Annotated[
        ClusterMethodName,
        Option(help="Connected components, or correlation clustering by pivots, which does not merge along chains."),
    ] = ClusterMethodName.components,
    opened: options.SourceOptions,
    as_json: options.JsonOption = False,
) -> None:
    """Find the records of CORPUS that match: duplicates within it, or matches in another table.

    The scores are kept in --cache, by default beside the output: run an interrupted command again to resume it.
    """
    from crossknn.matching.matcher import MatchOptions
    from crossknn.matching.matcher import match as match_records
    from crossknn.matching.matches import check_suffix

    opened.check(other or corpus)
    for name, path in (("output", output), ("clusters", clusters)):
        if path is not None:
            check_suffix(name, path)
    settings: dict[str, Any] = {
        "threshold": threshold,
        "min_probability": min_probability,
        "k": k,
        "budget": budget,
        "max_calls": max_calls,
        "max_per_record": max_per_record,
        "symmetric": symmetric,
        "sample": sample,
        "deadline": deadline,
        "seed": seed,
    }
    MatchOptions(**settings)  # an error now, before models are loaded
    cache = opened.cache or (None if output is None else output.with_name(f"{output.name}.scores.db"))
    with nullcontext() if cache is None else resumable(), ProgressBars() as progress:
        source = options.read_source(other or corpus, opened, progress)
        left = options.read_source(corpus, opened, progress) if other is not None else source
        arguments = replace(opened, cache=cache).arguments(source, other or corpus, progress)
        found = match_records(left, None if other is None else source, **arguments, **settings)
        if output is not None:
            found.write(output)
        if clusters is not None:
            found.write_clusters(clusters, cast("ClusterMethod", cluster_method.value))
    if as_json:
        print_json(list(found.to_dicts(texts=True, fields=True)))
    elif output is None:
        _print_pairs(found)
    say(*_summarize(found))


def _print_pairs(found: Matches) -> None:
    table = Table("score", "left", "", "right", "")
    for one in found[:SHOWN]:
        texts = found.left.text(one.left_row), found.right.text(one.right_row)
        sides = ((one.left, texts[0]), (one.right, texts[1]))
        table.add_row(f"{one.score:.2f}", *(Text(part) for id_, text in sides for part in (id_, one_line(text))))
    out.print(table)
    if len(found) > SHOWN:
        say(f"The first {SHOWN} of {len(found):,}: write them all with --output.")


def _summarize(found: Matches) -> list[str]:
    pairs = f"{len(found):,} pairs match, {found.calls:,} calls"
    old = found.calls - found.new_calls
    lines = [f"{pairs}{f' ({old:,} of an earlier run)' if old else ''}, {found.seconds:.1f} s"]
    if found.stopped:
        lines.append(f"stopped by the {found.stopped}")
    if found.recall is not None:
        lines.append(f"about {found.recall}")
    return lines
