"""Posterior search: a Bayesian linear model of each query's scores, and the search that exploits it."""
