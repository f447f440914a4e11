"""Settings of a teaching, and their defaults by device and number of items."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, get_args

from crossknn._checks import check_choice, check_number, check_positive, check_range, check_seed, invalid
from crossknn.indexing.teaching.lists import RANDOM_SHARE

HELD_OUT_SHARE: Final = 0.05  # of the lists, by default
MAX_HELD_OUT: Final = 200
POOL_DEPTH: Final = 50  # nearest items of each encoder that check the result on a held-out query
MIN_LISTS, LISTS_PER_ITEM = 200, 2  # of the default
CPU_SETTINGS: Final[Mapping[str, Any]] = {"lists": 2_000, "items_per_list": 48, "epochs": 3.0, "items_per_step": 24}
ADAPTER_SETTINGS: Final[Mapping[str, Any]] = {"epochs": 20.0, "items_per_step": 40, "learning_rate": 1e-3}
WEIGHTS, MAX_WEIGHT = ("squared_error", "evidence"), 1_000.0  # of the terms of the loss

StudentName = Literal["encoder", "adapter", "query-adapter"]


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """Settings of a teaching: knowledge distillation of the cross-encoder into the dual encoder.

    Each list is a query with the items that the cross-encoder scored for it. Lists are mined with the encoder, and
    again with the half-taught one. The encoder learns to give inner products that order a list as its scores do, and
    vectors from which some scores of a list predict the others.

    Args:
        student: What is trained: the "encoder"; an "adapter", small networks over its frozen vectors of queries and
            items; or a "query-adapter", over those of queries alone, where item vectors cannot change.
        lists: Queries to train on. Pseudo-queries cut from the items make up for missing train queries.
        items_per_list: Items that are scored for each query in each round; 0 to train on known scores alone.
        random_share: Share of these items that are drawn at random; the others are mined.
        rounds: How often lists are mined and scored; calls = `lists` × `items_per_list` × `rounds`.
        epochs: Passes over the lists, over all rounds.
        batch: Lists per step.
        items_per_step: Items of each list in a step: its `best_items`, and others at random.
        best_items: The best items of a list, which are part of every step.
        learning_rate: The maximum, after a linear warm-up; then a cosine to zero.
        temperature: Of the softmax of the scores, in units of their standard deviation within lists.
        squared_error: The weight of the squared error, beside the cross-entropy.
        evidence: The weight of the evidence of a Bayesian linear model.
        held_out_share: Share of the lists, at most 200, that check the result; 0 to use it unchecked.
        patience: Checks of held-out lists, 20 in a training, without a lower loss after which it ends. None goes on.
        time_limit: Seconds of training after which no further step is made. None is unlimited.
        seed: Of everything random. On a CPU the same seed gives the same encoder.
        device: Of torch; None is the CPU.
    """

    student: StudentName = "encoder"
    lists: int = 12_000
    items_per_list: int = 96
    random_share: float = RANDOM_SHARE
    rounds: int = 2
    epochs: float = 6.0
    batch: int = 48
    items_per_step: int = 40
    best_items: int = 8
    learning_rate: float = 1.2e-4
    temperature: float = 0.5
    squared_error: float = 0.5
    evidence: float = 1.0
    held_out_share: float = HELD_OUT_SHARE
    patience: int | None = 5
    time_limit: float | None = None
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        check_choice("student", self.student, get_args(StudentName))
        for name in ("lists", "rounds", "batch", "items_per_step", "best_items", "patience"):
            if name != "patience" or self.patience is not None:
                check_positive(name, getattr(self, name))
        for name in ("epochs", "learning_rate", "temperature", "time_limit"):
            if name != "time_limit" or self.time_limit is not None:
                check_number(name, getattr(self, name))
        if not isinstance(self.items_per_list, int) or not (self.items_per_list == 0 or self.items_per_list >= 4):
            raise invalid("items_per_list", "0 or an integer of at least 4", self.items_per_list)
        if self.items_per_step < 2:
            raise invalid("items_per_step", "at least 2", self.items_per_step)
        for name, most in (("random_share", 1), ("held_out_share", 0.5), *((name, MAX_WEIGHT) for name in WEIGHTS)):
            check_range(name, getattr(self, name), 0, most)
        check_seed(self.seed)

    @classmethod
    def default(cls, items: int, *, student: StudentName = "encoder", device: str | None = None, seed: int = 0) -> Self:
        """The default for this many items: fewer scores on a CPU, where they and an encoder's training take hours."""
        chosen = {} if (device or "cpu").startswith("cuda") else {**CPU_SETTINGS}
        chosen |= {} if student == "encoder" else ADAPTER_SETTINGS
        settings = cls(student=student, **chosen, device=device, seed=seed)
        lists = min(settings.lists, max(MIN_LISTS, LISTS_PER_ITEM * items))
        return replace(settings, lists=lists, items_per_list=max(4, min(settings.items_per_list, items)))

    @property
    def passes(self) -> int:
        """Query–item pairs that pass through the encoder in training, at most."""
        return round(self.epochs * self.lists * min(self.items_per_step, self.items_per_list * self.rounds or math.inf))

    @property
    def calls(self) -> int:
        """Calls of the scorer, at most."""
        return self.lists * self.items_per_list * self.rounds + self.held_out(self.lists) * 2 * POOL_DEPTH

    def held_out(self, lists: int) -> int:
        """How many of the lists are not trained on."""
        return min(MAX_HELD_OUT, round(self.held_out_share * lists))
