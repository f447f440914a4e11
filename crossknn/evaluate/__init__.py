"""How much of the exact answer each strategy finds, at what cost: measures, comparison, table, figure and page."""
