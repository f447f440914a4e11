"""The recalls of result files as rows of the leaderboard, and the settings in which the default is not the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

PLAIN: Final = {"scorer": "MiniLM-L6", "encoder": "all-MiniLM-L6-v2"}  # of score folders that name no models
TRAINED: Final = {"scorer": "[emb]-CE trained on the set", "encoder": "dual encoder trained on the set"}
CELLS: Final = {"Posterior": "posterior, prior", "Posterior, no index": "posterior"}  # of posterior.json
DEFAULT, WITH_PRIOR, BASELINE = "posterior", "posterior, prior", "rerank, fused"
OFFLINE: Final = {"fitted": "fitted vectors", "prior": "prior", "cur": "CUR", "scale": "α and β"}
LEARNED: Final = (", prior", ", fitted", ", 8", ", all")  # ends of names in rivals.json
MEASURE: Final = "nDCG@10"


@dataclass(frozen=True)
class Row:
    """One recall, in percent, with its interval; what is not known is None."""

    file: str
    set: str
    items: int
    queries: int
    scorer: str
    encoder: str
    strategy: str
    k: int
    budget: int
    recall: float
    low: float | None = None
    high: float | None = None
    baseline: str | None = None
    difference: tuple[float, float, float] | None = None  # to the baseline: mean, low, high of the paired interval
    ndcg: float | None = None  # by judgments, in percent
    calls: float | None = None  # per query
    offline: float | None = None  # calls per item
    milliseconds: float | None = None  # per query
    beside: float | None = None  # milliseconds without those in the scorer
    oracle: bool = False
    seconds: float | None = None  # that the budget was chosen for


class Loss(NamedTuple):
    """A setting in which the default strategy is not the best."""

    default: Row
    best: Row
    difference: tuple[float, float, float] | None  # best − default; None where the file has no paired difference

    @property
    def gap(self) -> float:
        return self.best.recall - self.default.recall

    @property
    def shown(self) -> bool:
        """Whether the paired interval excludes zero."""
        return self.difference is not None and self.difference[1] > 0


def read_rows(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    """The recalls of a result file; none if it is of another kind."""
    if "header" in found and "records" in found:
        yield from read_comparison(name, found)
    elif name.startswith("posterior"):
        for one in found["sets"]:
            yield from read_posterior(name, one)
    elif name.startswith("rivals"):
        for one in found["sets"]:
            yield from read_rivals(name, one)
    elif name.startswith("robustness"):
        for one in found["sets"]:
            yield from read_robustness(name, one, found["calls_per_item"])
    elif name.startswith("time_budget"):
        for one in found["sets"]:
            yield from read_times(name, one)


def read_comparison(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    """What `crossknn bench --json` has written."""
    header = found["header"]
    data, items = header["data"], header["items"]
    shared = {"file": name, "set": data["data"], "items": items, "queries": data["queries"], **models_of(header)}
    judged = {(one["strategy"], one["budget"]): one.get(MEASURE) for one in found.get("quality", ())}
    for record in found["records"]:
        seconds, difference = record["seconds"], record.get("difference")
        parts = [seconds[part] for part in ("solve", "search") if part in seconds]
        scorer, quality = seconds.get("scorer"), judged.get((record["strategy"], record["budget"]))
        yield Row(
            **shared,
            strategy=record["strategy"],
            k=record["k"],
            budget=record["budget"],
            **{part: round(100 * record[part], 2) for part in ("recall", "low", "high")},
            baseline=record["baseline"],
            difference=difference and tuple(round(100 * difference[part], 2) for part in ("mean", "low", "high")),
            ndcg=None if quality is None else round(100 * quality, 1),
            calls=record["calls"],
            offline=offline_calls(record["strategy"], data, items),
            milliseconds=None if scorer is None else round(1000 * (scorer + sum(parts)), 2),
            beside=round(1000 * sum(parts), 2),
            oracle=record.get("oracle", False),
        )


def read_posterior(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    """One set of `benchmarks.posterior`: means of all settings, intervals of those in its cells."""
    shared = {"file": name, "set": found["set"], "items": found["items"], "queries": found["test_queries"]}
    for cell in found["cells"]:
        k, budget = cell["k"], cell["budget"]
        known = {CELLS.get(side, side): cell[side] for side in CELLS}
        known |= {as_in_bench(one["setting"]): one for one in (cell["best Rerank"], cell["best Axn"])}
        differences = {CELLS[side]: cell[f"{side} − Rerank, fused"] for side in CELLS}
        for setting, means in found["settings"].items():
            strategy = as_in_bench(setting)
            interval, gap = known.get(strategy, {}), differences.get(strategy)
            yield Row(
                **shared,
                **PLAIN,
                strategy=strategy,
                k=k,
                budget=budget,
                recall=means[f"{k}@{budget}"],
                low=interval.get("low"),
                high=interval.get("high"),
                baseline=BASELINE if gap else None,
                difference=triple(gap),
                calls=budget,
                offline=None if setting.startswith("Axn") else found["calls_per_item"] * strategy.endswith(", prior"),
            )


def read_rivals(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    """One set of `benchmarks.rivals`: rivals with their differences to the default, that one's to fused reranking."""
    shared = {"file": name, "set": found["set"], "items": found["items"], "queries": found["test_queries"]}
    models = {**PLAIN, "scorer": found["scorer"]}
    judged = {(one["strategy"], one["budget"]): one[MEASURE]["mean"] for one in found["quality"]}
    for cell in found["cells"]:
        for strategy, recall in cell["recall"].items():
            learned = strategy.endswith(LEARNED)
            ours = WITH_PRIOR if learned else DEFAULT
            baseline = BASELINE if strategy == ours else ours
            gap = cell[f"− {BASELINE if strategy == ours else DEFAULT}"].get(strategy)
            milliseconds = found["milliseconds_at_100"][strategy] if cell["budget"] == 100 else None
            yield Row(
                **shared,
                **models,
                strategy=strategy,
                k=cell["k"],
                budget=cell["budget"],
                recall=recall["mean"],
                low=recall["low"],
                high=recall["high"],
                baseline=baseline,
                difference=triple(gap),
                ndcg=judged.get((strategy, cell["budget"])),
                calls=cell["budget"],
                offline=offline_of_rival(strategy, found),
                beside=milliseconds,
            )


