"""Faults of every kind, tried in numbers: what holds and what is lost."""

import os
import secrets

# Before anything imports torch or Ray: one thread for each process, as many run at a time.
_SETTINGS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_SETTINGS |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
_SETTINGS |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
