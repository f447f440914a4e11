"""A service with a slow scorer in a process of its own: `… -m tests.serve.slow_server SECONDS_PER_BATCH SETTINGS`."""

import json
import sys

from crossknn.serve import server
from crossknn.serve.monitoring import log_to_stderr
from crossknn.serve.service import Service
from crossknn.serve.settings import Settings
from tests.serve.servers import ITEMS, WatchedScorer

if __name__ == "__main__":
    scorer, settings = WatchedScorer(seconds=float(sys.argv[1])), Settings(**json.loads(sys.argv[2]))
    service = Service(ITEMS, scorer=scorer, settings=settings)
    bound = server.bind("127.0.0.1", 0)
    log_to_stderr()
    server.run(service, bound, on_start=lambda: print(server.url_of(bound), flush=True))  # noqa: T201
