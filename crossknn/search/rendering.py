"""Hits as text and as HTML: a line or a table row for each, why it is there, and what the search cost."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from crossknn.search.results import Hit, Hits

MISSING: Final = "–"
TEXT_HITS, HTML_HITS = 20, 100  # shown at most
TEXT_WIDTH, HTML_WIDTH, ID_WIDTH = 80, 300, 40  # characters of a text or an id
# Characters that would move the cursor of a terminal, or reorder what stands around them.
UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str, width: int = 160) -> str:
    """The text without line breaks and control characters, truncated to `width` characters."""
    line = " ".join(UNPRINTABLE.sub("�", part) for part in text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def show_score(hit: Hit, decimals: int = 3) -> str:
    """The score of a hit, or a dash for one that was not scored."""
    return f"{hit.score:.{decimals}f}" if hit.scored else MISSING


def explain(hit: Hit) -> str:
    """The round in which a hit was scored, who proposed it, its estimate before, and its rank by each retriever."""
    deviation = "" if hit.deviation is None else f" ± {hit.deviation:.2f}"
    expected = "" if hit.expected is None else f"expected {hit.expected:.2f}{deviation} → "
    ranks = ", ".join(f"{name} {MISSING if rank is None else rank}" for name, rank in hit.ranks.items())
    found = f"round {hit.round}, {hit.proposed_by}: {expected}{hit.score:.2f}"
    origin = found if hit.scored else f"not scored, {hit.proposed_by}"
    return f"{origin}; ranks: {ranks}" if ranks else origin


def show_fields(hit: Hit) -> str:
    """The fields of a hit that it has, with their values; lists without brackets."""
    from crossknn.items.fields import fields_as_json  # imports numpy

    fields = fields_as_json(hit.fields)
    shown = {n: ", ".join(filter(None, value)) if isinstance(value, list) else value for n, value in fields.items()}
    return "; ".join(f"{name} {value}" for name, value in shown.items() if value is not None)


def summarize(hits: Hits) -> str:
    """Calls, rounds and time of a search, why it stopped, and its expected recall."""
    note = "" if hits.complete else f", stopped by {hits.stopped}: best so far"
    unscored = sum(1 for hit in hits if not hit.scored)
    if unscored:
        note += f", {unscored} not scored"
    if hits.expected_recall is not None:
        note += f"; expected recall of the top {len(hits)}: {100 * hits.expected_recall:.0f} %"
    calls = f"{hits.calls} {'call' if hits.calls == 1 else 'calls'}"
    rounds = f"{hits.rounds} {'round' if hits.rounds == 1 else 'rounds'}"
    return f"{calls} in {rounds}, {hits.seconds:.2f} s ({hits.score_seconds:.2f} s scoring){note}"


def hits_as_text(hits: Hits) -> str:
    """The query, a line for each of the first hits, and the cost."""
    shown = hits[:TEXT_HITS]
    scores, ids = [show_score(hit) for hit in shown], [one_line(hit.id, ID_WIDTH) for hit in shown]
    widths = [max(map(len, column), default=0) for column in (scores, ids)]
    lines = [
        f"{rank:>3}  {score:>{widths[0]}}  {id_:<{widths[1]}}  {one_line(hit.text, TEXT_WIDTH)}".rstrip()
        for rank, (hit, score, id_) in enumerate(zip(shown, scores, ids, strict=True), 1)
    ]
    more = [f"… and {len(hits) - len(shown)} more"] if len(hits) > len(shown) else []
    return "\n".join([one_line(hits.query), *(lines or ["no hits"]), *more, summarize(hits)])


def hits_as_html(hits: Hits) -> str:
    """The same as a table with the reason for each hit, for notebooks. It holds no script and no style sheet."""
    calibrated = any(hit.probability is not None for hit in hits)
    heads = ["", "score", *(["probability"] if calibrated else []), "id", "text", "round", "proposed by", "why"]
    head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in heads)
    body = "".join(_row_html(rank, hit, calibrated=calibrated) for rank, hit in enumerate(hits[:HTML_HITS], 1))
    more = f"<p>… and {len(hits) - HTML_HITS} more</p>" if len(hits) > HTML_HITS else ""
    rows = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if len(hits) else "<p>no hits</p>"
    return f"<div><p>{_isolated(hits.query)}</p>{rows}{more}<p>{escape(summarize(hits))}</p></div>"


def _row_html(rank: int, hit: Hit, *, calibrated: bool) -> str:
    chance = MISSING if hit.probability is None else f"{hit.probability:.2f}"
    fields = show_fields(hit)
    cells = [
        str(rank),
        show_score(hit),
        *([chance] if calibrated else []),
        _isolated(hit.id, ID_WIDTH),
        _isolated(hit.text, HTML_WIDTH) + (f"<br><small>{_isolated(fields)}</small>" if fields else ""),
        str(hit.round) if hit.scored else MISSING,
        _isolated(hit.proposed_by),
        _isolated(explain(hit).partition(": ")[2] if hit.scored else explain(hit)),
    ]
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"


def _isolated(text: str, width: int = HTML_WIDTH) -> str:
    """The text escaped, in an element that keeps its writing direction from changing what stands around it."""
    return f'<bdi dir="auto">{escape(one_line(text, width))}</bdi>'