def read_robustness(name: str, found: Mapping[str, Any], calls_per_item: int) -> Iterator[Row]:
    """One set of `benchmarks.robustness`, each condition as a set of its own."""
    for condition, strategies in found["conditions"].items():
        for strategy, cells in strategies.items():
            for cell, recall in cells.items():
                k, _, budget = cell.partition("@")
                gap = recall[f"− {BASELINE}"]
                yield Row(
                    file=name,
                    set=f"{found['set']}: {condition}",
                    items=found["items"],
                    queries=found["queries"],
                    **PLAIN,
                    strategy=strategy,
                    k=int(k),
                    budget=int(budget),
                    recall=recall["mean"],
                    low=recall["low"],
                    high=recall["high"],
                    baseline=BASELINE if gap else None,
                    difference=triple(gap),
                    calls=int(budget),
                    offline=None if strategy.startswith("axn") else calls_per_item * strategy.endswith(", prior"),
                )


def read_times(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    """One set of `benchmarks.time_budget`: recall with the calls that fit into some seconds."""
    for cell in found["cells"]:
        prior = cell["strategy"].endswith(", prior")
        yield Row(
            file=name,
            set=found["set"],
            items=found["items"],
            queries=found["queries"],
            scorer=found["scorer"],
            encoder=PLAIN["encoder"],
            strategy=cell["strategy"],
            k=cell["k"],
            budget=cell["calls"],
            recall=cell["recall"],
            low=cell["low"],
            high=cell["high"],
            baseline=None if cell["strategy"] == BASELINE else BASELINE,
            difference=None if cell["strategy"] == BASELINE else triple(cell[f"− {BASELINE}"]),
            calls=cell["calls"],
            offline=round(found["offline calls, prior"] / found["items"], 1) if prior else None,
            milliseconds=1000 * cell["seconds"],
            seconds=cell["seconds"],
        )


def triple(gap: Mapping[str, float] | None) -> tuple[float, float, float] | None:
    return None if not gap else (gap["mean"], gap["low"], gap["high"])


def as_in_bench(setting: str) -> str:
    """The name that `crossknn bench` gives to a setting of posterior.json, such as "Axn, dense λ=0.5"."""
    name, _, rest = setting.partition(", ")
    first, _, mix = rest.partition(" λ=")
    return CELLS.get(setting) or (f"axn, λ {mix}, {first} first" if mix else f"{name.lower()}, {first}")


def models_of(header: Mapping[str, Any]) -> dict[str, str]:
    """The names of the models: those of the command, or of the folders of scores."""
    words = (header["command"] or "").split()
    given = {name: words[words.index(f"--{name}") + 1] for name in PLAIN if f"--{name}" in words}
    return {**(TRAINED if header["data"]["data"].endswith("-emb") else PLAIN), **given}


def offline_calls(strategy: str, data: Mapping[str, Any], items: int) -> float | None:
    """Calls per item before the first query; 0 for a strategy that needs none, None if the file does not say."""
    kind = strategy.partition(",")[0]
    needs = next((need for need in ("fitted", "prior") if strategy.endswith(f", {need}")), None)
    needs = needs or ("cur" if kind in ("anncur", "adacur") else "scale" if kind in ("axn", "tour") else None)
    if needs is None:
        return 0.0
    calls = data.get(f"offline calls, {OFFLINE[needs]}")
    return None if calls is None else round(calls / items, 1)


def offline_of_rival(strategy: str, found: Mapping[str, Any]) -> float | None:
    scaled = strategy.partition(",")[0] in ("axn", "tour")  # these two estimate α and β
    known: float = found["offline_calls_per_item"][strategy]
    return None if scaled and not known else known


def distinct(rows: Sequence[Row]) -> list[Row]:
    """Without rows that say no more of a search than an earlier one: one run may have written two files."""
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        search = (row.set, row.scorer, row.encoder, row.queries, row.strategy, row.k, row.budget)
        kept.setdefault((*search, round(row.recall, 1), row.difference is None), row)
    return list(kept.values())


def find_losses(rows: Sequence[Row]) -> tuple[list[Loss], int]:
    """The settings in which another strategy finds more than the default, and how many settings there are.

    A setting is a set, its models and queries, k and the budget or the seconds, of one file, once without offline calls
    and once with: then the default is posterior search with a prior, and all others count. Oracles do not. Those whose
    paired interval excludes zero come first, then those with the largest gap.
    """
    settings = defaultdict(list)
    for row in rows:
        place = row.budget if row.seconds is None else row.seconds
        settings[row.file, row.set, row.scorer, row.encoder, row.queries, row.k, place].append(row)
    losses, count = [], 0
    for found in settings.values():
        without = [row for row in found if not learns(row)]
        for name, others in (
            (DEFAULT, without),
            (WITH_PRIOR, [row for row in found if not row.oracle and row.strategy != DEFAULT]),
        ):
            default = next((row for row in others if row.strategy == name), None)
            if default is None or len(others) == 1:
                continue
            count += 1
            best = max(others, key=lambda row: row.recall)
            if best.recall > default.recall:
                losses.append(Loss(default, best, gap_between(best, default)))
    return sorted(losses, key=lambda loss: (not loss.shown, -loss.gap)), count


def learns(row: Row) -> bool:
    """Whether the strategy learns from offline calls; an oracle is left out likewise."""
    return row.oracle or row.strategy.endswith(LEARNED) or row.strategy.partition(",")[0] in ("anncur", "adacur")


def gap_between(best: Row, default: Row) -> tuple[float, float, float] | None:
    """The paired difference of the two, where one of them is the baseline of the other."""
    if best.baseline == default.strategy:
        return best.difference
    if default.baseline == best.strategy and default.difference is not None:
        mean, low, high = default.difference
        return -mean, -high, -low
    return None
