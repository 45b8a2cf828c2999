"""Stands in for Open SWE, which no package index has: the registry and the behaviour of its caller, as documented."""
