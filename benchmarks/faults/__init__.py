"""Faults of every kind, tried in numbers: what holds and what is lost."""

import os

# Before anything imports torch: one thread for each process, as many run at a time.
for _name, _value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}.items():
    os.environ.setdefault(_name, _value)
