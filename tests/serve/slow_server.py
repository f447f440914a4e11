"""A service with a slow scorer in a process of its own: `python -m tests.serve.slow_server SECONDS_PER_BATCH`."""

import sys

from crossknn.serve import server
from crossknn.serve.service import Service
from crossknn.serve.settings import Settings
from tests.serve.servers import ITEMS, WatchedScorer

if __name__ == "__main__":
    service = Service(ITEMS, scorer=WatchedScorer(seconds=float(sys.argv[1])), settings=Settings(grace=20))
    bound = server.bind("127.0.0.1", 0)
    server.run(service, bound, on_start=lambda: print(server.url_of(bound), flush=True))  # noqa: T201
