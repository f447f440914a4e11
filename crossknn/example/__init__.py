"""The embedded example: a dictionary of WordNet senses, a small cross-encoder trained on it, and the demo."""

from pathlib import Path
from typing import Final

DEMO_FOLDER: Final = Path("crossknn-demo")
DEMO_SENSES: Final = 5_000
DEMO_QUERIES: Final = 5  # each is scored with every sense: 25,000 exact scores
SHOWCASE: Final = ("a piece of furniture to sleep on", "water [runs] down the hill", "the engine is [running]")
