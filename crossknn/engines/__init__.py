"""Where the models of a build run: in this process, or on the machines of a Ray cluster."""
